/* The page's address: the app's path, the trace, state that parts of the page keep in it, and links that include the
   visible span. Nothing else writes the address, except links that Dash follows. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  // Query parameters that belong to a single trace.
  const OF_ONE_TRACE = ["device", "from", "to", "sel", "op", "change"];
  const EXPORTS = { "export-html": "export.html", "export-annotated": "annotated", "export-perfetto": "annotated" };
  // Pending changes of the query, by the history entry they belong to.
  const pending = new Map();
  let timer = 0;
  let entries = 0;
  // State that the server reports, {trace, device, program, page}. A different choice in the header was made by the user.
  let header = {};

  /* The app's path, with a slash at its end. */
  lib.basePath = () => {
    const config = document.getElementById("_dash-config");
    return (config && JSON.parse(config.textContent).requests_pathname_prefix) || "/";
  };

  /* Follow a link without a reload, as a click on an anchor does; links for a new tab are left to the browser. */
  lib.follow = (event, href) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    clientside.set_props("url", { href });
  };

  /* The mark of the current history entry. It stays with the entry, even if the address changes. */
  const shownEntry = () => {
    const { state } = window.history;
    if (state && state.entry) return state.entry;
    entries += 1;
    const entry = `${performance.timeOrigin} ${entries}`;
    window.history.replaceState({ ...state, entry }, "");
    return entry;
  };

  // Slashes and colons need no escape in a query, and a trace's id is a path.
  const pathOf = ({ pathname, search }) => pathname + search.replaceAll("%2F", "/").replaceAll("%3A", ":");
  const replace = (url) => window.history.replaceState(window.history.state, "", pathOf(url) + url.hash);

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

    /* The address with all state kept in it. */
    now: () => {
      write();
      return new URL(window.location.href);
    },

    /* Keep values in the query of a history entry: null for none, a list for several. They are written after `restMs`
       without further changes, since browsers allow few writes per second. An entry that was left gets them when it is
       shown again, so that they never end up in the address of another place. */
    keep: (entry, changes, restMs = 0) => {
      pending.set(entry, { ...pending.get(entry), ...changes });
      clearTimeout(timer);
      if (restMs) timer = setTimeout(write, restMs);
      else write();
    },
  };

  /* An address without a trace shows the first; add its id, so that the address can be shared. */
  const complete = ({ trace, page }) => {
    const url = lib.address.now();
    if (!trace || url.searchParams.has("trace")) return;
    if (url.pathname === lib.basePath()) url.pathname += page;
    // Other parameters may apply to any trace, except these.
    const rest = [...url.searchParams].filter(([name]) => !["token", "device", "from", "to"].includes(name));
    url.search = `?${new URLSearchParams([["trace", trace], ...rest])}`;
    replace(url);
  };

  clientside.overlapscope_address = {
    /* Show the server's state in the header. As an output of the callback that shows a page, Dash would delay the
       user's choice until a loading page is there, and then overwrite it. */
    header: (values) => {
      header = values;
      complete(header);
      for (const name of ["trace", "device", "program"]) clientside.set_props(`${name}-select`, { value: header[name] });
      return clientside.no_update;
    },

    /* The same page of another trace; from the list of all, its overview. */
    trace: (trace) => {
      if (!trace || trace === header.trace) return clientside.no_update;
      const url = lib.address.now();
      OF_ONE_TRACE.forEach((name) => url.searchParams.delete(name));
      url.searchParams.set("trace", trace);
      if (header.page === "traces") url.pathname = `${lib.basePath()}overview`;
      return pathOf(url);
    },

    /* The same place on another device of the trace. */
    device: (device) => {
      if (!device || device === header.device) return clientside.no_update;
      const url = lib.address.now();
      url.searchParams.set("device", device);
      return pathOf(url);
    },

    /* The place to show in the other program. */
    program: (program) => {
      if (!program || program === header.program) return clientside.no_update;
      const { pathname, search } = lib.address.now();
      return { pathname, search };
    },

    /* Follow an answer's address, unless the user has gone elsewhere since the request. */
    lead: (lead, pathname, search) =>
      lead && lead.pathname === pathname && lead.search === search ? lead.href : clientside.no_update,
  };

  // The timeline may have moved since the menu was built.
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
