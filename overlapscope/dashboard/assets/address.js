/* The page's address: where the app lives, the trace that it shows, what parts of the page keep in it, and links that
take the span in view along. Nothing else writes the address, but for links that Dash follows. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  // What the address says of one trace, and would be wrong of another.
  const OF_ONE_TRACE = ["device", "from", "to", "sel", "op", "change"];
  const EXPORTS = { "export-html": "export.html", "export-annotated": "annotated" };
  // Changes of the query that are not written yet, by the entry of the browser's history to which they belong.
  const pending = new Map();
  let timer = 0;
  let entries = 0;
  // What the server says is shown, {trace, device, program}: a choice in the header that differs is the user's.
  let header = {};

  /* The path that the app lives under, with a slash at its end. */
  lib.basePath = () => {
    const config = document.getElementById("_dash-config");
    return (config && JSON.parse(config.textContent).requests_pathname_prefix) || "/";
  };

  /* What a click on a plain anchor does, so that Dash follows it without a reload, and a new tab stays one. */
  lib.follow = (event, href) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    clientside.set_props("url", { href });
  };

  /* The mark of the history's entry that is shown. It stays with the entry, whose address may change. */
  const shownEntry = () => {
    const { state } = window.history;
    if (state && state.entry) return state.entry;
    entries += 1;
    const entry = `${performance.timeOrigin} ${entries}`;
    window.history.replaceState({ ...state, entry }, "");
    return entry;
  };

  // Slashes and colons of a query need no escape, and a trace's id is a path.
  const pathOf = ({ pathname, search }) => pathname + search.replaceAll("%2F", "/").replaceAll("%3A", ":");
  const replace = (url) => window.history.replaceState(window.history.state, "", pathOf(url));

  const write = () => {
    clearTimeout(timer);
    const entry = shownEntry();
    const changes = pending.get(entry);
    if (!changes) return;
    pending.delete(entry);
    const url = new URL(window.location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (Array.isArray(value)) {
        url.searchParams.delete(name);
        for (const one of value) url.searchParams.append(name, one);
      } else if (value === null) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    replace(url);
  };

  lib.address = {
    shownEntry,

    /* The address, with everything that is kept in it. */
    now: () => {
      write();
      return new URL(window.location.href);
    },

    /* Keeps values in the query of an entry: null for none, a list for several. They are written after `restMs` without
       further changes, since browsers allow few writes a second. An entry that has been left gets them once it is shown
       again: they never end up in the address of another place. */
    keep: (entry, changes, restMs = 0) => {
      pending.set(entry, { ...pending.get(entry), ...changes });
      clearTimeout(timer);
      if (restMs) timer = setTimeout(write, restMs);
      else write();
    },
  };

  /* An address without a trace shows the first one; from then on it says which, so that it can be shared. */
  const complete = (trace) => {
    const url = lib.address.now();
    if (!trace || url.searchParams.has("trace")) return;
    if (url.pathname === lib.basePath()) url.pathname += "overview";
    // What else it says may be of any trace, but for these.
    const rest = [...url.searchParams].filter(([name]) => !["token", "device", "from", "to"].includes(name));
    url.search = `?${new URLSearchParams([["trace", trace], ...rest])}`;
    replace(url);
  };

  clientside.overlapscope_address = {
    /* Shows in the header what the server says is shown. Were that the output of the callback that shows a page, Dash
       would have a choice wait for a page that is on its way, and then overwrite it. */
    header: (values) => {
      header = values;
      complete(header.trace);
      for (const [name, value] of Object.entries(header)) clientside.set_props(`${name}-select`, { value });
      return clientside.no_update;
    },

    /* The same page of another trace. */
    trace: (trace) => {
      if (!trace || trace === header.trace) return clientside.no_update;
      const url = lib.address.now();
      OF_ONE_TRACE.forEach((name) => url.searchParams.delete(name));
      url.searchParams.set("trace", trace);
      return pathOf(url);
    },

    /* The same place on another device of the trace. */
    device: (device) => {
      if (!device || device === header.device) return clientside.no_update;
      const url = lib.address.now();
      url.searchParams.set("device", device);
      return pathOf(url);
    },

    /* The place whose other program is to be shown. */
    program: (program) => {
      if (!program || program === header.program) return clientside.no_update;
      const { pathname, search } = lib.address.now();
      return { pathname, search };
    },

    /* Where an answer leads, unless the user has gone elsewhere since it was asked for. */
    lead: (lead, pathname, search) =>
      lead && lead.pathname === pathname && lead.search === search ? lead.href : clientside.no_update,
  };

  // The timeline may have moved since the menu was made.
  document.addEventListener(
    "click",
    (event) => {
      if (!event.target.closest(".shell-export")) return;
      const { search } = lib.address.now();
      for (const [id, route] of Object.entries(EXPORTS)) {
        clientside.set_props(id, { href: `${lib.basePath()}api/${route}${search}` });
      }
    },
    true,
  );
})();
