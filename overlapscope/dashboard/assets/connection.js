/* Says so where the server no longer answers: a click would do nothing at all, and nobody could tell why. */
(() => {
  "use strict";
  const ask = window.fetch;
  let notice = null;

  const tell = (lost) => {
    if (lost === Boolean(notice)) return;
    if (!lost) {
      notice.remove();
      notice = null;
      return;
    }
    notice = document.createElement("div");
    notice.id = "connection-lost";
    notice.setAttribute("role", "alert");
    notice.textContent = "The server does not answer. Is the dashboard still running?";
    document.body.append(notice);
  };

  window.fetch = async (...request) => {
    try {
      const answer = await ask(...request);
      tell(false);
      return answer;
    } catch (error) {
      // One that the page itself gave up says nothing.
      if (error.name !== "AbortError") tell(true);
      throw error;
    }
  };
})();
