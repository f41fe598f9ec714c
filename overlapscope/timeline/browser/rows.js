/* The rows of the canvas, from the model and the folded groups. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const GROUP_HEIGHT = 24;
  const HEIGHTS = { overlap: 50, stream: 32, steps: 22, ranges: 20, host: 20 };

  /* {rows, height}; a row is {group, lane, y, height, folded}; y is within the lanes' area. A group's own row has
     `header: true` and, while folded, the group's first lane in small. */
  lib.layRows = (model, folded) => {
    const rows = [];
    let y = 0;
    let group = null;
    for (const lane of model.lanes) {
      if (lane.group !== group) {
        group = lane.group;
        const closed = folded.has(group);
        rows.push({ header: true, group, lane: closed ? lane : null, folded: closed, y, height: GROUP_HEIGHT });
        y += GROUP_HEIGHT;
      }
      if (folded.has(group)) continue;
      const height = HEIGHTS[lane.kind] || HEIGHTS.host;
      rows.push({ header: false, group, lane, folded: false, y, height });
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

  /* The device whose figures belong to a row: its group's, or null for a host thread. */
  lib.deviceOf = (group) => {
    const found = /^device (\d+)/.exec(group || "");
    return found ? Number(found[1]) : null;
  };
})();
