// What grids need beside their data: links in cells, and harmless cells in an export.
(function () {
  "use strict";

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  // Plain anchors, so that they open in a new tab too, that Dash follows without a reload.
  components.TimelineLink = function (props) {
    if (!props.value) {
      return null;
    }
    const follow = (event) => {
      if (event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey) {
        event.preventDefault();
        window.dash_clientside.set_props("url", { href: props.value });
      }
    };
    return React.createElement("a", { href: props.value, onClick: follow, className: "timeline-link" }, "timeline →");
  };

  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});

  // A spreadsheet takes text that begins like a formula for one (OWASP, "CSV Injection"); a quote keeps it text.
  functions.csvCell = ({ value }) => (typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : value);
})();
