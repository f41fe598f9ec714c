/* Opens the recording in Perfetto's page, which gets it as a message from this one and sends it nowhere
   (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui). */
(() => {
  "use strict";
  const PAGE = "https://ui.perfetto.dev";
  const PING_MS = 50;

  /* Resolve when the page answers, or when the user closes it. */
  const ready = (opened) =>
    new Promise((resolve) => {
      const done = (answers) => {
        clearInterval(timer);
        window.removeEventListener("message", hear);
        resolve(answers);
      };
      const hear = (event) => {
        if (event.source === opened && event.origin === PAGE && event.data === "PONG") done(true);
      };
      // Until the page listens, messages are lost.
      const timer = setInterval(() => (opened.closed ? done(false) : opened.postMessage("PING", PAGE)), PING_MS);
      window.addEventListener("message", hear);
    });

  const open = async (href) => {
    const opened = window.open(PAGE);
    if (!opened) {
      // The browser blocks new windows. Perfetto also opens the file that this downloads.
      window.location.assign(href);
      return;
    }
    const [answer, answers] = await Promise.all([fetch(href), ready(opened)]);
    if (!answers) return;
    if (!answer.ok) {
      opened.close();
      window.location.assign(href);
      return;
    }
    const title = new URL(href, window.location.href).searchParams.get("trace") || "trace";
    opened.postMessage({ perfetto: { buffer: await answer.arrayBuffer(), title } }, PAGE);
  };

  document.addEventListener(
    "click",
    (event) => {
      const link = event.target.closest("#export-perfetto");
      if (!link) return;
      event.preventDefault();
      event.stopPropagation();
      open(link.href);
    },
    true,
  );
})();
