/* `overlapscope.mountTimeline`, the interface for pages. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});

  /* Draws a timeline into an element, which it empties; returns a handle.

     model      answer of /api/timeline/model
     source     overlapscope.serverSource(base, trace, of) or overlapscope.staticSource(tiles, model.categories, worst)
     palette    {category or "background", "panel", "text", "muted", "grid", "accent": "#rrggbb"}
     offset     the instant that counts as zero; every time given or told is relative to it (0)
     view       {start, end} to begin with (the whole trace)
     selection  {start, end, device?} to begin with
     op         {lane, row} to begin with
     arrangement  how the lanes of a timeline that this one replaces were folded and scrolled
     fill       whether lanes grow until the timeline is as high as its style allows
     bare       whether the lanes, all of one group, have no row for it
     details    an element elsewhere for what is known of the chosen op
     onView(start, end), onSelect({start, end, device} or null), onOp({lane, row} or null) */
  lib.mountTimeline = (element, options) => {
    const timeline = new lib.Timeline(element, options);
    if (options.selection && options.onSelect) lib.select(timeline, { ...timeline.selection, device: options.selection.device });
    if (options.op) lib.goTo(timeline, options.op.lane, options.op.row, options.view ? { span: null } : {});
    return {
      /* `silent`: don't call `onView`, as for a linked timeline. */
      setView: (start, end, { silent = false } = {}) =>
        lib.setView(timeline, timeline.fromCaller({ start, end }), { silent }),
      select: (selection) =>
        lib.select(timeline, selection && { ...timeline.fromCaller(selection), device: selection.device }),
      arrangement: () => ({ folded: [...timeline.folded], scroll: timeline.scroll }),
      showDevice: (device) => lib.showDevice(timeline, device),
      setPalette: (palette) => timeline.setPalette(palette),
      destroy: () => timeline.destroy(),
    };
  };
})();
