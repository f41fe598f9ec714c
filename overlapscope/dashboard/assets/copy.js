/* Buttons that copy the text of their attribute `data-copy`. */
(() => {
  "use strict";
  const SAID_MS = 1500;

  /* Pages of another machine without TLS have no clipboard of their own; the browser copies what is selected. */
  const copySelected = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("The browser does not copy.");
  };

  const copy = async (text) => (navigator.clipboard ? navigator.clipboard.writeText(text) : copySelected(text));

  document.addEventListener("click", async (event) => {
    const button = event.target.closest && event.target.closest("button[data-copy]");
    if (!button) return;
    button.textContent = await copy(button.dataset.copy).then(
      () => "Copied",
      () => "Not copied",
    );
    setTimeout(() => (button.textContent = "Copy"), SAID_MS);
  });
})();
