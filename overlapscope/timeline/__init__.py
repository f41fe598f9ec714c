"""A trace prepared to be drawn at any zoom: lanes of ops, exact fills of pixel columns, and details of single ops.

Pure numpy. A browser gets the results of these functions through `dashboard.timeline_routes`.
"""

from overlapscope.timeline.build import build
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.details import op
from overlapscope.timeline.lane import Lanes, TimelineLane
from overlapscope.timeline.links import LaneRow
from overlapscope.timeline.search import search
from overlapscope.timeline.span import span
from overlapscope.timeline.view import at, model, view
from overlapscope.timeline.worst import SUBJECTS, Subject, worst

__all__ = [
    "CATEGORIES",
    "SUBJECTS",
    "LaneRow",
    "Lanes",
    "Subject",
    "TimelineLane",
    "at",
    "build",
    "model",
    "op",
    "search",
    "span",
    "view",
    "worst",
]
