/* Draws the lanes: the busy share of every pixel column as an image, and single ops on top of it. A lane is drawn from
   its records (see wire.js). Until the exact answer for a view arrives, the records of the last views are drawn, moved
   and stretched, so that changes show at once. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const INSET = 2;
  const SMALLEST_OP = 2;
  const SMALLEST_LABEL = 14;
  const FRAMED = 8;
  const EDGE = "rgba(0,0,0,0.24)";

  /* The records that show a view, the finest first. Records after one that covers the whole view are not needed. */
  const useful = (records, view) => {
    const near = records.filter((record) => record.end > view.start && record.start < view.end);
    const whole = near.findIndex((record) => record.start <= view.start && record.end >= view.end);
    return whole < 0 ? near : near.slice(0, whole + 1);
  };

  /* image: {pixels: Uint32Array, width, height}; box: {top, height} in device pixels. */
  const paintShares = (image, box, records, view, brushes) => {
    const done = records.length > 1 ? new Uint8Array(image.width) : null;
    const perPixel = (view.end - view.start) / image.width;
    for (const record of records) {
      const perColumn = (record.end - record.start) / record.columns;
      const first = Math.max(0, Math.ceil((record.start - view.start) / perPixel - 0.5));
      const last = Math.min(image.width, Math.ceil((record.end - view.start) / perPixel - 0.5));
      const shift = (view.start - record.start) / perColumn;
      const scale = perPixel / perColumn;
      const fills = record.fills;
      for (let x = first; x < last; x++) {
        if (done) {
          if (done[x]) continue;
          done[x] = 1;
        }
        paintColumn(image, box, x, fills, Math.min(record.columns - 1, Math.floor(shift + (x + 0.5) * scale)), brushes);
      }
    }
  };

  /* Paint a column: categories stacked from the bottom, each at least a pixel high. */
  const paintColumn = (image, box, x, fills, column, brushes) => {
    let more = 0;
    for (let i = 0; i < fills.length; i++) if (fills[i].shares[column]) more++;
    if (!more) return;
    const { pixels, width } = image;
    const unit = brushes.unit;
    const ground = box.top + box.height;
    let sum = 0;
    let bottom = ground;
    for (let i = 0; more; i++) {
      const share = fills[i].shares[column];
      if (!share) continue;
      more--;
      sum = Math.min(255, sum + share);
      const height = Math.round((sum * box.height) / 255);
      const top = Math.max(box.top + more * unit, Math.min(bottom - unit, ground - height));
      const brush = brushes.of[fills[i].category];
      if (brush.pattern) {
        for (let y = top; y < bottom; y++) pixels[y * width + x] = lib.pixelOf(brush, x, y, unit);
      } else {
        const color = brush.base;
        for (let y = top, at = top * width + x; y < bottom; y++, at += width) pixels[at] = color;
      }
      bottom = top;
    }
  };

  /* Paint all visible rows. `visible`: [{row, y}], y in pixels of the page within the image. */
  lib.paintRows = (image, visible, recordsOf, view, brushes, ticks) => {
    const { pixels, width, height } = image;
    const unit = brushes.unit;
    pixels.fill(brushes.paper);
    for (const at of ticks) {
      const x = Math.round(((at - view.start) / (view.end - view.start)) * width);
      if (x < 0 || x >= width) continue;
      for (let y = 0; y < height; y++) pixels[y * width + x] = brushes.grid;
    }
    for (const { row, y } of visible) {
      const top = Math.max(0, Math.round(y * unit));
      const bottom = Math.min(height, Math.round((y + row.height) * unit));
      if (row.header) pixels.fill(brushes.raised, top * width, bottom * width);
      else if (bottom > 0) pixels.fill(brushes.grid, (bottom - 1) * width, bottom * width);
      if (!row.lane) continue;
      const whole = boxOf(row, y, unit);
      const records = useful(recordsOf(row.lane.id), view);
      // A row at an edge is painted whole, so it is painted here only if it fits or nearly fits.
      if (whole.top >= 0 && whole.top + whole.height <= height) paintShares(image, whole, records, view, brushes);
      else paintCut(image, whole, records, view, brushes);
    }
  };

  const boxOf = (row, y, unit) => {
    const inset = row.header ? 5 : INSET;
    return { top: Math.round((y + inset) * unit), height: Math.round((row.height - 2 * inset + 1) * unit) };
  };

  /* A row across the image's edge: painted aside, then its visible part copied. */
  const paintCut = (image, box, records, view, brushes) => {
    const from = Math.max(0, box.top);
    const to = Math.min(image.height, box.top + box.height);
    if (to <= from) return;
    const aside = { pixels: new Uint32Array(image.width * box.height), width: image.width, height: box.height };
    paintShares(aside, { top: 0, height: box.height }, records, view, brushes);
    const shift = (from - box.top) * image.width;
    const target = from * image.width;
    for (let i = 0; i < (to - from) * image.width; i++) {
      if (aside.pixels[shift + i]) image.pixels[target + i] = aside.pixels[shift + i];
    }
  };

  /* Draw single ops of a lane over its shares, in device pixels; x runs from 0 to `width` (the lanes' area). */
  lib.drawOps = (context, row, y, records, view, brushes, width) => {
    const box = boxOf(row, y, brushes.unit);
    const line = Math.max(1, Math.round(brushes.unit));
    const ops = [...opsInView(useful(records, view), view, brushes, width).values()];
    for (const { left, right, brush } of ops) {
      context.fillStyle = brush.fill;
      context.fillRect(left, box.top, right - left, box.height);
      // A separator from its neighbours; around the narrowest ops, a full frame would hide the op itself.
      context.fillStyle = EDGE;
      context.fillRect(left, box.top, line, box.height);
      if (right - left > FRAMED * line) {
        context.fillRect(left, box.top, right - left, line);
        context.fillRect(left, box.top + box.height - line, right - left, line);
      }
    }
    if (row.header) return;
    // The last row of a nest also has deeper ops, so a label ends where the next op starts.
    ops.sort((a, b) => a.left - b.left || b.right - a.right);
    ops.forEach((op, i) => {
      const next = i + 1 < ops.length ? ops[i + 1].left : op.right;
      if (op.text) drawLabel(context, { ...op, right: Math.min(op.right, next + 1) }, box, brushes.unit, width);
    });
  };

  /* row of the lane -> {left, right, brush, text}. If several records have an op, the finest has its position, because
     a record of a part of the view may have cut it off. */
  const opsInView = (records, view, brushes, width) => {
    const scale = width / (view.end - view.start);
    const found = new Map();
    for (const record of records) {
      const { count, start, length, category, name, row } = record.ops;
      const shift = record.start - view.start;
      for (let i = 0; i < count; i++) {
        const begin = (shift + start[i]) * scale;
        const end = (shift + start[i] + length[i]) * scale;
        if (end <= 0 || begin >= width || end - begin < SMALLEST_OP) continue;
        const left = Math.max(-2, Math.floor(begin));
        const right = Math.min(width + 2, Math.ceil(end));
        const known = found.get(row[i]);
        if (!known) {
          found.set(row[i], { left, right, brush: brushes.of[category[i]], text: name[i] < 0 ? "" : record.names[name[i]] });
        } else {
          if (left < known.left - 1) known.left = left;
          if (right > known.right + 1) known.right = right;
        }
      }
    }
    return found;
  };

  const drawLabel = (context, { text, left, right, brush }, box, unit, width) => {
    const from = Math.max(0, left) + 3 * unit;
    const room = Math.min(width, right) - 3 * unit - from;
    if (room < SMALLEST_LABEL * unit) return;
    const shown = lib.fitLabel(context, text, room);
    if (!shown) return;
    const wide = Math.min(room, context.measureText(shown).width);
    const middle = box.top + box.height / 2;
    const x = from + (room - wide) / 2;
    if (brush.backed) {
      context.fillStyle = brush.plain;
      context.fillRect(x - 2 * unit, middle - 7 * unit, wide + 4 * unit, 14 * unit);
    }
    context.fillStyle = brush.ink;
    context.fillText(shown, x, middle + 0.5 * unit, room);
  };
})();
