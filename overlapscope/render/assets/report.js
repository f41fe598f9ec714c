// Draws the report's timelines from embedded tiles, and links findings to them.
(async function () {
  "use strict";
  const overlapscope = window.overlapscope;
  const mounts = [...document.querySelectorAll(".timeline .mount")];
  if (!mounts.length) return;
  if (!overlapscope.unpackable) {
    mounts.forEach((element) => overlapscope.failed(element, overlapscope.tooOld));
    return;
  }
  const [timelines, palettes] = await Promise.all([overlapscope.data("timelines"), overlapscope.data("palettes")]);
  const mounted = {};

  const palette = (dark) => palettes[dark ? 1 : 0];

  for (const element of mounts) {
    const { model, tiles, worst, view } = timelines[element.id];
    mounted[element.id] = overlapscope.mountTimeline(element, {
      model,
      source: overlapscope.staticSource(tiles, model.categories, worst),
      palette: palette(overlapscope.isDark()),
      view: { start: view[0], end: view[1] },
    });
  }
  const recolor = (dark) => Object.values(mounted).forEach((one) => one.setPalette(palette(dark)));
  document.addEventListener("overlapscope:theme", (event) => recolor(event.detail.dark));
  addEventListener("beforeprint", () => overlapscope.isDark() && recolor(false));
  addEventListener("afterprint", () => overlapscope.isDark() && recolor(true));

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".show");
    const timeline = button && mounted[button.dataset.timeline];
    if (!timeline) return;
    timeline.setView(...button.dataset.view.split(" ").map(Number));
    const [start, end] = button.dataset.example.split(" ").map(Number);
    timeline.select({ start, end });
    document.getElementById(button.dataset.timeline).closest(".timeline").scrollIntoView({ behavior: "smooth" });
  });
})();
