/* Sends traces that are dropped anywhere on the page, or chosen with the button `upload-button`, to the server and
   opens them. File names are foreign text, so they only go into textContent. */
(() => {
  "use strict";
  const UNITS = ["B", "kB", "MB", "GB", "TB"];
  const NOT_TAKEN = { 401: "this page's token is no longer valid; open the printed address again", 413: "too large" };

  const element = (tag, id, parent) => {
    const made = document.createElement(tag);
    made.id = id;
    parent.appendChild(made);
    return made;
  };

  const sized = (bytes) => {
    let value = bytes;
    let unit = 0;
    for (; value >= 999.5 && unit < UNITS.length - 1; unit += 1) value /= 1000;
    return `${Number(value.toPrecision(3))} ${UNITS[unit]}`;
  };

  // -- Display

  let parts = null;
  // The upload in progress: {request, cancelled}.
  let sending = null;

  const dismiss = () => {
    if (sending) {
      sending.cancelled = true;
      if (sending.request) sending.request.abort();
    }
    overlay().root.hidden = true;
  };

  const overlay = () => {
    if (parts) return parts;
    const root = element("div", "upload-overlay", document.body);
    root.hidden = true;
    const box = element("div", "upload-box", root);
    const message = element("p", "upload-message", box);
    message.setAttribute("role", "status");
    const progress = element("progress", "upload-progress", box);
    progress.max = 1;
    progress.setAttribute("aria-label", "sent");
    const close = element("button", "upload-close", box);
    close.type = "button";
    close.addEventListener("click", dismiss);
    parts = { root, message, progress, close };
    return parts;
  };

  const show = (state, text) => {
    const { root, message, progress, close } = overlay();
    root.hidden = false;
    root.dataset.state = state;
    message.textContent = text;
    progress.hidden = state !== "sending";
    close.hidden = state === "inviting";
    close.textContent = state === "sending" ? "Cancel" : "Close";
    if (state === "failed") close.focus();
  };

  // -- Sending

  const unreachable = (file) =>
    new Error(`${file.name}: the server cannot be reached; is the dashboard still running?`);

  const notTaken = (file, status) => `${file.name}: was not taken (${NOT_TAKEN[status] || `status ${status}`}).`;

  const checkSize = async (file) => {
    if (!file.size) throw new Error(`${file.name}: the file is empty, or a folder; drop trace files.`);
    const answer = await fetch(`${window.overlapscope.basePath()}api/upload`).catch(() => {
      throw unreachable(file);
    });
    if (!answer.ok) throw new Error(notTaken(file, answer.status));
    const room = (await answer.json()).room_bytes;
    if (file.size <= room) return;
    throw new Error(
      `${file.name}: has ${sized(file.size)}, but this server has room for ${sized(room)}; ` +
        "start the dashboard with a larger --max-upload.",
    );
  };

  const errorOf = (request, file) => {
    try {
      return JSON.parse(request.responseText).error || "";
    } catch {
      return notTaken(file, request.status);
    }
  };

  const send = (file, title, job) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      job.request = request;
      request.open("POST", `${window.overlapscope.basePath()}api/upload?name=${encodeURIComponent(file.name)}`);
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.addEventListener("progress", (event) => {
        const { progress, message } = overlay();
        progress.value = event.lengthComputable ? event.loaded / event.total : 0;
        message.textContent = `${title}: ${sized(event.loaded)} of ${sized(file.size)}`;
      });
      request.addEventListener("load", () => {
        if (request.status === 200) resolve(JSON.parse(request.responseText).id);
        else reject(new Error(errorOf(request, file)));
      });
      request.addEventListener("error", () => reject(unreachable(file)));
      request.addEventListener("abort", () => resolve(null));
      request.send(file);
    });

  const open = async (files) => {
    if (sending || !files.length) return;
    const job = { request: null, cancelled: false };
    let first = null;
    sending = job;
    try {
      for (const [number, file] of files.entries()) {
        const title = files.length > 1 ? `${file.name} (${number + 1} of ${files.length})` : file.name;
        show("sending", title);
        overlay().progress.value = 0;
        await checkSize(file);
        const id = job.cancelled ? null : await send(file, title, job);
        if (job.cancelled) return;
        first = first || id;
      }
    } catch (error) {
      show("failed", error.message);
      return;
    } finally {
      sending = null;
    }
    window.location.assign(`${window.overlapscope.basePath()}overview?trace=${encodeURIComponent(first)}`);
  };

  // -- Dropping and choosing

  // `dragleave` also fires when the pointer moves from an element to its child, so count the elements.
  let entered = 0;

  const onFiles = (kind, act) =>
    document.addEventListener(kind, (event) => {
      if (event.dataTransfer && Array.from(event.dataTransfer.types).includes("Files")) act(event);
    });

  onFiles("dragenter", () => {
    if (sending) return;
    entered += 1;
    show("inviting", "Drop a trace to open it");
  });
  onFiles("dragleave", () => {
    if (sending) return;
    entered = Math.max(0, entered - 1);
    if (!entered) dismiss();
  });
  onFiles("dragover", (event) => {
    event.preventDefault();
    event.dataTransfer.dropEffect = sending ? "none" : "copy";
  });
  onFiles("drop", (event) => {
    event.preventDefault();
    entered = 0;
    open(Array.from(event.dataTransfer.files));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && parts && !parts.root.hidden) dismiss();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest || !event.target.closest("#upload-button")) return;
    const chooser = document.createElement("input");
    chooser.type = "file";
    chooser.multiple = true;
    chooser.accept = ".json,.gz,.zst,.sqlite,.pb";
    chooser.addEventListener("change", () => open(Array.from(chooser.files)));
    chooser.click();
  });
})();
