// Helpers of grids: links in cells, safe cells in exports, and the button and the search beside each grid.
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

  // The button ID-csv and the input ID-search belong to the grid ID.
  const gridOf = ({ target }, suffix) => {
    const id = (target.closest && target.closest(`[id$="${suffix}"]`) || { id: "" }).id.slice(0, -suffix.length);
    return id && document.getElementById(id)?.classList.contains("grid") ? id : null;
  };
  document.addEventListener("click", (event) => {
    const id = gridOf(event, "-csv");
    if (!id) return;
    const api = window.dash_ag_grid.getApi(id);
    const columnKeys = api.getColumns().map((column) => column.getColId()).filter((key) => key !== "href");
    api.exportDataAsCsv({ fileName: `${id}.csv`, columnKeys, processCellCallback: functions.csvCell });
  });
  document.addEventListener("input", (event) => {
    const id = gridOf(event, "-search");
    if (id) window.dash_ag_grid.getApi(id).setGridOption("quickFilterText", event.target.value);
  });
})();
