/* Data sources of a timeline: the server's routes, or tiles embedded in the page. A source has view(start, end,
   columns, laneIds) -> Promise of [ArrayBuffer], op(lane, row), at(lane, start, end), search(text, after, direction)
   and worst(kind, number), each a Promise of the answer of the route of that name. `after` is the op to continue from,
   {lane, row}, or an instant. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});

  /* `base` is the app's path, with a slash at its end; `of` has parameters for every request. */
  lib.serverSource = (base, trace, of = {}) => {
    const get = async (route, parameters) => {
      const query = new URLSearchParams({ trace, ...of, ...parameters });
      const answer = await fetch(`${base}api/timeline/${route}?${query}`, { priority: "high" }).catch(() => {
        throw new Error("The server does not answer. Is it still running?");
      });
      if (answer.ok) return answer;
      const problem = await answer.json().catch(() => ({}));
      throw new Error(problem.error || `The server answered ${answer.status}.`);
    };
    const json = async (route, parameters) => (await get(route, parameters)).json();
    return {
      model: () => json("model", {}),
      view: async (start, end, columns, lanes) => [
        await (await get("view", { start, end, columns, lanes: lanes.join(",") })).arrayBuffer(),
      ],
      op: (lane, row) => json("op", { lane, row }),
      at: (lane, start, end) => json("at", { lane, start, end }),
      search: (text, after, direction) =>
        json("search", { text, direction, ...(typeof after === "number" ? { after } : { lane: after.lane, row: after.row }) }),
      worst: (kind, number) => json("worst", { kind, number }),
    };
  };

  const unpack = async (text) => {
    const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };

  /* `tiles`: [base64 of gzip of an answer of the view route], coarse and fine; `categories`: the model's; `worst`:
     {kind: {count, cases: [{lane, row, start, end, op}]}}, where `op` has the details of the op. For other ops, the
     details are those in the tiles: name, start, length and category. */
  lib.staticSource = (tiles, categories, worst = {}) => {
    let opening = null;
    let all = null;

    const open = () => (opening = opening || Promise.all(tiles.map(unpack)).then((buffers) => buffers.map(whatItHolds)));

    const whatItHolds = (buffer) => {
      const records = lib.decode(buffer);
      const first = records.values().next().value;
      const column = (first.end - first.start) / first.columns;
      return { buffer, records, start: first.start, end: first.end, column };
    };

    /* Every op in the tiles, once, by start, lane and row: {lane, row, start, end, title, category}. */
    const ops = async () => {
      if (all) return all;
      const found = new Map();
      for (const tile of await open()) {
        for (const [lane, record] of tile.records) {
          for (let i = 0; i < record.ops.count; i++) collect(found, lane, record, i, tile.column);
        }
      }
      return (all = [...found.values()].sort(order));
    };

    const order = (a, b) => a.start - b.start || a.lane - b.lane || a.row - b.row;

    /* Tiles cut off ops that reach far beyond them. Of the tiles that have an op uncut, the finest has the most exact
       times. */
    const collect = (found, lane, record, i, column) => {
      const { start, length, row, name, category } = record.ops;
      const key = `${lane}:${row[i]}`;
      const known = found.get(key);
      const span = (record.end - record.start) * 0.999;
      const cut = start[i] <= -span || start[i] + length[i] >= 2 * span;
      const begin = Math.round(record.start + start[i]);
      let times = { start: begin, end: begin + Math.round(length[i]), cut, column };
      if (known && cut && known.cut) {
        times = { start: Math.min(known.start, times.start), end: Math.max(known.end, times.end), cut, column };
      } else if (known && (cut || (!known.cut && known.column <= column))) {
        times = { start: known.start, end: known.end, cut: known.cut, column: known.column };
      }
      const title = (name[i] >= 0 && record.names[name[i]]) || (known ? known.title : "");
      found.set(key, { lane, row: row[i], ...times, title, category: categories[category[i]] });
    };

    const told = (op) => op && { ...op, title: op.title || lib.categoryText(op.category), facts: [], arrows: [] };

    return {
      /* The coarsest tile that covers the view well enough, and finer tiles that cover a part of it. */
      view: async (start, end, columns) => {
        const wanted = (end - start) / columns;
        const near = (await open()).filter((tile) => tile.end > start && tile.start < end);
        const useful = near.filter((tile) => tile.column >= wanted / 4);
        const chosen = useful.length ? useful : near;
        return chosen.sort((a, b) => b.column - a.column).map((tile) => tile.buffer);
      },
      op: async (lane, row) => {
        const here = (one) => one.lane === lane && one.row === row;
        const known = Object.values(worst).flatMap(({ cases }) => cases).find(here);
        return told(known ? { lane, row, ...known.op } : (await ops()).find(here) || null);
      },
      at: async (lane, start, end) => {
        const middle = (start + end) / 2;
        const inside = (await ops()).filter((op) => op.lane === lane && op.start < end && op.end > start);
        const far = (op) => Math.max(0, op.start - middle, middle - op.end);
        inside.sort((a, b) => far(a) - far(b) || a.end - a.start - (b.end - b.start));
        return told(inside[0] || null);
      },
      search: async (text, after, direction) => {
        const wanted = text.toLowerCase();
        const every = await ops();
        const matches = every.filter((op) => op.title.toLowerCase().includes(wanted));
        if (!wanted || !matches.length) return { count: 0, number: 0, match: null };
        const here =
          typeof after === "number"
            ? { start: after, lane: direction * Infinity, row: 0 }
            : every.find((op) => op.lane === after.lane && op.row === after.row);
        let number = matches.findIndex((op) => order(op, here) > 0);
        if (direction < 0) number = matches.filter((op) => order(op, here) < 0).length - 1;
        else if (number < 0) number = 0;
        if (number < 0) number = matches.length - 1;
        return { count: matches.length, number: number + 1, match: matches[number] };
      },
      worst: async (kind, number) => {
        const { count, cases } = worst[kind];
        return { count, ranked: cases.length, match: cases[number] || null };
      },
    };
  };
})();
