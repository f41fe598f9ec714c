/* Arrows of the chosen op: from launch call to GPU op; from event record to wait, on the host and between the ops that
   it orders. An end out of view is drawn at the border, with the distance to it. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});

  const BOW_PX = 40;

  lib.drawArrows = (timeline, frame) => {
    if (!timeline.chosen) return;
    for (const arrow of timeline.chosen.arrows || []) drawArrow(timeline, frame, arrow);
  };

  const drawArrow = (timeline, frame, arrow) => {
    const from = placeOf(timeline, frame, arrow.from);
    const to = placeOf(timeline, frame, arrow.to);
    if (!from || !to || (from.outside && to.outside && from.x === to.x)) return;
    const { context, brushes } = timeline;
    const unit = frame.unit;
    const wide = Math.abs(to.x - from.x);
    // Within a row the arrow is curved, so that it doesn't cover the ops between.
    const bow = from.y === to.y ? Math.min(BOW_PX * unit, wide) : 0;
    const bend = bow ? wide / 4 : Math.max(24 * unit, wide / 2);
    const path = new Path2D();
    path.moveTo(from.x, from.y);
    path.bezierCurveTo(from.x + bend, from.y - bow, to.x - bend, to.y - bow, to.x, to.y);
    const head = new Path2D();
    head.moveTo(to.x, to.y);
    head.lineTo(to.x - 8 * unit, to.y - 4.5 * unit);
    head.lineTo(to.x - 8 * unit, to.y + 4.5 * unit);
    head.closePath();
    context.lineJoin = "round";
    context.strokeStyle = brushes.css.paper;
    context.lineWidth = 4.5 * unit;
    context.stroke(path);
    context.stroke(head);
    context.strokeStyle = context.fillStyle = brushes.css.text;
    context.lineWidth = 1.8 * unit;
    context.setLineDash(arrow.confidence === "rebuilt" ? [6 * unit, 4 * unit] : []);
    context.stroke(path);
    context.setLineDash([]);
    context.fill(head);
    context.beginPath();
    context.arc(from.x, from.y, 3 * unit, 0, 2 * Math.PI);
    context.fill();
    for (const end of [from, to]) if (end.outside) drawWay(context, brushes, frame, end);
  };

  /* The position of an end, moved to the border if it is out of view. */
  const placeOf = (timeline, frame, end) => {
    const row = lib.rowOf(timeline.rows.rows, timeline.model, end.lane);
    if (!row) return null;
    const unit = frame.unit;
    const border = 10 * unit;
    const exactly = { x: frame.x(end.at), y: (row.y - timeline.scroll + row.height / 2) * unit };
    const x = Math.max(border, Math.min(frame.width - border, exactly.x));
    const y = Math.max(border, Math.min(frame.height - border, exactly.y));
    const away = exactly.x < 0 ? timeline.view.start - end.at : exactly.x > frame.width ? end.at - timeline.view.end : 0;
    return { x: away ? x : exactly.x, y, outside: away > 0 || y !== exactly.y, away, left: exactly.x < 0 };
  };

  const drawWay = (context, brushes, frame, end) => {
    if (!end.away) return;
    const unit = frame.unit;
    const text = end.left ? `← ${lib.duration(end.away)}` : `${lib.duration(end.away)} →`;
    context.font = `${11 * unit}px system-ui, sans-serif`;
    const wide = context.measureText(text).width;
    const x = end.left ? end.x + 6 * unit : end.x - wide - 6 * unit;
    const y = end.y < 30 * unit ? end.y + 15 * unit : end.y - 15 * unit;
    context.fillStyle = brushes.css.paper;
    context.fillRect(x - 3 * unit, y - 8 * unit, wide + 6 * unit, 16 * unit);
    context.fillStyle = brushes.css.text;
    context.fillText(text, x, y);
  };
})();
