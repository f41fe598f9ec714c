/* Two timelines above one another, each with its own zero: what moves one moves the other. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  let mounted = [];

  const mountSide = async (side, { view, palette }, linked) => {
    const lib = window.overlapscope;
    const source = lib.serverSource(lib.basePath(), side.trace);
    const model = await source.model();
    const element = document.getElementById(side.element);
    if (!element) return null;
    return lib.mountTimeline(element, { model, source, palette, offset: side.offset, view, onView: linked });
  };

  clientside.overlapscope_compare = {
    mount: async (data) => {
      mounted.forEach((timeline) => timeline.destroy());
      mounted = [];
      if (!data) return "";
      const timelines = [];
      const others = (number) => (start, end) =>
        timelines.forEach((one, at) => at !== number && one && one.setView(start, end, { silent: true }));
      const made = await Promise.all(data.sides.map((side, number) => mountSide(side, data, others(number))));
      timelines.push(...made);
      mounted = made.filter(Boolean);
      // Each began as near to the view as its own trace goes; together they may go beyond it.
      mounted.forEach((timeline) => timeline.setView(data.view.start, data.view.end, { silent: true }));
      return "mounted";
    },
  };
})();
