/* Report a server that no longer answers, or that isn't the page's own; otherwise clicks would silently do nothing. */
(() => {
  "use strict";
  const ask = window.fetch;
  let notice = null;

  const tell = (sentence) => {
    if (notice) notice.remove();
    notice = null;
    if (!sentence) return;
    notice = document.createElement("div");
    notice.id = "connection-lost";
    notice.setAttribute("role", "alert");
    notice.textContent = sentence;
    document.body.append(notice);
  };

  window.fetch = async (...request) => {
    try {
      const answer = await ask(...request);
      tell(answer.status === 401 && "The server was restarted. Open the address that it printed.");
      return answer;
    } catch (error) {
      // Requests that the page itself cancelled tell nothing about the server.
      if (error.name !== "AbortError") tell("The server does not answer. Is the dashboard still running?");
      throw error;
    }
  };
})();
