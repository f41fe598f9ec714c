"""Predictions of changes beside the measurements of `overlapscope try`, to show how reliable predictions are."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from overlapscope.history.entry import Instant, Quantity


class StoredPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted and measured set of changes. Percentages are of the plain step, negative if it gets faster."""

    at_ns: Instant
    """Time of the measurement."""
    program: str
    """Command line of the program."""
    device: str | None
    """Product name of the GPU."""
    change: str
    """Changes, as `try` names them: `pin-memory, workers (6)`."""
    predicted_pct: Quantity
    low_pct: Quantity
    high_pct: Quantity
    measured_pct: Quantity
    measured_low_pct: Quantity | None
    """Lower end of the measured interval; None if there were too few runs."""
    measured_high_pct: Quantity | None

    @property
    def error_pct(self) -> float:
        """Difference between prediction and measurement, in percent of the plain step."""
        return abs(self.predicted_pct - self.measured_pct)

    @property
    def inside(self) -> bool:
        """True if the measurement lies in the predicted interval."""
        return self.low_pct <= self.measured_pct <= self.high_pct


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of the predictions on a device."""

    device: str | None
    count: int
    error_pct: float
    """Median error, in percent of the plain step."""
    inside: int
    """Number of measurements in the predicted interval."""


def beliefs(predictions: Iterable[StoredPrediction]) -> list[Belief]:
    """Return the accuracy by device, in the order of their first predictions."""
    by_device: dict[str | None, list[StoredPrediction]] = {}
    for prediction in predictions:
        by_device.setdefault(prediction.device, []).append(prediction)
    return [
        Belief(
            device=device,
            count=len(mine),
            error_pct=median(prediction.error_pct for prediction in mine),
            inside=sum(prediction.inside for prediction in mine),
        )
        for device, mine in by_device.items()
    ]
