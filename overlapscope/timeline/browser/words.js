/* Numbers and names for people, by the same rules as overlapscope/base/words.py. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const UNITS = [
    ["s", 1e9],
    ["ms", 1e6],
    ["us", 1e3],
    ["ns", 1],
  ];

  /* A length in nanoseconds with four or five digits; only nothing is shown as 0. */
  lib.duration = (ns) => {
    const size = Math.abs(ns);
    const [name, scale] = size >= 1e10 ? UNITS[0] : UNITS.find(([, one]) => size >= one && one < 1e9) || UNITS[3];
    const value = ns / scale;
    const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3;
    return `${value.toLocaleString("en-US", { maximumFractionDigits: scale === 1 ? 0 : digits })} ${name}`;
  };

  /* An instant in ms, with as many digits as its trace can have. */
  lib.instant = (ns) => `${(ns / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 6 })} ms`;

  /* Ticks of a ruler: {step, base, baseText, at: [ns], text: [..]}. If the times have too many digits in common, `base`
     is subtracted from all of them and shown once. */
  lib.ticks = (start, end, most) => {
    const span = end - start;
    const raw = Math.max(1, span / Math.max(1, most));
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 5].find((one) => one * power >= raw * 0.999) || 10);
    let base = 0;
    if (Math.max(Math.abs(start), Math.abs(end)) >= step * 2e4) {
      const round = 10 ** Math.ceil(Math.log10(span));
      base = Math.floor(start / round) * round;
    }
    const reach = Math.max(Math.abs(start - base), Math.abs(end - base), step);
    const [name, scale] = UNITS.find(([, one]) => reach >= one) || UNITS[3];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    const at = [];
    for (let k = Math.ceil(start / step) + 0; k * step <= end; k++) at.push(k * step + 0);
    const number = (ns) =>
      (ns / scale).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    return {
      step,
      at,
      baseText: base ? lib.instant(base) : "",
      text: at.map((ns) => `${base ? "+" : ""}${number(ns - base)} ${name}`),
    };
  };

  const DIRECTIONS = { h2d: "H2D copy", d2h: "D2H copy" };

  /* A category's name in legend and details. */
  lib.categoryText = (category) => {
    const [direction, kind] = category.split("-");
    if (direction in DIRECTIONS) return `${DIRECTIONS[direction]}, ${kind === "other" ? "other memory" : kind}`;
    const [what, cause] = category.split(":");
    const words = {
      "cpu-op": "CPU op",
      "python-line": "Python line",
      "runtime-call": "runtime call",
      "blocking-call": "blocking call",
      "exposed-other": "memset/D2D/P2P alone",
      other: "memset/D2D",
      p2p: "P2P copy",
    };
    const text = words[what] || what.replace("-", " ");
    return cause ? `${text}: ${cause}` : text;
  };

  const widths = new Map();

  /* The text, with its middle left out if it is wider than `width` in the canvas' font; "" if nothing fits. */
  lib.fitText = (context, text, width) => {
    let whole = widths.get(context.font + text);
    if (whole === undefined) {
      if (widths.size > 20000) widths.clear();
      whole = context.measureText(text).width;
      widths.set(context.font + text, whole);
    }
    if (whole <= width) return text;
    const count = Math.floor((width / whole) * text.length) - 1;
    if (count < 3) return "";
    // Of a few letters, the first tell most.
    if (count < 9) return `${text.slice(0, count)}…`;
    const head = Math.ceil((count * 2) / 3);
    return `${text.slice(0, head)}…${text.slice(text.length - (count - head))}`;
  };
})();
