"""What was predicted of changes, beside what `overlapscope try` measured: how far predictions can be believed."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec


class StoredPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes to one program; percentages are of its plain step, negative where it is faster."""

    at_ns: int
    """When it was measured, in nanoseconds since 1970."""
    program: str
    """Its command line."""
    device: str | None
    """The product name of the GPU."""
    change: str
    """The set, as `try` names it: `pin-memory, workers (6)`."""
    predicted_pct: float
    low_pct: float
    high_pct: float
    measured_pct: float
    measured_low_pct: float | None
    """None where there were too few runs for an interval, as of `measured_high_pct`."""
    measured_high_pct: float | None

    @property
    def error_pct(self) -> float:
        """How far apart the two are, in percent of the plain step."""
        return abs(self.predicted_pct - self.measured_pct)

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the interval that was predicted."""
        return self.low_pct <= self.measured_pct <= self.high_pct


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """How predictions did on one device."""

    device: str | None
    count: int
    error_pct: float
    """The median, in percent of the plain step."""
    inside: int
    """How many measurements lay in the predicted interval."""


def beliefs(predictions: Iterable[StoredPrediction]) -> list[Belief]:
    """One for each device, in the order in which they come."""
    by_device: dict[str | None, list[StoredPrediction]] = {}
    for prediction in predictions:
        by_device.setdefault(prediction.device, []).append(prediction)
    return [
        Belief(
            device=device,
            count=len(mine),
            error_pct=median(one.error_pct for one in mine),
            inside=sum(one.inside for one in mine),
        )
        for device, mine in by_device.items()
    ]
