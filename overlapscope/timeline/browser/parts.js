/* Parts of a timeline around its canvas: toolbar with search, help, panels. */
(() => {
  "use strict";
  const lib = (window.overlapscope = window.overlapscope || {});
  const TYPING_MS = 180;

  const HELP = [
    ["W / S, ↑ / ↓, ctrl + wheel", "zoom in and out at the mouse"],
    ["A / D, ← / →, shift + wheel", "move left and right"],
    ["shift + drag, middle button + drag", "move the view"],
    ["wheel", "scroll the lanes"],
    ["drag", "select a stretch of time; its edges can be dragged"],
    ["click", "choose an op: its details and arrows"],
    ["F, double click", "fit the chosen op, or the selected time"],
    ["0", "fit the whole trace"],
    ["/", "search; Enter next, shift + Enter previous"],
    ["Esc", "clear choice and selection"],
    ["click on a group's name", "fold or unfold it"],
    ["?", "this help"],
  ];

  const WORST = [
    ["exposed-copy", "exposed copy"],
    ["idle", "idle gap"],
    ["stall", "host stall"],
  ];

  const button = (text, label, action) => {
    const made = lib.node("button", "tl-button", text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.title = label;
    made.addEventListener("click", action);
    return made;
  };

  /* Build everything into the element, and store the parts in the timeline. `options.details` is an external element
     for the chosen op's panel. */
  lib.buildParts = (timeline) => {
    const { element, options } = timeline;
    const { node } = lib;
    element.classList.add("tl");
    timeline.stage = node("div", "tl-stage");
    timeline.canvas = node("canvas", "tl-canvas");
    timeline.canvas.tabIndex = 0;
    timeline.canvas.setAttribute("role", "application");
    timeline.canvas.setAttribute(
      "aria-label",
      "Timeline. W and S zoom, A and D move, F fits the chosen op, 0 fits all, slash searches, question mark shows help.",
    );
    timeline.spacer = node("div");
    timeline.stage.append(timeline.canvas, timeline.spacer);
    timeline.tooltip = node("div", "tl-tooltip");
    timeline.tooltip.hidden = true;
    timeline.problem = node("div", "tl-problem");
    timeline.problem.setAttribute("role", "alert");
    timeline.problem.hidden = true;
    timeline.live = node("div", "tl-live");
    timeline.live.setAttribute("aria-live", "polite");
    timeline.legend = node("div", "tl-legend");
    timeline.help = help(timeline);
    timeline.searchInput = node("input", "tl-search");
    timeline.panel = options.details || node("div");
    timeline.panel.classList.add("tl-panel");
    const below = options.details ? [] : [timeline.panel];
    element.replaceChildren(
      toolbar(timeline),
      timeline.problem,
      timeline.stage,
      timeline.legend,
      ...below,
      timeline.help,
      timeline.tooltip,
      timeline.live,
    );
  };

  const toolbar = (timeline) => {
    const bar = lib.node("div", "tl-toolbar");
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", "timeline tools");
    const middle = () => (timeline.view.start + timeline.view.end) / 2;
    bar.append(
      search(timeline),
      // Without a device, nothing can have been lost on one.
      ...(timeline.model.window ? [worst(timeline)] : []),
      group(
        button("−", "zoom out", (event) => lib.zoom(timeline, 1.6, middle(), event)),
        button("+", "zoom in", (event) => lib.zoom(timeline, 1 / 1.6, middle(), event)),
        button("Fit", "fit the whole trace (0)", (event) => lib.fitAll(timeline, event)),
        button("?", "keys and mouse (?)", () => lib.showHelp(timeline, !lib.helpIsOpen(timeline))),
      ),
    );
    return bar;
  };

  const group = (...children) => {
    const made = lib.node("span", "tl-group");
    made.append(...children);
    return made;
  };

  /* -- Search ------------------------------------------------------------------------------------ */

  const search = (timeline) => {
    const input = timeline.searchInput;
    input.type = "search";
    input.placeholder = "Search by name";
    input.setAttribute("aria-label", "search by name");
    input.spellcheck = false;
    const count = lib.node("span", "tl-count");
    count.setAttribute("aria-live", "polite");
    const state = { text: "", at: null, timer: 0, turn: Promise.resolve() };

    /* Count the matches, or go to the next match for a request. */
    const look = async (text, direction, wish) => {
      if (!text) {
        state.text = "";
        count.textContent = "";
        return;
      }
      if (text !== state.text) Object.assign(state, { text, at: null });
      const after = state.at === null ? Math.floor(timeline.view.start) - 1 : state.at;
      try {
        const found = await timeline.source.search(text, after, direction);
        if (wish && found.match) {
          state.at = { lane: found.match.lane, row: found.match.row };
          count.textContent = `${found.number.toLocaleString("en-US")} of ${found.count.toLocaleString("en-US")}`;
          await lib.goToMatch(timeline, found.match, wish);
        } else {
          const many = found.count.toLocaleString("en-US");
          count.textContent = found.count ? `${many} ${found.count === 1 ? "match" : "matches"}` : "no match";
        }
      } catch (error) {
        lib.showProblem(timeline, error.message);
      }
    };

    /* Run one search after another, since each key press continues from the previous match. */
    const inTurn = (direction, wish) => {
      clearTimeout(state.timer);
      const text = input.value.trim();
      state.turn = state.turn.then(() => look(text, direction, wish));
    };
    const go = (direction) => inTurn(direction, lib.wish(timeline));

    input.addEventListener("input", () => {
      clearTimeout(state.timer);
      state.timer = setTimeout(() => inTurn(1, null), TYPING_MS);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        go(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        input.blur();
        timeline.canvas.focus({ preventScroll: true });
      }
    });
    return group(
      input,
      button("‹", "previous match (shift + Enter)", () => go(-1)),
      button("›", "next match (Enter)", () => go(1)),
      count,
    );
  };

  /* -- Worst cases ------------------------------------------------------------------------------- */

  const worst = (timeline) => {
    const made = group(lib.node("span", "tl-label", "Worst"));
    for (const [kind, word] of WORST) {
      let number = 0;
      let turn = Promise.resolve();
      const look = async (wish) => {
        try {
          const found = await timeline.source.worst(kind, number);
          if (!found.count) {
            one.textContent = `no ${word}`;
            one.disabled = true;
          } else if (found.match) {
            one.textContent = `${word} ${number + 1}/${found.count.toLocaleString("en-US")}`;
            number = (number + 1) % found.ranked;
            await lib.goToMatch(timeline, found.match, wish);
          }
        } catch (error) {
          lib.showProblem(timeline, error.message);
        }
      };
      const one = button(word, `go to the worst ${word}, then to the next`, () => {
        const wish = lib.wish(timeline);
        turn = turn.then(() => look(wish));
      });
      one.classList.add("tl-worst");
      made.append(one);
    }
    return made;
  };

  /* -- Help and problems ------------------------------------------------------------------------- */

  const help = (timeline) => {
    const box = lib.node("div", "tl-help");
    box.setAttribute("role", "dialog");
    box.setAttribute("aria-label", "keys and mouse");
    box.hidden = true;
    const table = lib.node("dl");
    for (const [keys, what] of HELP) {
      const pair = lib.node("div");
      pair.append(lib.node("dt", "", keys), lib.node("dd", "", what));
      table.append(pair);
    }
    const close = button("Close", "close this help", () => lib.showHelp(timeline, false));
    box.append(lib.node("strong", "", "Keys and mouse"), table, close);
    return box;
  };

  lib.helpIsOpen = (timeline) => !timeline.help.hidden;
  lib.showHelp = (timeline, open) => {
    lib.hideTooltip(timeline);
    timeline.help.hidden = !open;
  };

  lib.showProblem = (timeline, text) => {
    if (timeline.problem.textContent === text) return;
    timeline.problem.textContent = text;
    timeline.problem.hidden = !text;
  };
})();
