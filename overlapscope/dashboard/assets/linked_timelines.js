/* Two timelines above one another, each with its own zero: what moves one moves the other. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  let mounted = [];
  // What the page shows now: an answer for what it showed before mounts nothing.
  let latest = null;

  const mountSide = async (side, data, linked) => {
    const { view, palette } = data;
    const lib = window.overlapscope;
    const source = lib.serverSource(lib.basePath(), side.trace);
    const model = await source.model();
    const element = document.getElementById(side.element);
    if (!element || latest !== data) return null;
    const timeline = lib.mountTimeline(element, { model, source, palette, offset: side.offset, view, onView: linked });
    mounted.push(timeline);
    return timeline;
  };

  clientside.overlapscope_compare = {
    mount: async (data) => {
      mounted.forEach((timeline) => timeline.destroy());
      mounted = [];
      latest = data;
      if (!data) return "";
      const timelines = [];
      const others = (number) => (start, end) =>
        timelines.forEach((one, at) => at !== number && one && one.setView(start, end, { silent: true }));
      const made = await Promise.all(data.sides.map((side, number) => mountSide(side, data, others(number))));
      timelines.push(...made);
      if (latest !== data) return "";
      // Each began as near to the view as its own trace goes; together they may go beyond it.
      mounted.forEach((timeline) => timeline.setView(data.view.start, data.view.end, { silent: true }));
      return "mounted";
    },
  };
})();
