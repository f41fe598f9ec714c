/* Says so where the server no longer answers, or is another one than the page is from: a click would do nothing at all,
   and nobody could tell why. */
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
      // One that the page itself gave up says nothing.
      if (error.name !== "AbortError") tell("The server does not answer. Is the dashboard still running?");
      throw error;
    }
  };
})();
