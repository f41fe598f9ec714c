// Links in the cells of a grid: plain anchors, so that they open in a new tab too, that Dash follows without a reload.
(function () {
  "use strict";

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

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
})();
