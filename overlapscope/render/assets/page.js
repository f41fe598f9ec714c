// Common script of HTML files: light and dark, embedded data, and charts.
(function () {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const overlapscope = (window.overlapscope = window.overlapscope || {});

  // -- Light and dark ------------------------------------------------------------------------------

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const changed = () => document.dispatchEvent(new CustomEvent("overlapscope:theme", { detail: { dark: isDark() } }));
  overlapscope.isDark = isDark;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    changed();
  });
  system.addEventListener("change", changed);

  // -- Data ----------------------------------------------------------------------------------------

  const unpackable = typeof DecompressionStream === "function";

  overlapscope.unpack = async function (base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };

  async function packedText(name) {
    const element = document.getElementById("packed-" + name);
    return element && new TextDecoder().decode(await overlapscope.unpack(element.textContent));
  }

  overlapscope.data = async (name) => JSON.parse((await packedText(name)) || "null");

  overlapscope.failed = function (element, why) {
    element.classList.add("failed");
    element.dataset.why = why;
  };

  // -- Charts --------------------------------------------------------------------------------------

  const PAPER_PX = 640;
  const options = {
    displaylogo: false,
    responsive: true,
    displayModeBar: "hover",
    // Nothing may be sent anywhere.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "png", scale: 2 },
  };
  const old = "This browser is too old to draw this: it cannot unpack compressed data.";

  function figure([light, dark], isDark) {
    // Plotly changes what it gets.
    return structuredClone(isDark ? dark : light);
  }

  async function drawCharts() {
    const places = document.querySelectorAll(".plot");
    if (!places.length) return;
    if (!unpackable) {
      places.forEach((element) => overlapscope.failed(element, old));
      return;
    }
    const [charts, plotly] = await Promise.all([overlapscope.data("charts"), packedText("plotly")]);
    const script = document.createElement("script");
    script.textContent = plotly;
    document.head.append(script);
    for (const element of places) element.style.height = charts[element.id][0].layout.height + "px";
    for (const element of places) {
      const one = figure(charts[element.id], isDark());
      // Draw charts one at a time, so that the page stays scrollable.
      await new Promise((resume) => setTimeout(resume));
      await window.Plotly.newPlot(element, one.data, one.layout, options);
    }
    const redraw = (dark, width) =>
      places.forEach((element) => {
        const one = figure(charts[element.id], dark);
        window.Plotly.react(element, one.data, width ? { ...one.layout, width } : one.layout, options);
      });
    document.addEventListener("overlapscope:theme", (event) => redraw(event.detail.dark));
    // Paper is white, and has no scroll bars.
    addEventListener("beforeprint", () => redraw(false, PAPER_PX));
    addEventListener("afterprint", () => redraw(isDark()));
    root.dataset.charts = "drawn";
  }

  overlapscope.unpackable = unpackable;
  overlapscope.tooOld = old;
  drawCharts();
})();
