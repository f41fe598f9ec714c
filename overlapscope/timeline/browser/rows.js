/* The rows of the canvas, from the model and the folded groups. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const GROUP_HEIGHT = 24;
  const HEIGHTS = { overlap: 50, stream: 32, steps: 22, ranges: 20, host: 20 };

  const FIXED = new Set(["steps", "ranges"]);
  const MOST_GROWTH = 2.2;
  const LEAST_GROWTH = 0.7;

  /* {rows, height}; rows of ops grow to fill `room`, within a limit. A `bare` timeline is of a single group, which
     has no row, and its rows shrink instead. A row is {group, device, lane, y, height, folded}; y is within the lanes'
     area, `device` is null for a host thread. A group's own row has `header: true` and, while folded, the group's first
     lane in small. */
  lib.layRows = (model, folded, { room = 0, bare = false }) => {
    const natural = lay(model, folded, 1, bare);
    const growing = natural.rows.filter((row) => !row.header && !FIXED.has(row.lane.kind));
    const lanes = growing.reduce((sum, row) => sum + row.height, 0);
    const [least, most] = bare ? [LEAST_GROWTH, 1] : [1, MOST_GROWTH];
    const growth = Math.max(least, Math.min(most, (room - natural.height + lanes) / (lanes || 1)));
    return growth === 1 ? natural : lay(model, folded, growth, bare);
  };

  const lay = (model, folded, growth, bare) => {
    const rows = [];
    let y = 0;
    let group = null;
    for (const lane of model.lanes) {
      if (lane.group !== group) {
        group = lane.group;
        const closed = folded.has(group);
        const height = bare ? 0 : GROUP_HEIGHT;
        if (height) rows.push({ header: true, group, device: lane.device, lane: closed ? lane : null, folded: closed, y, height });
        y += height;
      }
      if (folded.has(group)) continue;
      const height = Math.floor((HEIGHTS[lane.kind] || HEIGHTS.host) * (FIXED.has(lane.kind) ? 1 : growth));
      rows.push({ header: false, group, device: lane.device, lane, folded: false, y, height });
      y += height;
    }
    return { rows, height: y };
  };

  /* Host threads after the first are folded initially, because most of them wait. */
  lib.foldedAtFirst = (model) => {
    const hosts = new Set(model.lanes.filter((lane) => lane.kind === "host").map((lane) => lane.group));
    return new Set([...hosts].slice(1));
  };

  lib.rowAt = (rows, y) => rows.find((row) => y >= row.y && y < row.y + row.height) || null;

  /* The row of a lane, or of its folded group. */
  lib.rowOf = (rows, model, laneId) => {
    const lane = model.lanes.find((one) => one.id === laneId);
    if (!lane) return null;
    return rows.find((row) => row.lane === lane) || rows.find((row) => row.header && row.group === lane.group) || null;
  };
})();
