"""What a program would take if it were changed: predicted from its recording, by replaying the dependency graph."""

from __future__ import annotations

from overlapscope.prediction.gains import best
from overlapscope.prediction.predict import Prediction, predict

__all__ = ["Prediction", "best", "predict"]
