"""Entries of a history made by hand: small reports, with any figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from overlapscope.analysis.results import Environment, TraceResult, Trust
from overlapscope.plugins.history.entry import Entry, HistoryFigure, digest
from overlapscope.report.model import Report
from overlapscope.report.origin import Origin

REPORT = Report(
    traces=(
        TraceResult(
            source="train.json.gz",
            rank=None,
            trust=Trust(verdict="trusted", checks=()),
            devices=(),
            environment=Environment(),
        ),
    ),
    findings=(),
)


def figure(metric: str, value: float, *, rank: int | None = None, device: int = 0, **more: Any) -> HistoryFigure:
    return HistoryFigure(
        metric=metric, rank=rank, device=device, value=value, **({"spread": 1.0, "samples": 5, "floor": 0.0} | more)
    )


def make_entry(
    at_ns: int, figures: Iterable[HistoryFigure] = (), *, job: str = "train.py", plain: bool = True, **more: Any
) -> Entry:
    """`more` are fields of the origin, and `gpu`."""
    gpu = more.pop("gpu", "NVIDIA H200")
    origin = Origin(at_ns=at_ns, job=job, **more)
    return Entry(
        id=digest(origin, REPORT, plain=plain),
        origin=origin,
        plain=plain,
        gpu=gpu,
        figures=tuple(figures),
        report=REPORT,
    )
