/* Descriptions of ops: the tooltip under the mouse and the panel of the chosen op. Names are only inserted as text. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const WAIT_MS = 60; // the mouse rests so long before details are asked for
  const FACTS_SHOWN = 10;
  const REACH_PX = 2; // columns to either side that still count as under the mouse

  /* The op under the mouse as far as the records have it, or null: {lane, row, start, end, title, category}. */
  const opUnder = (timeline, at) => {
    const slack = timeline.nsPerPixel();
    for (const record of timeline.recordsOf(at.row.lane.id)) {
      const i = lib.opAt(record, at.time, slack);
      if (i < 0) continue;
      const { start, length, row, name, category } = record.ops;
      return {
        lane: at.row.lane.id,
        row: row[i],
        start: record.start + start[i],
        end: record.start + start[i] + length[i],
        title: name[i] >= 0 ? record.names[name[i]] : "",
        category: timeline.model.categories[category[i]],
      };
    }
    return null;
  };

  /* Whether anything ran in the columns around the mouse. */
  const busyUnder = (timeline, at) => {
    const reach = REACH_PX * timeline.nsPerPixel();
    const record = timeline.recordsOf(at.row.lane.id).find((one) => one.start <= at.time && one.end > at.time);
    if (!record) return false;
    const perColumn = (record.end - record.start) / record.columns;
    const first = Math.max(0, Math.floor((at.time - reach - record.start) / perColumn));
    const last = Math.min(record.columns - 1, Math.floor((at.time + reach - record.start) / perColumn));
    for (const fill of record.fills) for (let k = first; k <= last; k++) if (fill.shares[k]) return true;
    return false;
  };

  /* The full details of the op at a place, from the source. */
  const lookUp = (timeline, at) => {
    const op = opUnder(timeline, at);
    if (op) return lib.detailsOf(timeline, op.lane, op.row);
    if (!busyUnder(timeline, at)) return Promise.resolve(null);
    const reach = Math.max(1, REACH_PX * timeline.nsPerPixel());
    return timeline.source.at(at.row.lane.id, Math.floor(at.time - reach), Math.ceil(at.time + reach));
  };

  lib.hover = (timeline, at, event) => {
    clearTimeout(timeline.hoverTimer);
    timeline.resting = at;
    const op = at && opUnder(timeline, at);
    const before = timeline.hovered;
    timeline.hovered = op;
    if ((op && (!before || before.lane !== op.lane || before.row !== op.row)) || (!op && before)) timeline.schedule();
    if (!at) return lib.hideTooltip(timeline);
    if (op) fillTooltip(timeline, op, event);
    else lib.hideTooltip(timeline);
    timeline.hoverTimer = setTimeout(async () => {
      const full = await lookUp(timeline, at).catch(() => null);
      if (!full || timeline.resting !== at || timeline.destroyed) return;
      timeline.hovered = full;
      fillTooltip(timeline, full, event);
      timeline.schedule();
    }, WAIT_MS);
    return undefined;
  };

  lib.hideTooltip = (timeline) => {
    clearTimeout(timeline.hoverTimer);
    timeline.tooltip.hidden = true;
  };

  const node = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  lib.node = node;

  const factList = (facts) => {
    const list = node("dl", "tl-facts");
    for (const [name, value] of facts) {
      const pair = node("div");
      pair.append(node("dt", "", name), node("dd", "", value));
      list.append(pair);
    }
    return list;
  };

  /* All details of an op, starting with its place; its start is relative to the timeline's zero. */
  const factsOf = (timeline, op) => {
    const start = ["start", lib.instant(op.start - timeline.offset)];
    const facts = (op.facts || []).filter(([name]) => name !== "start");
    const known = facts.some(([name]) => name === "duration");
    return [start, ...(known ? [] : [["duration", lib.duration(op.end - op.start)]]), ...facts];
  };

  const fillTooltip = (timeline, op, event) => {
    const { tooltip } = timeline;
    const facts = factsOf(timeline, op).slice(0, FACTS_SHOWN);
    tooltip.replaceChildren(node("strong", "", op.title || lib.categoryText(op.category)), factList(facts));
    tooltip.hidden = false;
    const box = timeline.element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = tooltip;
    const room = document.documentElement;
    const x = Math.max(4, Math.min(event.clientX + 14, room.clientWidth - width - 8));
    const below = event.clientY + 18;
    const y = below + height > room.clientHeight - 8 ? Math.max(4, event.clientY - height - 12) : below;
    tooltip.style.transform = `translate(${x - box.left}px, ${y - box.top}px)`;
  };

  lib.clickAt = async (timeline, at) => {
    if (at.row && at.row.header && !at.row.lane) return undefined;
    const wish = lib.wish(timeline);
    if (!at.row) return lib.choose(timeline, null);
    try {
      const op = await lookUp(timeline, at);
      if (timeline.wish === wish) lib.choose(timeline, op);
    } catch (error) {
      lib.showProblem(timeline, error.message);
    }
    return undefined;
  };

  /* Labels for both ends of an arrow: if the other end is chosen, and if neither is. */
  const ENDS = {
    launch: { from: ["launched by", "launch call"], to: ["launches", "launched op"] },
    wait: { from: ["waits for", "op waited for"], to: ["is waited for by", "op held back"] },
    event: { from: ["event recorded by", "event recorded by"], to: ["event waited for by", "event waited for by"] },
  };

  /* The panel of the chosen op. */
  lib.showDetails = (timeline) => {
    const { chosen: op, panel } = timeline;
    if (!op) {
      panel.replaceChildren(node("p", "tl-hint", "Click an op to see what is known about it."));
      return;
    }
    const title = node("div", "tl-title");
    const brush = timeline.brushes.of[timeline.model.categories.indexOf(op.category)];
    if (brush) title.append(lib.swatch(brush, timeline.brushes.unit));
    title.append(node("strong", "", op.title || lib.categoryText(op.category)));
    const lane = timeline.model.lanes.find((one) => one.id === op.lane);
    const where = lane ? [["lane", [lane.group, lane.label].filter(Boolean).join(", ")]] : [];
    const facts = [["category", lib.categoryText(op.category)], ...where, ...factsOf(timeline, op)];
    const children = [title, factList(facts)];
    const links = arrowLinks(timeline, op);
    if (links.length) {
      const list = node("div", "tl-links");
      list.append(...links);
      children.push(list);
    }
    panel.replaceChildren(...children);
    timeline.live.textContent = `${op.title}, ${lib.duration(op.end - op.start)}`;
  };

  /* Buttons that go to the ends of an op's arrows, each place once; arrows that start or end at the op come first. */
  const arrowLinks = (timeline, op) => {
    const isHere = (end) => end.lane === op.lane && end.row === op.row;
    const own = (arrow) => isHere(arrow.from) || isHere(arrow.to);
    const arrows = [...(op.arrows || [])].sort((a, b) => own(b) - own(a));
    const seen = new Set();
    const links = [];
    for (const arrow of arrows) {
      for (const side of ["from", "to"]) {
        const end = arrow[side];
        const key = `${end.lane}:${end.row}`;
        if (isHere(end) || seen.has(key)) continue;
        const link = arrowLink(timeline, arrow, side, own(arrow));
        if (link) links.push(link);
        seen.add(key);
      }
    }
    return links;
  };

  /* A button that goes to an end of an arrow; `own`: the other end is the chosen op. */
  const arrowLink = (timeline, arrow, side, own) => {
    const end = arrow[side];
    const lane = timeline.model.lanes.find((one) => one.id === end.lane);
    if (!lane) return null;
    const kind = arrow.kind === "wait" && lane.kind === "host" ? "event" : arrow.kind;
    const words = ENDS[kind][side][own ? 0 : 1];
    const where = [lane.group, lane.label].filter(Boolean).join(", ");
    const about = own ? [lib.duration(Math.abs(arrow.to.at - arrow.from.at))] : [];
    if (arrow.confidence === "rebuilt") about.push("rebuilt");
    const button = node("button", "tl-button", `${words}: ${where}${about.length ? ` (${about.join(", ")})` : ""}`);
    button.type = "button";
    button.addEventListener("click", () => lib.goTo(timeline, end.lane, end.row));
    return button;
  };

  /* The visible categories, with their patterns. */
  lib.showLegend = (timeline, again) => {
    if (!timeline.rows || !timeline.legend) return;
    const present = new Set();
    for (const { row } of timeline.visibleRows()) {
      if (!row.lane) continue;
      for (const record of timeline.recordsOf(row.lane.id)) {
        for (const fill of record.fills) present.add(fill.category);
      }
    }
    const key = [...present].sort((a, b) => a - b).join();
    if (key === timeline.legendKey && !again) return;
    timeline.legendKey = key;
    timeline.legend.replaceChildren(
      ...[...present]
        .sort((a, b) => a - b)
        .map((category) => {
          const item = node("span", "tl-legend-item");
          const brush = timeline.brushes.of[category];
          item.append(lib.swatch(brush, timeline.brushes.unit), node("span", "", lib.categoryText(brush.name)));
          return item;
        }),
    );
  };
})();
