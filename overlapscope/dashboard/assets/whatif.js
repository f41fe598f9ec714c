/* The switches of the page What if: initially as in the address, which then follows the switches. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  const REST_MS = 150; // several switches moved at once are one question
  let latest = 0;

  /* `kinds`: [{id, options, required}] of the interventions, `options` null without an argument. Changes are a list of
     "id" or "id argument", as the command takes them. */
  const withArgument = ({ kinds }) => kinds.filter(({ options }) => options);
  const argumentOf = (change, { id }) => change.slice(id.length + 1);

  const changesOf = (page, given) => {
    const { kinds } = page;
    const values = new Map(withArgument(page).map(({ id }, number) => [id, given[kinds.length + number] || []]));
    return kinds.flatMap(({ id, required }, number) => {
      if (!given[number]) return [];
      const chosen = values.get(id) || [];
      return chosen.length ? chosen.map((one) => `${id} ${one}`) : required ? [] : [id];
    });
  };

  clientside.overlapscope_whatif = {
    /* The changes in the address. Without any the page begins with those that it proposes; an empty one stands for
       none. */
    read: (page) => {
      if (!page) return [];
      const given = lib.address.now().searchParams.getAll("change");
      return given.length ? given.filter(Boolean) : page.first;
    },

    /* The values of the switches, then of the arguments, for some changes. Changes that the trace doesn't have are
       kept, because the server explains them. */
    fill: (changes, page) => {
      const { kinds } = page;
      const mine = ({ id }) => (changes || []).filter((change) => change === id || change.startsWith(`${id} `));
      return [
        ...kinds.map((kind) => mine(kind).length > 0 && !(kind.required && !kind.options.length)),
        ...withArgument(page).map((kind) => {
          const asked = mine(kind).map((change) => argumentOf(change, kind)).filter(Boolean);
          return asked.length || !kind.required ? asked : kind.options.slice(0, 1);
        }),
      ];
    },

    /* The request, once the switches rest. */
    ask: async (...given) => {
      const page = given.pop();
      const mine = ++latest;
      const entry = lib.address.shownEntry();
      await new Promise((resolve) => setTimeout(resolve, REST_MS));
      if (mine !== latest || !page) return clientside.no_update;
      const changes = changesOf(page, given);
      // Without a history entry: going back should not step through every attempt.
      lib.address.keep(entry, { trace: page.trace, change: changes.length ? changes : [""] });
      return { trace: page.trace, device: page.device, changes };
    },
  };
})();
