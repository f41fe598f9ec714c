/* Draws a frame of a timeline: overview strip, ruler, lanes, labels, selection, arrows. Reads the timeline's state
   without changing it. All coordinates are in device pixels; a pixel of the page is `unit` of them. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const FONT = "system-ui, sans-serif";
  lib.OVERVIEW = 24;
  lib.RULER = 26;
  lib.TOP = lib.OVERVIEW + lib.RULER;

  lib.drawFrame = (timeline) => {
    const { context, brushes, size } = timeline;
    const unit = brushes.unit;
    const ticks = lib.ticks(
      timeline.view.start - timeline.offset,
      timeline.view.end - timeline.offset,
      size.lanes / 110,
    );
    ticks.at = ticks.at.map((ns) => ns + timeline.offset);
    const frame = {
      unit,
      left: size.gutter * unit,
      top: lib.TOP * unit,
      width: Math.round(size.lanes * unit),
      height: Math.round((size.height - lib.TOP) * unit),
      x: (ns) => ((ns - timeline.view.start) / (timeline.view.end - timeline.view.start)) * size.lanes * unit,
      visible: timeline.visibleRows(),
    };
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.textBaseline = "middle";
    drawLanes(timeline, frame, ticks);
    clipped(context, frame.left, frame.top, frame.width, frame.height, () => {
      drawSelection(timeline, frame);
      drawMarks(timeline, frame);
      lib.drawArrows(timeline, frame);
    });
    drawGutter(timeline, frame);
    drawRuler(timeline, frame, ticks);
    drawOverview(timeline, frame);
  };

  /* Run `draw` with the origin at the area's corner, clipped to the area. */
  const clipped = (context, x, y, width, height, draw) => {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.translate(x, y);
    draw();
    context.restore();
  };

  const drawLanes = (timeline, frame, ticks) => {
    const { context, brushes } = timeline;
    const image = timeline.imageOf(frame.width, frame.height);
    if (!image) return;
    const records = (lane) => timeline.recordsOf(lane);
    lib.paintRows(image, frame.visible, records, timeline.view, brushes, ticks.at);
    context.putImageData(image.data, frame.left, frame.top);
    context.font = `${11 * frame.unit}px ${FONT}`;
    clipped(context, frame.left, frame.top, frame.width, frame.height, () => {
      for (const { row, y } of frame.visible) {
        if (row.lane) lib.drawOps(context, row, y, records(row.lane.id), timeline.view, brushes, frame.width);
      }
    });
  };

  const drawSelection = ({ context, brushes, selection }, frame) => {
    if (!selection) return;
    const left = frame.x(selection.start);
    const right = frame.x(selection.end);
    context.fillStyle = brushes.css.accent;
    context.globalAlpha = 0.1;
    context.fillRect(left, 0, right - left, frame.height);
    context.globalAlpha = 1;
    context.fillRect(Math.round(left), 0, frame.unit, frame.height);
    context.fillRect(Math.round(right) - frame.unit, 0, frame.unit, frame.height);
  };

  /* Outline the op under the mouse and the chosen op. */
  const drawMarks = (timeline, frame) => {
    const { context, brushes, hovered, chosen } = timeline;
    for (const [op, thick] of [
      [hovered, 1],
      [chosen, 2.5],
    ]) {
      const place = op && frame.visible.find(({ row }) => row.lane && row.lane.id === op.lane);
      if (!place) continue;
      const left = Math.max(-8, frame.x(op.start));
      const right = Math.min(frame.width + 8, frame.x(op.end));
      if (right < -4 || left > frame.width + 4) continue;
      const wide = Math.max(right - left, 3 * frame.unit);
      const y = (place.y + 1) * frame.unit;
      const height = (place.row.height - 2) * frame.unit;
      context.strokeStyle = brushes.css.paper;
      context.lineWidth = (thick + 2) * frame.unit;
      context.strokeRect(left, y, wide, height);
      context.strokeStyle = brushes.css.text;
      context.lineWidth = thick * frame.unit;
      context.strokeRect(left, y, wide, height);
    }
  };

  const drawGutter = (timeline, frame) => {
    const { context, brushes } = timeline;
    const { unit, left } = frame;
    context.fillStyle = brushes.css.paper;
    context.fillRect(0, frame.top, left, frame.height);
    clipped(context, 0, frame.top, left, frame.height, () => {
      for (const { row, y } of frame.visible) {
        const middle = (y + row.height / 2) * unit;
        if (row.header) {
          context.fillStyle = brushes.css.raised;
          context.fillRect(0, y * unit, left, row.height * unit);
          context.fillStyle = brushes.css.text;
          drawCaret(context, 10 * unit, middle, unit, row.folded);
          context.font = `600 ${12 * unit}px ${FONT}`;
          context.fillText(lib.fitText(context, row.group, left - 24 * unit), 20 * unit, middle);
        } else if (row.lane.label) {
          const strong = row.lane.kind === "overlap";
          context.font = `${strong ? "600 " : ""}${12 * unit}px ${FONT}`;
          context.fillStyle = strong ? brushes.css.text : brushes.css.muted;
          context.fillText(lib.fitText(context, row.lane.label, left - 24 * unit), 20 * unit, middle);
        }
      }
      context.fillStyle = brushes.css.grid;
      context.fillRect(left - unit, 0, unit, frame.height);
    });
  };

  const drawCaret = (context, x, y, unit, folded) => {
    const r = 4 * unit;
    context.beginPath();
    if (folded) context.moveTo(x - r / 2, y - r), context.lineTo(x + r / 2, y), context.lineTo(x - r / 2, y + r);
    else context.moveTo(x - r, y - r / 2), context.lineTo(x, y + r / 2), context.lineTo(x + r, y - r / 2);
    context.lineWidth = 1.6 * unit;
    context.strokeStyle = context.fillStyle;
    context.stroke();
  };

  const drawRuler = (timeline, frame, ticks) => {
    const { context, brushes, selection } = timeline;
    const { unit, left } = frame;
    const y = lib.OVERVIEW * unit;
    const height = lib.RULER * unit;
    context.fillStyle = brushes.css.paper;
    context.fillRect(0, y, left + frame.width, height);
    context.font = `${11 * unit}px ${FONT}`;
    context.fillStyle = brushes.css.muted;
    if (ticks.baseText) context.fillText(lib.fitText(context, `${ticks.baseText}  +`, left - 14 * unit), 8 * unit, y + height / 2);
    clipped(context, left, y, frame.width, height, () => {
      ticks.at.forEach((at, i) => {
        const x = Math.round(frame.x(at));
        context.fillStyle = brushes.css.grid;
        context.fillRect(x, 0, unit, height);
        context.fillStyle = brushes.css.muted;
        context.fillText(ticks.text[i], x + 4 * unit, height / 2);
      });
      if (selection) drawLength(context, brushes, selection, frame, height);
    });
    context.fillStyle = brushes.css.grid;
    context.fillRect(0, y + height - unit, left + frame.width, unit);
  };

  /* Draw the selected span's length as a bar on the ruler. */
  const drawLength = (context, brushes, selection, frame, height) => {
    const unit = frame.unit;
    const from = frame.x(selection.start);
    const to = frame.x(selection.end);
    const text = lib.duration(selection.end - selection.start);
    context.font = `600 ${11 * unit}px ${FONT}`;
    const wide = context.measureText(text).width;
    context.fillStyle = brushes.css.accent;
    context.fillRect(from, height - 4 * unit, to - from, 4 * unit);
    const middle = (Math.max(0, from) + Math.min(frame.width, to)) / 2;
    const x = Math.max(3 * unit, Math.min(frame.width - wide - 3 * unit, middle - wide / 2));
    if (to < 0 || from > frame.width) return;
    context.fillStyle = brushes.css.paper;
    context.fillRect(x - 4 * unit, 3 * unit, wide + 8 * unit, height - 8 * unit);
    context.fillStyle = brushes.css.text;
    context.fillText(text, x, height / 2 - unit);
  };

  /* Draw the first lane over the whole trace, with the visible part marked. */
  const drawOverview = (timeline, frame) => {
    const { context, brushes, view } = timeline;
    const all = timeline.everything();
    const { unit, left, width } = frame;
    const height = lib.OVERVIEW * unit;
    context.fillStyle = brushes.css.paper;
    context.fillRect(0, 0, left + width, height);
    const picture = timeline.overviewPicture(width, height - 4 * unit);
    if (picture) context.putImageData(picture, left, 2 * unit);
    const scale = width / (all.end - all.start);
    const from = Math.max(0, Math.min(width - 2 * unit, (view.start - all.start) * scale));
    const to = Math.min(width, Math.max(from + 2 * unit, (view.end - all.start) * scale));
    context.fillStyle = brushes.css.paper;
    context.globalAlpha = 0.62;
    context.fillRect(left, 0, from, height);
    context.fillRect(left + to, 0, width - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = brushes.css.accent;
    context.lineWidth = 1.5 * unit;
    context.strokeRect(left + from + 0.75 * unit, 0.75 * unit, Math.max(unit, to - from - 1.5 * unit), height - 1.5 * unit);
    context.font = `${11 * unit}px ${FONT}`;
    context.fillStyle = brushes.css.muted;
    context.fillText(`${lib.duration(view.end - view.start)} in view`, 8 * unit, height / 2);
  };
})();
