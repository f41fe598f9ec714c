"""A trace prepared to be drawn at any zoom: lanes of ops, exact fills of pixel columns, and details of single ops.

Pure numpy. A browser gets the results of these functions through `dashboard.routes`.
"""

from overlapscope.timeline.build import bounds, build
from overlapscope.timeline.details import op, span
from overlapscope.timeline.lane import CATEGORIES, LaneRow, Lanes, TimelineLane
from overlapscope.timeline.search import SUBJECTS, Subject, search, worst
from overlapscope.timeline.view import model, nearest_op, view

__all__ = [
    "CATEGORIES",
    "SUBJECTS",
    "LaneRow",
    "Lanes",
    "Subject",
    "TimelineLane",
    "bounds",
    "build",
    "model",
    "nearest_op",
    "op",
    "search",
    "span",
    "view",
    "worst",
]
