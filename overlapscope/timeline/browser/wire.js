/* Decodes the answer of /api/timeline/view, whose format is in overlapscope/timeline/view.py. Every script adds its
   functions to `window.overlapscope` and calls others only once a timeline is mounted, so the loading order doesn't
   matter. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});

  /* ArrayBuffer -> Map of lane id -> record. A record is one lane in one view:
     {start, end, columns, names, fills: [{category, shares}], ops: {count, start, length, row, name, category}}.
     The arrays are views into the buffer; op starts are relative to the record's start. */
  lib.decode = (buffer) => {
    if (!decoded.has(buffer)) decoded.set(buffer, decode(buffer));
    return decoded.get(buffer);
  };

  // The same embedded tiles are requested again and again.
  const decoded = new WeakMap();

  const decode = (buffer) => {
    const size = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const payload = 4 + size;
    const records = new Map();
    for (const lane of header.lanes) {
      const { count, at } = lane.ops;
      const place = (part) => payload + at + 4 * count * part;
      records.set(lane.lane, {
        start: header.start,
        end: header.end,
        columns: header.columns,
        names: header.names,
        fills: lane.fill.map((fill) => ({
          category: fill.category,
          shares: new Uint8Array(buffer, payload + fill.at, header.columns),
        })),
        ops: {
          count,
          start: new Float32Array(buffer, place(0), count),
          length: new Float32Array(buffer, place(1), count),
          row: new Uint32Array(buffer, place(2), count),
          name: new Int32Array(buffer, place(3), count),
          category: new Uint8Array(buffer, place(4), count),
        },
      });
    }
    return records;
  };

  /* Index of the op of a record at a time, the innermost first, or -1; `slack` nanoseconds on either side still count.
     */
  lib.opAt = (record, time, slack) => {
    const { count, start, length } = record.ops;
    const at = time - record.start;
    for (let i = count - 1; i >= 0; i--) {
      if (at >= start[i] - slack && at < start[i] + length[i] + slack) return i;
    }
    return -1;
  };
})();
