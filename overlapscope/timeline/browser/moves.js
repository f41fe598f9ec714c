/* Functions that move a timeline or change the selection in it. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  lib.SHORTEST_VIEW = 4000; // ns, so that a column of the widest screen is at least one
  const MARGIN = 0.05; // of a view, that may lie outside the trace

  /* The nearest allowed span, in whole nanoseconds. */
  lib.limited = (timeline, { start, end }) => {
    const all = timeline.everything();
    const length = Math.round(
      Math.min(Math.max(end - start, lib.SHORTEST_VIEW), (all.end - all.start) * (1 + 2 * MARGIN)),
    );
    const margin = length * MARGIN;
    const middle = (start + end) / 2;
    const first = Math.min(Math.max(middle - length / 2, all.start - margin), Math.max(all.end + margin - length, all.start - margin));
    return { start: Math.round(first), end: Math.round(first) + length };
  };

  /* Show another view; `event` is the input that caused it. `silent` is for a linked timeline: it calls no listeners
     and may leave this trace. */
  lib.setView = (timeline, span, { event = null, silent = false } = {}) => {
    const view = silent ? { start: Math.round(span.start), end: Math.round(span.end) } : lib.limited(timeline, span);
    if (view.start === timeline.view.start && view.end === timeline.view.end) return;
    timeline.view = view;
    timeline.hovered = null;
    lib.hideTooltip(timeline);
    timeline.changed(event);
    const { onView } = timeline.options;
    if (!silent && onView) {
      const told = timeline.toCaller(view);
      onView(told.start, told.end);
    }
  };

  /* Zoom by a factor (below 1: in) around an instant. */
  lib.zoom = (timeline, factor, around, event) => {
    const { start, end } = timeline.view;
    const length = Math.max(lib.SHORTEST_VIEW, (end - start) * factor);
    const share = (around - start) / (end - start);
    lib.setView(timeline, { start: around - length * share, end: around + length * (1 - share) }, { event });
  };

  lib.pan = (timeline, share, event) => {
    const { start, end } = timeline.view;
    const by = (end - start) * share;
    lib.setView(timeline, { start: start + by, end: end + by }, { event });
  };

  /* Show the GPU's work or, if that is visible already, the whole trace. */
  lib.fitAll = (timeline, event) => {
    const home = timeline.home();
    const there = timeline.view.start === home.start && timeline.view.end === home.end;
    lib.setView(timeline, there ? timeline.framedWhole() : home, { event });
  };

  /* Show the chosen op, else the selected span, else everything, with a margin. */
  lib.fitChosen = (timeline, event) => {
    const span = timeline.chosen || timeline.selection;
    if (!span) return lib.fitAll(timeline, event);
    const margin = Math.max((span.end - span.start) * 0.1, 500);
    return lib.setView(timeline, { start: span.start - margin, end: span.end + margin }, { event });
  };

  /* Bring a span into view, at the present zoom if it fits, otherwise zooming out as necessary. */
  lib.bring = (timeline, { start, end }) => {
    const now = timeline.view.end - timeline.view.start;
    const length = end - start;
    const readable = length < now * 0.8 && length > now * 0.03;
    if (readable && start >= timeline.view.start && end <= timeline.view.end) return;
    const wide = readable ? now : Math.max(length * 6, 20 * lib.SHORTEST_VIEW);
    const middle = (start + end) / 2;
    lib.setView(timeline, { start: middle - wide / 2, end: middle + wide / 2 });
  };

  /* Unfold a lane's group and scroll to it. */
  lib.revealLane = (timeline, laneId) => {
    const lane = timeline.model.lanes.find((one) => one.id === laneId);
    if (!lane) return;
    if (timeline.folded.delete(lane.group)) timeline.measure();
    const row = lib.rowOf(timeline.rows.rows, timeline.model, laneId);
    const room = timeline.size.height - lib.TOP;
    const top = timeline.stage.scrollTop;
    if (row.y < top) timeline.stage.scrollTop = Math.max(0, row.y - 24);
    else if (row.y + row.height > top + room) timeline.stage.scrollTop = row.y + row.height - room + 24;
  };

  /* Scroll to a device's lanes. */
  lib.showDevice = (timeline, device) => {
    const row = timeline.rows.rows.find((one) => one.header && one.device === device);
    if (row) timeline.stage.scrollTop = row.y;
  };

  lib.fold = (timeline, group) => {
    if (!timeline.folded.delete(group)) timeline.folded.add(group);
    timeline.measure();
  };

  /* Choose an op whose details are known, or none. */
  lib.choose = (timeline, op) => {
    timeline.chosen = op;
    lib.showDetails(timeline);
    timeline.schedule();
    if (timeline.options.onOp) timeline.options.onOp(op ? { lane: op.lane, row: op.row } : null);
  };

  /* The details of an op, requested once. */
  lib.detailsOf = (timeline, lane, row) => {
    const key = `${lane}:${row}`;
    let known = timeline.details.get(key);
    if (!known) {
      if (timeline.details.size > 2000) timeline.details.clear();
      known = timeline.source.op(lane, row);
      timeline.details.set(key, known);
      known.catch(() => timeline.details.delete(key));
    }
    return known;
  };

  /* A user's request, kept until its answer arrives. The latest of several requests wins, and a view that has moved
     since then stays. */
  lib.wish = (timeline) => (timeline.wish = { view: timeline.view });

  /* Go to an op and choose it, or to a `span` around it (null: the view stays). */
  lib.goTo = async (timeline, lane, row, { span, wish = lib.wish(timeline) } = {}) => {
    try {
      const op = await lib.detailsOf(timeline, lane, row);
      if (timeline.wish !== wish || !op) return;
      if (timeline.view === wish.view) {
        lib.revealLane(timeline, lane);
        if (span !== null) lib.bring(timeline, span || op);
      }
      lib.choose(timeline, op);
    } catch (error) {
      lib.showProblem(timeline, error.message);
    }
  };

  /* Go to a match of search or worst. */
  lib.goToMatch = (timeline, match, wish) => lib.goTo(timeline, match.lane, match.row, { span: match, wish });

  /* Select a span, or none; `final` once the mouse has stopped changing it. */
  lib.select = (timeline, selection, final = true) => {
    timeline.selection = selection && {
      start: Math.round(selection.start),
      end: Math.round(selection.end),
      device: selection.device === undefined ? null : selection.device,
    };
    timeline.schedule();
    const { onSelect } = timeline.options;
    if (final && onSelect) onSelect(timeline.selection && { ...timeline.toCaller(timeline.selection), device: timeline.selection.device });
  };

  lib.clear = (timeline) => {
    timeline.wish = null;
    if (timeline.chosen) lib.choose(timeline, null);
    if (timeline.selection) lib.select(timeline, null);
  };
})();
