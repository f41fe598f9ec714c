/* A timeline: its state, its requests to the source, and its drawing. Every change is drawn at once from the data at
   hand, and an exact answer is requested. Only one request is in progress at a time, and the next is for the latest
   view, so zooming never waits. The performance entry "overlapscope:zoom-to-paint" measures the time from an input to
   the drawing of its exact answer. `element.dataset.painted` counts exact drawings, and `element.dataset.exact` is
   "true" while the drawing is exact. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const MEASURE = "overlapscope:zoom-to-paint";
  const MEASURES_KEPT = 5000;

  class Timeline {
    constructor(element, options) {
      this.element = element;
      this.options = options;
      this.model = options.model;
      this.source = options.source;
      this.offset = options.offset || 0;
      this.folded = options.arrangement ? new Set(options.arrangement.folded) : lib.foldedAtFirst(this.model);
      this.records = new Map(); // lane id -> [record], the finest first
      this.whole = new Map(); // lane id -> record of the whole trace
      this.view = lib.limited(this, this.fromCaller(options.view) || this.home());
      this.selection = this.fromCaller(options.selection);
      this.chosen = null;
      this.choosing = Promise.resolve();
      this.hovered = null;
      this.scroll = 0;
      this.details = new Map();
      this.busy = false;
      this.inputAt = null;
      this.drawn = 0;
      element.dataset.painted = "0";
      lib.buildParts(this);
      this.context = this.canvas.getContext("2d", { alpha: false });
      this.setPalette(options.palette);
      this.observer = new ResizeObserver(() => this.measure());
      this.observer.observe(this.stage);
      this.stopInput = lib.listen(this);
      this.measure();
      if (options.arrangement) this.stage.scrollTop = options.arrangement.scroll;
      this.askForWhole();
    }

    everything() {
      return { start: this.model.start, end: Math.max(this.model.end, this.model.start + lib.SHORTEST_VIEW) };
    }

    /* The initial view: the GPU's work. The host may have started long before. */
    home() {
      const { window } = this.model;
      return window && window[1] > window[0] ? this.framed(window[0], window[1]) : this.framedWhole();
    }

    framedWhole() {
      const { start, end } = this.everything();
      return this.framed(start, end);
    }

    framed(start, end) {
      const margin = (end - start) * 0.01;
      return lib.limited(this, { start: start - margin, end: end + margin });
    }

    /* Callers pass and get times relative to `offset`. */
    fromCaller(span) {
      return span ? { start: Math.round(span.start + this.offset), end: Math.round(span.end + this.offset) } : null;
    }

    toCaller(span) {
      return span ? { start: span.start - this.offset, end: span.end - this.offset } : null;
    }

    setPalette(palette) {
      this.palette = palette;
      this.overview = null;
      this.brushes = lib.brushes(palette, this.model, window.devicePixelRatio || 1);
      for (const [name, color] of Object.entries(this.brushes.css)) {
        for (const part of [this.element, this.panel]) part.style.setProperty(`--tl-${name}`, color);
      }
      lib.showDetails(this);
      lib.showLegend(this, true);
      if (this.size) this.schedule();
    }

    /* -- Sizes and rows ----------------------------------------------------------------------- */

    measure() {
      if (!this.element.isConnected) return;
      const { fill, bare } = this.options;
      // Viewport units are resolved to pixels.
      const most = fill || bare ? parseFloat(window.getComputedStyle(this.stage).maxHeight) : 0;
      this.rows = lib.layRows(this.model, this.folded, { room: most - lib.TOP - 1, bare });
      const content = lib.TOP + this.rows.height + 1;
      this.stage.style.height = `${content}px`;
      const width = this.stage.clientWidth;
      const height = this.stage.clientHeight;
      if (!width || !height) return;
      const unit = window.devicePixelRatio || 1;
      if (unit !== this.brushes.unit) this.setPalette(this.palette);
      const gutter = Math.min(190, Math.max(136, Math.round(width * 0.17)));
      this.spacer.style.height = `${Math.max(0, content - height)}px`;
      const old = this.size;
      this.size = { width, height, gutter, lanes: width - gutter };
      if (!old || old.width !== width || old.height !== height || this.canvas.width !== Math.round(width * unit)) {
        this.canvas.width = Math.round(width * unit);
        this.canvas.height = Math.round(height * unit);
        this.canvas.style.width = `${width}px`;
        this.canvas.style.height = `${height}px`;
      }
      this.scroll = this.stage.scrollTop;
      this.changed();
    }

    /* [{row, y}] of the visible rows; y is from the top of the lanes' area. */
    visibleRows() {
      const height = this.size.height - lib.TOP;
      return this.rows.rows
        .map((row) => ({ row, y: row.y - this.scroll }))
        .filter(({ row, y }) => y + row.height > 0 && y < height);
    }

    imageOf(width, height) {
      if (width < 1 || height < 1) return null;
      if (!this.image || this.image.width !== width || this.image.height !== height) {
        const data = this.context.createImageData(width, height);
        this.image = { data, width, height, pixels: new Uint32Array(data.data.buffer) };
      }
      return this.image;
    }

    overviewPicture(width, height) {
      const record = this.whole.get(this.model.lanes.length ? this.model.lanes[0].id : -1);
      if (!record || width < 1 || height < 1) return null;
      if (!this.overview || this.overview.width !== width || this.overview.height !== height) {
        const data = this.context.createImageData(width, height);
        const image = { pixels: new Uint32Array(data.data.buffer), width, height };
        const row = { header: false, lane: { id: 0 }, height: height / this.brushes.unit + 3 };
        lib.paintRows(image, [{ row, y: -2 }], () => [record], this.everything(), this.brushes, []);
        this.overview = data;
      }
      return this.overview;
    }

    recordsOf(lane) {
      const known = this.records.get(lane) || [];
      const whole = this.whole.get(lane);
      return whole && !known.includes(whole) ? [...known, whole] : known;
    }

    nsPerPixel() {
      return (this.view.end - this.view.start) / this.size.lanes;
    }

    /* -- Requests and drawing ----------------------------------------------------------------- */

    /* Request and draw after a change; `event` is the input that caused it. */
    changed(event) {
      if (event) this.inputAt = event.timeStamp;
      if (!this.size) return;
      this.schedule();
      this.ask();
    }

    schedule() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }

    draw() {
      if (this.frame) cancelAnimationFrame(this.frame);
      this.frame = 0;
      if (this.size && this.element.isConnected) lib.drawFrame(this);
    }

    wanted() {
      const lanes = this.visibleRows().flatMap(({ row }) => (row.lane ? [row.lane.id] : []));
      return { ...this.view, columns: Math.max(1, Math.floor(this.size.lanes)), lanes };
    }

    async ask() {
      const wanted = this.wanted();
      const key = JSON.stringify(wanted);
      if (key === this.shownKey || !wanted.lanes.length) return;
      this.element.dataset.exact = "false";
      if (this.busy) return;
      this.busy = true;
      let failed = false;
      try {
        const buffers = await this.source.view(wanted.start, wanted.end, wanted.columns, wanted.lanes);
        if (this.destroyed) return;
        this.take(buffers);
        this.shownKey = key;
        lib.showProblem(this, "");
      } catch (error) {
        if (this.destroyed) return;
        failed = true;
        lib.showProblem(this, error.message);
      } finally {
        this.busy = false;
      }
      const current = this.exactNow();
      this.draw();
      if (current) this.paintedExactly();
      // A failed request is repeated only if the view has changed.
      else if (!failed || JSON.stringify(this.wanted()) !== key) this.ask();
    }

    exactNow() {
      return JSON.stringify(this.wanted()) === this.shownKey;
    }

    paintedExactly() {
      if (this.inputAt !== null) {
        this.measured = (this.measured || 0) + 1;
        if (this.measured % MEASURES_KEPT === 0) performance.clearMeasures(MEASURE);
        performance.measure(MEASURE, { start: this.inputAt, end: performance.now() });
        this.inputAt = null;
      }
      this.drawn += 1;
      this.element.dataset.painted = String(this.drawn);
      this.element.dataset.exact = "true";
      lib.showLegend(this, false);
    }

    take(buffers) {
      const fresh = new Map();
      for (const buffer of buffers) {
        for (const [lane, record] of lib.decode(buffer)) {
          const all = fresh.get(lane) || [];
          all.push(record);
          fresh.set(lane, all);
        }
      }
      const column = (record) => (record.end - record.start) / record.columns;
      for (const [lane, all] of fresh) this.records.set(lane, all.sort((a, b) => column(a) - column(b)));
    }

    /* Request the whole trace once: for the overview, and as a background of every view until its own answer arrives.
       */
    async askForWhole() {
      if (!this.size || !this.model.lanes.length) return;
      const { start, end } = this.everything();
      const lanes = [...new Set([this.model.lanes[0].id, ...this.wanted().lanes])];
      try {
        const buffers = await this.source.view(start, end, Math.floor(this.size.lanes), lanes);
        if (this.destroyed) return;
        for (const buffer of buffers) {
          for (const [lane, record] of lib.decode(buffer)) {
            if (record.start <= start && record.end >= end) this.whole.set(lane, record);
          }
        }
        this.schedule();
      } catch {
        // The view's own request reports the error.
      }
    }

    destroy() {
      this.destroyed = true;
      // Drop pending look-ups: by the time they end, the panel may belong to another timeline.
      this.wish = null;
      clearTimeout(this.hoverTimer);
      this.observer.disconnect();
      this.stopInput();
      if (this.frame) cancelAnimationFrame(this.frame);
      this.element.replaceChildren();
      if (lib.activeTimeline === this) lib.activeTimeline = null;
    }
  }

  lib.Timeline = Timeline;
})();
