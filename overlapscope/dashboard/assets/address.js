/* The page's address: where the app lives, the trace that it shows, and links that take the span in view along. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  const EXPORTS = { "export-html": "export.html", "export-annotated": "annotated" };

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

  clientside.overlapscope_address = {
    /* An address without a trace shows the first one; from then on it says which, so that it can be shared. */
    complete: (trace) => {
      const url = new URL(window.location.href);
      if (trace && !url.searchParams.has("trace")) {
        if (url.pathname === lib.basePath()) url.pathname += "overview";
        // What else it says may be of any trace, but for these.
        const rest = [...url.searchParams].filter(([name]) => !["token", "device", "from", "to"].includes(name));
        url.search = `?${new URLSearchParams([["trace", trace], ...rest])}`.replaceAll("%2F", "/");
        window.history.replaceState(window.history.state, "", url);
      }
      return clientside.no_update;
    },

    /* The same place on another device of the trace; the first is meant where the address names none. */
    device: (device, choices) => {
      const url = new URL(window.location.href);
      const known = (choices || []).map((choice) => choice.value);
      const asked = url.searchParams.get("device");
      if (!known.includes(device) || device === (known.includes(asked) ? asked : known[0])) return clientside.no_update;
      url.searchParams.set("device", device);
      return url.pathname + url.search.replaceAll("%2F", "/").replaceAll("%3A", ":");
    },

    /* The place whose other program is to be shown, once the switch says another than the address does. */
    program: (program) => {
      const { pathname, search } = window.location;
      const shown = new URLSearchParams(search).get("of") === "recorded" ? "recorded" : "plain";
      return !program || program === shown ? clientside.no_update : { pathname, search };
    },
  };

  // The timeline may have moved since the menu was made, and says so in the address.
  document.addEventListener(
    "click",
    (event) => {
      if (!event.target.closest(".shell-export")) return;
      for (const [id, route] of Object.entries(EXPORTS)) {
        clientside.set_props(id, { href: `${lib.basePath()}api/${route}${window.location.search}` });
      }
    },
    true,
  );
})();
