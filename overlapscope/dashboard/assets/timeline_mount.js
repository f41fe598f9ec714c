/* Ties the timeline to the dashboard's page: mounts it once the page's config is there, keeps the URL current, and
hands the selected span to the store whose callback shows its figures. The only timeline file that knows of Dash. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const REST_MS = 200;
  // {config, element, handle} of the timeline that is shown.
  let mounted = null;

  const pair = (text, separator) => {
    const parts = (text || "").split(separator).map(Number);
    return parts.length === 2 && text && parts.every(Number.isFinite) ? parts : null;
  };

  const span = (text, separator) => {
    const times = pair(text, separator);
    return times && times[0] < times[1] ? { start: times[0], end: times[1] } : null;
  };

  /* What an address says, which may have been changed since the page's config was made: the span in view, the selected
     one, of `device` unless it names another (`START-END:DEVICE`), and the chosen op. */
  const placeIn = ({ searchParams: query }, device) => {
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

  /* Whether an address is of a place in the timeline of a config. */
  const isPlaceOf = ({ base, trace, of }, { pathname, searchParams }) =>
    pathname.startsWith(`${base}timeline`) &&
    (searchParams.get("trace") || trace) === trace &&
    searchParams.get("of") === of;

  lib.mountDashTimeline = (config) => {
    const element = document.getElementById("timeline");
    // In the other colours, say, or elsewhere in it.
    const stays = mounted && config && ["trace", "of", "device"].every((name) => mounted.config[name] === config[name]);
    const arrangement = stays ? mounted.handle.arrangement() : null;
    if (mounted) mounted.handle.destroy();
    mounted = null;
    if (!config || !element) return;
    const url = lib.address.now();
    // Dash may be about to replace a timeline whose page has been left: nothing is kept of that.
    const entry = isPlaceOf(config, url) ? lib.address.shownEntry() : null;
    const keep = (changes) => entry && lib.address.keep(entry, { trace: config.trace, ...changes }, REST_MS);
    const handle = lib.mountTimeline(element, {
      model: config.model,
      source: lib.serverSource(config.base, config.trace, config.of ? { of: config.of } : {}),
      palette: config.palette,
      details: document.getElementById("timeline-details"),
      ...placeIn(url, config.device),
      arrangement,
      onView: (start, end) => keep({ from: start, to: end }),
      onOp: (op) => keep({ op: op && `${op.lane}:${op.row}` }),
      onSelect: (selection) => {
        keep({ sel: selection && selectionText(selection, config.device) });
        window.dash_clientside.set_props("timeline-selection", { data: selection && { trace: config.trace, ...selection } });
      },
    });
    if (config.device !== null && !arrangement) handle.showDevice(config.device);
    mounted = { config, element, handle };
  };

  // To another place in the timeline that is shown. Dash does not notice one that is in its own idea of the address,
  // which lacks what is kept there.
  for (const moved of ["popstate", "_dashprivate_pushstate"]) {
    window.addEventListener(moved, () => {
      const url = lib.address.now();
      if (mounted && mounted.element.isConnected && isPlaceOf(mounted.config, url)) lib.mountDashTimeline(mounted.config);
    });
  }
})();
