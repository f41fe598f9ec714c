/* Colours and patterns of the categories, as overlapscope/documents/colors.py gives them. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const FALLBACK = "#8a8f98";

  const rising = (x, y, u) => (x + y) % (7 * u) < 2 * u;
  const falling = (x, y, u) => (((x - y) % (7 * u)) + 7 * u) % (7 * u) < 2 * u;

  /* Whether a pixel belongs to a pattern's mark; a pixel of the page is `u` device pixels. */
  const MARKED = {
    rising,
    falling,
    crossed: (x, y, u) => rising(x, y, u) || falling(x, y, u),
    dotted: (x, y, u) => x % (5 * u) < 2 * u && y % (5 * u) < 2 * u,
    ruled: (x, y, u) => y % (4 * u) < u,
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

  /* palette: {name: "#rrggbb"}; patterns: one for each category, "" for none -> {unit, paper, raised, grid, css, of: [brush
     of each category]}. `paper` is the panel colour behind lanes, `raised` the page's colour. A brush has its colours as
     words of ImageData (`base`, `mark`) and for the canvas (`fill`, `ink`). */
  lib.brushes = (palette, { categories, patterns }, unit) => {
    const rgb = (name) => parse(palette[name] || FALLBACK);
    const paper = rgb("panel");
    const brush = (name, number) => {
      const base = rgb(name);
      const light = luminance(base);
      const ink = (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? BLACK : WHITE;
      const pattern = patterns[number];
      const mark = mix(base, ink, 0.24);
      return {
        name,
        pattern,
        base: word(base),
        mark: word(mark),
        fill: pattern ? tile(base, mark, pattern, unit) : css(base),
        plain: css(base),
        ink: css(ink),
        // A label on a pattern gets a background of the plain colour.
        backed: pattern !== "",
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
      for (let x = 0; x < side; x++) pixels[y * side + x] = word(MARKED[pattern](x, y, unit) ? mark : base);
    }
    context.putImageData(image, 0, 0);
    return context.createPattern(canvas, "repeat");
  };

  lib.pixelOf = (brush, x, y, unit) => (brush.pattern && MARKED[brush.pattern](x, y, unit) ? brush.mark : brush.base);

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
