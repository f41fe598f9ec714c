// What grids need beside their data: links in cells, and harmless cells in an export.
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

  // A spreadsheet takes text that begins like a formula for one (OWASP, "CSV Injection"); a quote keeps it text.
  functions.csvCell = ({ value }) => (typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : value);
})();
