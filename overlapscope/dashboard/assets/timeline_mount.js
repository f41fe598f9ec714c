/* Ties the timeline to the dashboard's page: mounts it once the page's config is there, keeps the URL current, and
hands the selected span to the store whose callback shows its figures. The only timeline file that knows of Dash. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const URL_MS = 200;
  let mounted = null;

  const pair = (text, separator) => {
    const parts = (text || "").split(separator).map(Number);
    return parts.length === 2 && text && parts.every(Number.isFinite) ? parts : null;
  };

  const span = (text, separator) => {
    const times = pair(text, separator);
    return times && times[0] < times[1] ? { start: times[0], end: times[1] } : null;
  };

  /* What the URL says now, where it may have been changed since the page's config was made: the span in view, the
     selected one, of `device` unless it names another (`START-END:DEVICE`), and the chosen op. */
  const fromUrl = (device) => {
    const query = new URLSearchParams(window.location.search);
    const view = span(`${query.get("from")} ${query.get("to")}`, " ");
    const [times, other] = (query.get("sel") || "").split(":");
    const selection = span(times, "-");
    const op = pair(query.get("op"), ":");
    return {
      view,
      selection: selection && { ...selection, device: /^\d+$/.test(other) ? Number(other) : device },
      op: op && { lane: op[0], row: op[1] },
    };
  };

  const selectionText = ({ start, end, device }, shown) =>
    `${start}-${end}${device === null || device === shown ? "" : `:${device}`}`;

  /* Writes parts of the query, null ones out of it; several changes at once make one entry, none once the page is left:
     its parts stay for a moment after the URL has changed. */
  const keeper = ({ trace, of }) => {
    let timer = 0;
    let changes = {};
    const { pathname } = window.location;
    const write = () => {
      const url = new URL(window.location.href);
      if (url.pathname !== pathname || (url.searchParams.get("trace") || trace) !== trace) return;
      if (url.searchParams.get("of") !== of) return;
      url.searchParams.set("trace", trace);
      for (const [name, value] of Object.entries(changes)) {
        if (value === null) url.searchParams.delete(name);
        else url.searchParams.set(name, value);
      }
      changes = {};
      // Slashes and colons of a query need no escape, and a trace's id is a path.
      url.search = url.search.replaceAll("%2F", "/").replaceAll("%3A", ":");
      window.history.replaceState(window.history.state, "", url);
    };
    return {
      set: (more) => {
        Object.assign(changes, more);
        clearTimeout(timer);
        timer = setTimeout(write, URL_MS);
      },
      stop: () => clearTimeout(timer),
    };
  };

  lib.mountDashTimeline = (config) => {
    const element = document.getElementById("timeline");
    if (mounted) mounted.destroy();
    mounted = null;
    if (!config || !element) return;
    const url = keeper(config);
    const handle = lib.mountTimeline(element, {
      model: config.model,
      source: lib.serverSource(config.base, config.trace, config.of ? { of: config.of } : {}),
      palette: config.palette,
      details: document.getElementById("timeline-details"),
      ...fromUrl(config.device),
      onView: (start, end) => url.set({ from: start, to: end }),
      onOp: (op) => url.set({ op: op && `${op.lane}:${op.row}` }),
      onSelect: (selection) => {
        url.set({ sel: selection && selectionText(selection, config.device) });
        window.dash_clientside.set_props("timeline-selection", { data: selection && { trace: config.trace, ...selection } });
      },
    });
    if (config.device !== null) handle.showDevice(config.device);
    // Left behind with its page, a timeline must not write into the next one's URL.
    mounted = {
      destroy: () => {
        url.stop();
        handle.destroy();
      },
    };
  };
})();
