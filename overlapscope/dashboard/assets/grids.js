// Helpers of grids: links in cells, and safe cells in exports.
(function () {
  "use strict";

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  components.TimelineLink = function (props) {
    if (!props.value) {
      return null;
    }
    const onClick = (event) => window.overlapscope.follow(event, props.value);
    return React.createElement("a", { href: props.value, onClick, className: "timeline-link" }, `${props.text} →`);
  };

  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});

  // A click anywhere in a row with a link follows it, unless text was selected.
  functions.openRow = ({ data, event }) => {
    if (data.href && !event.target.closest("a") && !String(window.getSelection())) {
      window.overlapscope.follow(event, data.href);
    }
  };

  // A spreadsheet executes text that starts like a formula (OWASP, "CSV Injection"); a quote prevents that.
  functions.csvCell = ({ value }) => (typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : value);
})();
