"""A trace prepared to be drawn at any zoom: lanes of ops, exact fills of pixel columns, all that is known of one op.

Pure numpy; a browser gets what these functions return, through `dashboard.timeline_routes`.
"""

from overlapscope.timeline.build import build
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.details import op
from overlapscope.timeline.lane import Lane, Lanes
from overlapscope.timeline.model import model
from overlapscope.timeline.places import Place
from overlapscope.timeline.search import search
from overlapscope.timeline.span import span
from overlapscope.timeline.view import view
from overlapscope.timeline.wide import at as _at
from overlapscope.timeline.worst import SUBJECTS, Subject, worst

__all__ = [
    "CATEGORIES",
    "SUBJECTS",
    "Lane",
    "Lanes",
    "Place",
    "Subject",
    "at",
    "build",
    "model",
    "op",
    "search",
    "span",
    "view",
    "worst",
]


def at(lanes: Lanes, lane_id: int, start_ns: int, end_ns: int) -> int | None:
    """Row of the op of a lane nearest the middle of a span (`wide.at`). Raises KeyError where there is no such lane."""
    return _at(lanes.lane(lane_id), start_ns, end_ns)
