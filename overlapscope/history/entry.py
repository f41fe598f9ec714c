"""An entry of the history: what is kept of one report, and where that comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.budgets.verdicts import CheckResult
from overlapscope.report.model import Report

SCHEMA_VERSION = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a report comes from; None is what nobody knows."""

    at_ns: int
    """When it was recorded, in nanoseconds since 1970 (UTC)."""
    job: str
    """What the runs of one program have in common: by default the name of the script."""
    commit: str | None = None
    branch: str | None = None
    host: str | None = None
    labels: dict[str, str] = {}
    """Whatever else runs are told apart by."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one device of one rank, over the steps that are judged."""

    metric: str
    """An id of `budgets.metrics.METRICS`, or a cause: `idle_time/host-sync`."""
    rank: int | None
    device: int
    value: float
    """Nanoseconds, percent or 1e9 bytes a second: of a step, as `check` judges it."""
    spread: float | None
    """Standard deviation of the steps; None of fewer than two."""
    samples: int
    """Steps that it is made of."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one report, as it stands in a file drop, too."""

    kind: Literal["history-entry"] = "history-entry"
    schema_version: int = SCHEMA_VERSION
    id: str
    """A digest of what follows: who adds an entry twice has it once."""
    origin: Origin
    plain: bool
    """The figures are of the plain program, else of the recording: the two are never compared."""
    gpu: str | None
    figures: tuple[Figure, ...]
    report: Report
    check: CheckResult | None = None
