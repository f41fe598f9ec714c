/* Colours and patterns of the categories. Patterns show the most important facts without colour: copies from pageable
   memory are hatched one way, exposed time is hatched the other way or dotted, blocking calls are ruled. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const SOLID = 0;
  const RISING = 1;
  const FALLING = 2;
  const DOTS = 3;
  const RULED = 4;
  const FALLBACK = "#8a8f98";

  const patternOf = (category) => {
    if (category.endsWith("-pageable")) return RISING;
    if (category.startsWith("exposed-copy")) return FALLING;
    if (category.startsWith("exposed-")) return DOTS;
    return category === "blocking-call" ? RULED : SOLID;
  };

  /* Whether a pixel belongs to the pattern's mark; a pixel of the page is `unit` device pixels. */
  const marked = (pattern, x, y, unit) => {
    const u = unit;
    if (pattern === RISING) return (x + y) % (7 * u) < 2 * u;
    if (pattern === FALLING) return (((x - y) % (7 * u)) + 7 * u) % (7 * u) < 2 * u;
    if (pattern === DOTS) return x % (5 * u) < 2 * u && y % (5 * u) < 2 * u;
    return y % (4 * u) < u;
  };

  const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const word = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const css = (rgb) => `rgb(${rgb.map(Math.round).join(",")})`;
  const mix = (a, b, share) => a.map((value, i) => Math.round(value * (1 - share) + b[i] * share));

  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };

  const BLACK = [12, 14, 18];
  const WHITE = [255, 255, 255];

  /* palette: {name: "#rrggbb"} -> {unit, paper, raised, grid, css, of: [brush of each category]}. `paper` is the panel
     colour behind lanes, `raised` the page's colour. A brush has its colours as words of ImageData (`base`, `mark`) and
     for the canvas (`fill`, `ink`). */
  lib.brushes = (palette, categories, unit) => {
    const rgb = (name) => parse(palette[name] || FALLBACK);
    const paper = rgb("panel");
    const brush = (name) => {
      const base = rgb(name);
      const light = luminance(base);
      const ink = (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? BLACK : WHITE;
      const pattern = patternOf(name);
      const mark = mix(base, ink, 0.24);
      return {
        name,
        pattern,
        base: word(base),
        mark: word(mark),
        fill: pattern === SOLID ? css(base) : tile(base, mark, pattern, unit),
        plain: css(base),
        ink: css(ink),
        // A label on a pattern gets a background of the plain colour.
        backed: pattern !== SOLID,
      };
    };
    return {
      unit,
      paper: word(paper),
      raised: word(rgb("background")),
      grid: word(mix(paper, rgb("grid"), 0.6)),
      css: {
        paper: css(paper),
        raised: css(rgb("background")),
        ...Object.fromEntries(["text", "muted", "grid", "accent"].map((name) => [name, css(rgb(name))])),
      },
      of: categories.map(brush),
    };
  };

  /* The pattern as a CanvasPattern in device pixels, aligned as by `lib.pixelOf`. */
  const tile = (base, mark, pattern, unit) => {
    const side = 140 * unit;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    const pixels = new Uint32Array(image.data.buffer);
    for (let y = 0; y < side; y++) {
      for (let x = 0; x < side; x++) pixels[y * side + x] = word(marked(pattern, x, y, unit) ? mark : base);
    }
    context.putImageData(image, 0, 0);
    return context.createPattern(canvas, "repeat");
  };

  lib.pixelOf = (brush, x, y, unit) => (brush.pattern && marked(brush.pattern, x, y, unit) ? brush.mark : brush.base);

  /* A small square of a category for legend and details. */
  lib.swatch = (brush, unit) => {
    const canvas = document.createElement("canvas");
    canvas.className = "tl-swatch";
    canvas.width = canvas.height = 14 * unit;
    const context = canvas.getContext("2d");
    context.fillStyle = brush.fill;
    context.fillRect(0, 0, canvas.width, canvas.height);
    return canvas;
  };
})();
