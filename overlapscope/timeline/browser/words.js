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

  /* The text without its parts between angle brackets; without an end to one, the text. */
  const withoutTemplates = (text) => {
    let depth = 0;
    let kept = "";
    for (const letter of text) {
      if (letter === "<") depth += 1;
      if (!depth) kept += letter;
      if (letter === ">") depth -= 1;
      if (depth < 0) return text;
    }
    return depth ? text : kept;
  };

  /* An op's name without what many share: the word of a step, namespaces, template arguments, parameters and what a
     kernel returns. Angle brackets of Python (`<module>`, `<lambda>`) have a space or nothing before them. */
  const shortName = (name) => {
    const step = /^ProfilerStep(#\d+)$/.exec(name);
    if (step) return step[1];
    // All kernels of CUTLASS have this name; which it is, the first argument says.
    const told = name.replace(/\bKernel2?<([\w:]+)[^]*/, "$1");
    const plain = /[\w>)]</.test(told) ? withoutTemplates(told) : told;
    const short = plain
      .replaceAll("(anonymous namespace)::", "")
      .replace(/^void /, "")
      .replace(/(?:[A-Za-z_]\w*::)+(?=\w)/g, "")
      .replace(/^evaluate_function: /, "")
      .replace(/(\w)\([^()]*\)$/, "$1");
    return short.trim() || name;
  };

  /* The labels of an op, the most telling first: its short name, then that without its beginning (`idle: dispatch`) or
     its remark (`Memcpy HtoD (Pageable -> Device)`). */
  lib.labelsOf = (name) => {
    let found = labels.get(name);
    if (!found) {
      if (labels.size > MOST_KEPT) labels.clear();
      const short = shortName(name);
      const [, rest = ""] = short.split(": ");
      found = [...new Set([short, rest, short.replace(/ \([^()]*\)$/, "")])].filter(Boolean);
      labels.set(name, found);
    }
    return found;
  };

  const LEAST_SHORTENED = 12; // letters; fewer of a long name tell nothing
  const MOST_KEPT = 20000;
  const labels = new Map();
  const widths = new Map();

  const widthOf = (context, text) => {
    let width = widths.get(context.font + text);
    if (width === undefined) {
      if (widths.size > MOST_KEPT) widths.clear();
      width = context.measureText(text).width;
      widths.set(context.font + text, width);
    }
    return width;
  };

  /* The first of an op's labels that fits, or a shortened one. */
  lib.fitLabel = (context, name, width) => {
    const ways = lib.labelsOf(name);
    return ways.find((label) => widthOf(context, label) <= width) || lib.fitText(context, ways.at(-1) || "", width);
  };

  /* The text, with its middle left out if it is wider than `width` in the canvas' font; "" if too little would remain. */
  lib.fitText = (context, text, width) => {
    const whole = widthOf(context, text);
    if (whole <= width) return text;
    const count = Math.floor((width / whole) * text.length) - 1;
    if (count < LEAST_SHORTENED) return "";
    const head = Math.ceil((count * 2) / 3);
    return `${text.slice(0, head)}…${text.slice(text.length - (count - head))}`;
  };
})();
