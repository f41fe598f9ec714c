"""A variant's small timeline as one SVG, for pages that show many of them."""

from __future__ import annotations

import base64

from overlapscope.laboratory.results import Strip
from overlapscope.views.colors import palette
from overlapscope.views.laboratory_html import LANE_COLORS, lane_rectangles


def data_uri(strip: Strip, dark: bool) -> str:
    """The strip as a `data:` URI of an SVG that stretches to any width; one row for each kind of work."""
    colors = palette(dark)
    slices = max((len(lane.fill) for lane in strip.lanes), default=1) or 1
    rows = "".join(
        f'<g fill="{colors.get(LANE_COLORS.get(lane.name, lane.name), colors["muted"])}">'
        f'<rect x="0" y="{2 * number}" width="{slices}" height="1.6" fill="{colors["background"]}"/>'
        f'<g transform="translate(0 {2 * number}) scale(1 1.6)">{lane_rectangles(lane, 0)}</g></g>'
        for number, lane in enumerate(strip.lanes)
    )
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {slices} {max(1, 2 * len(strip.lanes))}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">{rows}</svg>'
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode('ascii')}"
