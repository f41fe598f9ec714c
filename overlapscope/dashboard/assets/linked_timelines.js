/* Timelines, each with its own zero; several above one another move together. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  // {key, element, timeline} of each visible side.
  let mounted = [];
  // Number of the current display; answers for an earlier display are ignored.
  let latest = null;
  // The common view of all sides, including sides that are still loading, and the data they came with.
  let view = null;
  let viewOf = null;

  const drop = (gone) => {
    mounted = mounted.filter((one) => one !== gone);
    gone.timeline.destroy();
  };

  const keyOf = (side, palette) => JSON.stringify([side, palette]);
  const isAt = (element) => (one) => one.element.id === element && one.element.isConnected;

  /* A key for the same timelines in any colours. */
  const isAlike = (before, after) =>
    JSON.stringify({ ...before, palette: null }) === JSON.stringify({ ...after, palette: null });

  /* Keep a side that shows the same in the same place. */
  const mountSide = async (side, palette, current) => {
    const key = keyOf(side, palette);
    if (mounted.filter(isAt(side.element)).some((one) => one.key === key)) return;
    const lib = window.overlapscope;
    const source = lib.serverSource(lib.basePath(), side.trace, side.of);
    const whole = await source.model();
    const isShown = (lane) => lane.device === side.device && side.kinds.includes(lane.kind);
    const model = side.kinds ? { ...whole, lanes: whole.lanes.filter(isShown) } : whole;
    const element = document.getElementById(side.element);
    if (!element || !current()) return;
    mounted.filter(isAt(side.element)).forEach(drop);
    const made = { key, element };
    const onView = (start, end) => {
      view = { start, end };
      mounted.forEach((one) => one !== made && one.timeline.setView(start, end, { silent: true }));
    };
    made.timeline = lib.mountTimeline(element, { model, source, palette, offset: side.offset, view, onView, bare: Boolean(side.kinds) });
    if (side.device !== undefined) made.timeline.showDevice(side.device);
    mounted.push(made);
  };

  clientside.overlapscope_linked = {
    /* `sides`: [{element, trace, of, offset, device, kinds}], where `of` has further parameters for the source, `device`
       is the device to scroll to, and `kinds` those of its lanes to show, all by default. The view is `view`, unless the first side or all sides were visible already; then it
       stays. */
    mount: async (data) => {
      latest = data;
      mounted.filter(({ element }) => !data || !element.isConnected).forEach(drop);
      if (!data) return "";
      const [first] = data.sides;
      const stays = mounted.filter(isAt(first.element)).some((one) => one.key === keyOf(first, data.palette));
      if (!stays && !isAlike(viewOf, data)) view = data.view;
      viewOf = data;
      await Promise.all(data.sides.map((side) => mountSide(side, data.palette, () => latest === data)));
      if (latest !== data) return "";
      // Each timeline starts within its own trace; together they may reach beyond it.
      mounted.forEach(({ timeline }) => timeline.setView(view.start, view.end, { silent: true }));
      return "mounted";
    },
  };
})();
