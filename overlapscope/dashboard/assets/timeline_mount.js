/* Connects the timeline to the dashboard's page: mounts it once the page's config is there, keeps the URL current, and
   passes the selected span to the store whose callback shows its figures. No other timeline file depends on Dash. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const REST_MS = 200;
  // {config, element, entry, handle} of the visible timeline.
  let mounted = null;

  const pair = (text, separator) => {
    const parts = (text || "").split(separator).map(Number);
    return parts.length === 2 && text && parts.every(Number.isFinite) ? parts : null;
  };

  const span = (text, separator) => {
    const times = pair(text, separator);
    return times && times[0] < times[1] ? { start: times[0], end: times[1] } : null;
  };

  /* The state in an address, which may be newer than the page's config: the visible span, the selected span of `device`
     or of the device it names (`START-END:DEVICE`), and the chosen op. */
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

  /* Whether an address belongs to the timeline of a config. */
  const isPlaceOf = ({ base, trace, of }, { pathname, searchParams }) =>
    pathname.startsWith(`${base}timeline`) &&
    (searchParams.get("trace") || trace) === trace &&
    searchParams.get("of") === of;

  lib.mountDashTimeline = (config) => {
    const element = document.getElementById("timeline");
    const left = mounted;
    if (left) left.handle.destroy();
    mounted = null;
    if (!config || !element) return;
    const url = lib.address.now();
    // Dash may be about to replace a timeline whose page was left; its state is not kept.
    const entry = isPlaceOf(config, url) ? lib.address.shownEntry() : null;
    // The same place again, with other colours or after another page.
    const arrangement = left && left.entry === entry && left.config.trace === config.trace ? left.handle.arrangement() : null;
    const place = placeIn(url, config.device);
    // An address that names an op or a selection shows that.
    if (!place.view && !place.op && !place.selection) place.view = config.view;
    const keep = (changes) => entry && lib.address.keep(entry, { trace: config.trace, ...changes }, REST_MS);
    const handle = lib.mountTimeline(element, {
      model: config.model,
      source: lib.serverSource(config.base, config.trace, config.of ? { of: config.of } : {}),
      palette: config.palette,
      details: document.getElementById("timeline-details"),
      ...place,
      fill: true,
      arrangement,
      onView: (start, end) => keep({ from: start, to: end }),
      onOp: (op) => keep({ op: op && `${op.lane}:${op.row}` }),
      onSelect: (selection) => {
        keep({ sel: selection && selectionText(selection, config.device) });
        window.dash_clientside.set_props("timeline-selection", { data: selection && { trace: config.trace, ...selection } });
      },
    });
    if (config.device !== null && !arrangement) handle.showDevice(config.device);
    mounted = { config, element, entry, handle };
  };

  // Go to another place in the visible timeline. Dash ignores an address that equals its own copy, which lacks the
  // state kept there.
  for (const moved of ["popstate", "_dashprivate_pushstate"]) {
    window.addEventListener(moved, () => {
      const url = lib.address.now();
      if (mounted && mounted.element.isConnected && isPlaceOf(mounted.config, url)) lib.mountDashTimeline(mounted.config);
    });
  }
})();
