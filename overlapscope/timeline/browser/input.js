/* Mouse, wheel and keys of a timeline: as in Perfetto, with the keys of chrome://tracing. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const CLICK_PX = 4; // a drag shorter than that is a click
  const EDGE_PX = 5; // so near to its edge a selection can be changed
  const HOLD_MS = 140; // a key held longer than that moves on and on
  const STEP = 1.25;

  /* Attach all handlers; returns a function that detaches them. */
  lib.listen = (timeline) => {
    const stop = new AbortController();
    const on = (target, name, listener, options = {}) =>
      target.addEventListener(name, listener, { signal: stop.signal, ...options });
    const { canvas, stage } = timeline;
    on(stage, "scroll", () => {
      timeline.scroll = stage.scrollTop;
      timeline.changed();
    });
    on(canvas, "wheel", (event) => wheel(timeline, event), { passive: false });
    on(canvas, "pointerdown", (event) => press(timeline, event));
    on(canvas, "pointermove", (event) => {
      if (timeline.drag) drag(timeline, event);
      else hover(timeline, event);
    });
    on(canvas, "pointerup", (event) => release(timeline, event));
    on(canvas, "pointercancel", () => (timeline.drag = null));
    on(canvas, "pointerleave", () => lib.hover(timeline, null));
    on(canvas, "dblclick", (event) => {
      // Drop look-ups of earlier clicks that are still pending.
      const { view } = timeline;
      if (place(timeline, event).area !== "lanes") return;
      timeline.choosing.then(() => timeline.view === view && lib.fitChosen(timeline, event));
    });
    const wake = () => (lib.activeTimeline = timeline);
    on(timeline.element, "pointerenter", wake);
    on(timeline.element, "focusin", wake);
    on(document, "keydown", (event) => keyDown(timeline, event));
    on(document, "keyup", (event) => keyUp(timeline, event));
    on(window, "blur", () => (timeline.held = null));
    if (!lib.activeTimeline || !lib.activeTimeline.element.isConnected) wake();
    return () => stop.abort();
  };

  /* The place of a mouse event: {area, x, y, time, row}; x and y are within the area. */
  const place = (timeline, event) => {
    const box = timeline.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - timeline.size.gutter;
    const y = event.clientY - box.top;
    const time = timeline.view.start + x * timeline.nsPerPixel();
    if (y < lib.OVERVIEW) return { area: "overview", x, y, time, row: null };
    if (y < lib.TOP) return { area: "ruler", x, y, time, row: null };
    const row = lib.rowAt(timeline.rows.rows, y - lib.TOP + timeline.scroll);
    return { area: x < 0 ? "gutter" : "lanes", x, y, time, row };
  };

  const wheel = (timeline, event) => {
    const scale = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * scale, event.deltaY * scale];
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const { x, time } = place(timeline, event);
      const around = x < 0 ? timeline.view.start : time;
      // A pinch on a touchpad arrives as a wheel event with small steps.
      const by = Math.max(-200, Math.min(200, dy)) * (Math.abs(dy) < 40 ? 0.01 : 0.0025);
      lib.zoom(timeline, Math.exp(by), around, event);
    } else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) {
      event.preventDefault();
      lib.pan(timeline, (dx || dy) / timeline.size.lanes, event);
    }
  };

  const press = (timeline, event) => {
    if (event.button > 1) return;
    timeline.canvas.focus({ preventScroll: true });
    const at = place(timeline, event);
    if (at.area === "gutter") {
      if (at.row && at.row.header) lib.fold(timeline, at.row.group);
      return;
    }
    if (at.area === "lanes" && at.row && at.row.header && at.x < 0) return;
    event.preventDefault();
    timeline.canvas.setPointerCapture(event.pointerId);
    lib.hover(timeline, null);
    const edge = nearEdge(timeline, at);
    const mode = at.area === "overview" ? "overview" : event.shiftKey || event.button === 1 ? "pan" : edge ? "edge" : "select";
    timeline.drag = {
      mode,
      x: event.clientX,
      moved: false,
      view: timeline.view,
      before: timeline.selection,
      // The fixed end of a selection.
      fixed: edge ? timeline.selection[edge === "start" ? "end" : "start"] : at.time,
      device: edge ? timeline.selection.device : at.row ? at.row.device : null,
      at,
    };
    if (mode === "overview") drag(timeline, event);
  };

  const nearEdge = (timeline, at) => {
    if (!timeline.selection || at.area === "overview" || at.area === "gutter") return null;
    const slack = EDGE_PX * timeline.nsPerPixel();
    return ["start", "end"].find((side) => Math.abs(timeline.selection[side] - at.time) < slack) || null;
  };

  const drag = (timeline, event) => {
    const state = timeline.drag;
    const by = event.clientX - state.x;
    if (Math.abs(by) >= CLICK_PX) state.moved = true;
    const at = place(timeline, event);
    if (state.mode === "overview") {
      const all = timeline.everything();
      const middle = all.start + (at.x / timeline.size.lanes) * (all.end - all.start);
      const half = (timeline.view.end - timeline.view.start) / 2;
      lib.setView(timeline, { start: middle - half, end: middle + half }, { event });
    } else if (!state.moved) {
      return;
    } else if (state.mode === "pan") {
      const shift = by * timeline.nsPerPixel();
      lib.setView(timeline, { start: state.view.start - shift, end: state.view.end - shift }, { event });
    } else {
      const limit = timeline.everything();
      const inside = (ns) => Math.min(limit.end, Math.max(limit.start, ns));
      const [start, end] = [inside(state.fixed), inside(at.time)].sort((a, b) => a - b);
      lib.select(timeline, { start, end, device: state.device }, false);
    }
  };

  const release = (timeline, event) => {
    const state = timeline.drag;
    timeline.drag = null;
    if (!state || state.mode === "overview") return;
    if (state.moved) {
      if (state.mode === "pan") return;
      const { selection } = timeline;
      lib.select(timeline, selection && selection.end > selection.start ? selection : state.before);
    } else if (state.at.area === "lanes" && event.button === 0) {
      timeline.choosing = lib.clickAt(timeline, state.at);
    } else if (state.at.area === "ruler" && timeline.selection) {
      lib.select(timeline, null);
    }
  };

  const hover = (timeline, event) => {
    const at = place(timeline, event);
    timeline.mouse = at;
    const edge = nearEdge(timeline, at);
    const folds = at.area === "gutter" && at.row && at.row.header;
    timeline.canvas.style.cursor = edge || at.area === "ruler" ? "ew-resize" : folds ? "pointer" : "default";
    timeline.canvas.title = at.area === "gutter" && at.row ? (at.row.header ? at.row.group : at.row.lane.label) : "";
    lib.hover(timeline, at.area === "lanes" && at.row && at.row.lane ? at : null, event);
  };

  /* -- Keys ------------------------------------------------------------------------------------- */

  const MOVES = {
    w: "in",
    s: "out",
    a: "left",
    d: "right",
    "+": "in",
    "=": "in",
    "-": "out",
    arrowup: "in",
    arrowdown: "out",
    arrowleft: "left",
    arrowright: "right",
  };

  /* Keys go to the timeline that was last under the mouse, unless the user is typing into a field. */
  const listening = (timeline, event) => {
    if (lib.activeTimeline !== timeline || !timeline.element.offsetParent) return false;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
    const target = event.target instanceof Element ? event.target : null;
    return !target || !target.closest("input, textarea, select, [contenteditable=true], [role=grid], [role=listbox]");
  };

  /* Arrow keys scroll a page that is longer than its window, unless a timeline has the focus. */
  const scrolls = ({ element }, key) =>
    key.startsWith("arrow") &&
    document.documentElement.scrollHeight > window.innerHeight &&
    !element.matches(":hover, :focus-within");

  const keyDown = (timeline, event) => {
    if (!listening(timeline, event)) return;
    const key = event.key.toLowerCase();
    const move = MOVES[key];
    if (move && !scrolls(timeline, key)) {
      event.preventDefault();
      if (event.repeat) return;
      step(timeline, move, STEP, event);
      timeline.held = { key, move, since: event.timeStamp, last: event.timeStamp + HOLD_MS };
      requestAnimationFrame((now) => keepMoving(timeline, now));
      return;
    }
    const command = {
      f: () => lib.fitChosen(timeline, event),
      0: () => lib.fitAll(timeline, event),
      escape: () => (lib.helpIsOpen(timeline) ? lib.showHelp(timeline, false) : lib.clear(timeline)),
      "?": () => lib.showHelp(timeline, !lib.helpIsOpen(timeline)),
      "/": () => timeline.searchInput.focus(),
    }[key];
    if (!command) return;
    event.preventDefault();
    command();
  };

  const keyUp = (timeline, event) => {
    if (timeline.held && timeline.held.key === event.key.toLowerCase()) timeline.held = null;
  };

  const keepMoving = (timeline, now) => {
    const { held } = timeline;
    if (!held || timeline.destroyed) return;
    if (now > held.last) {
      // Zoom threefold in a quarter of a second, at any frame rate.
      step(timeline, held.move, 3 ** ((now - held.last) / 250), { timeStamp: now });
      held.last = now;
    }
    requestAnimationFrame((next) => keepMoving(timeline, next));
  };

  const step = (timeline, move, factor, event) => {
    const { start, end } = timeline.view;
    const { mouse } = timeline;
    const middle = (start + end) / 2;
    const under = mouse && mouse.x >= 0 ? start + mouse.x * timeline.nsPerPixel() : middle;
    if (move === "in") lib.zoom(timeline, 1 / factor, under, event);
    else if (move === "out") lib.zoom(timeline, factor, under, event);
    else lib.pan(timeline, (move === "left" ? -1 : 1) * (factor - 1) * 0.4, event);
  };
})();
