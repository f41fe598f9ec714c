/* The laboratory's grid of variants. There are about a hundred, each with a small timeline: as components of Dash they
take many seconds to appear, as plain elements none. Every text is set as text. */
(() => {
  "use strict";
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  const SVG = "http://www.w3.org/2000/svg";

  const node = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const shape = (tag, attributes) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const link = ([text, href]) => {
    const made = node("a", "timeline-link", text);
    made.href = href;
    made.addEventListener("click", (event) => window.overlapscope.follow(event, href));
    return made;
  };

  /* `fill` has a character for each slice: `.` for nothing, else the tenths begun; the fuller, the stronger. */
  const lane = ({ name, color, fill }) => {
    const row = node("div", "laboratory-lane");
    const picture = shape("svg", {
      viewBox: `0 0 ${Math.max(1, fill.length)} 1`,
      preserveAspectRatio: "none",
      "shape-rendering": "crispEdges",
      fill: color,
      role: "img",
      "aria-label": name,
    });
    for (const { 0: run, index } of fill.matchAll(/(\d)\1*/g)) {
      const opacity = (Number(run[0]) + 1) / 10;
      picture.append(shape("rect", { x: index, width: run.length, height: 1, "fill-opacity": opacity }));
    }
    row.append(node("span", "", name), picture);
    return row;
  };

  const card = (variant) => {
    const made = node("article", "laboratory-card");
    const head = node("header");
    const level = node("b", "", variant.level);
    level.style.color = variant.color;
    head.append(node("h4", "", variant.name), level);
    const shows = node("p", "laboratory-shows", variant.shows);
    shows.title = variant.shows;
    made.append(head, shows, ...variant.lanes.map(lane));
    if (variant.caption) made.append(node("p", "laboratory-caption", variant.caption));
    const figures = node("dl");
    for (const [name, value] of variant.figures) {
      const pair = node("div");
      pair.append(node("dt", "", name), node("dd", "", value));
      figures.append(pair);
    }
    const links = node("p", "laboratory-links");
    links.append(...variant.links.map(link));
    made.append(figures, links);
    return made;
  };

  clientside.overlapscope_laboratory = {
    draw: (experiments) => {
      for (const { element, variants } of experiments || []) {
        const mount = document.getElementById(element);
        if (mount) mount.replaceChildren(...variants.map(card));
      }
      return "drawn";
    },
  };
})();
