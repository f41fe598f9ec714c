"""Step times of changed programs, predicted by replaying a recording's dependency graph."""

from __future__ import annotations

from overlapscope.prediction.gains import best
from overlapscope.prediction.predict import Prediction, predict

__all__ = ["Prediction", "best", "predict"]
