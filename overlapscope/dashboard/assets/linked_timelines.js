/* Timelines above one another, each with its own zero: what moves one moves the others. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  // {key, element, timeline} of each side that is shown.
  let mounted = [];
  // What the page shows now: an answer for what it showed before mounts nothing.
  let latest = null;
  // What all sides show, those that are still on their way, too, and the data with which they came.
  let view = null;
  let viewOf = null;

  const drop = (gone) => {
    mounted = mounted.filter((one) => one !== gone);
    gone.timeline.destroy();
  };

  const keyOf = (side, palette) => JSON.stringify([side, palette]);
  const isAt = (element) => (one) => one.element.id === element && one.element.isConnected;

  /* The same timelines, in whichever colours. */
  const isAlike = (before, after) =>
    JSON.stringify({ ...before, palette: null }) === JSON.stringify({ ...after, palette: null });

  /* A side stays as it is where it shows the same in the same place. */
  const mountSide = async (side, palette, current) => {
    const key = keyOf(side, palette);
    if (mounted.filter(isAt(side.element)).some((one) => one.key === key)) return;
    const lib = window.overlapscope;
    const source = lib.serverSource(lib.basePath(), side.trace, side.of);
    const model = await source.model();
    const element = document.getElementById(side.element);
    if (!element || !current()) return;
    mounted.filter(isAt(side.element)).forEach(drop);
    const made = { key, element };
    const onView = (start, end) => {
      view = { start, end };
      mounted.forEach((one) => one !== made && one.timeline.setView(start, end, { silent: true }));
    };
    made.timeline = lib.mountTimeline(element, { model, source, palette, offset: side.offset, view, onView });
    if (side.device !== undefined) made.timeline.showDevice(side.device);
    mounted.push(made);
  };

  clientside.overlapscope_linked = {
    /* `sides`: [{element, trace, of, offset, device}], `of` being what a source asks for besides the trace, `device` the
       one to scroll to. The view is `view`, or, where the first side or the whole was shown already, as it was left. */
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
      // Each began as near to the view as its own trace goes; together they may go beyond it.
      mounted.forEach(({ timeline }) => timeline.setView(view.start, view.end, { silent: true }));
      return "mounted";
    },
  };
})();
