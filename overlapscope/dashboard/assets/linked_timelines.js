/* Timelines above one another, each with its own zero: what moves one moves the others. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  // {key, element, timeline} of each side that is shown.
  let mounted = [];
  // What the page shows now: an answer for what it showed before mounts nothing.
  let latest = null;

  const drop = (gone) => {
    mounted = mounted.filter((one) => one !== gone);
    gone.timeline.destroy();
  };

  /* A side stays as it is where it shows the same in the same place. */
  const mountSide = async (side, { view, palette }, current) => {
    const key = JSON.stringify([side, palette]);
    const here = (one) => one.element === document.getElementById(side.element);
    if (mounted.some((one) => one.key === key && here(one))) return;
    const lib = window.overlapscope;
    const source = lib.serverSource(lib.basePath(), side.trace, side.of);
    const model = await source.model();
    const element = document.getElementById(side.element);
    if (!element || !current()) return;
    mounted.filter(here).forEach(drop);
    const made = { key, element };
    const onView = (start, end) =>
      mounted.forEach((one) => one !== made && one.timeline.setView(start, end, { silent: true }));
    made.timeline = lib.mountTimeline(element, { model, source, palette, offset: side.offset, view, onView });
    if (side.device !== undefined) made.timeline.showDevice(side.device);
    mounted.push(made);
  };

  clientside.overlapscope_linked = {
    /* `sides`: [{element, trace, of, offset, device}], `of` being what a source asks for besides the trace, `device` the
       one to scroll to. The view is `view`, or, where the first side was shown already, as it was left. */
    mount: async (data) => {
      latest = data;
      const stay = mounted.filter(({ element }) => element.isConnected);
      mounted.filter((one) => !stay.includes(one)).forEach(drop);
      if (!data) {
        stay.forEach(drop);
        return "";
      }
      await Promise.all(data.sides.map((side) => mountSide(side, data, () => latest === data)));
      if (latest !== data) return "";
      const first = mounted.find(({ element }) => element.id === data.sides[0].element);
      const view = stay.includes(first) ? first.timeline.getView() : data.view;
      // Each began as near to the view as its own trace goes; together they may go beyond it.
      mounted.forEach(({ timeline }) => timeline.setView(view.start, view.end, { silent: true }));
      return "mounted";
    },
  };
})();
