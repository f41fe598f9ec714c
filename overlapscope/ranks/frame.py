"""The frame of what people read about ranks: an average step of each rank, as recorded."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from overlapscope.analysis.figures import PerStep, efficiency_shown, hidden_copy_shown
from overlapscope.ranks.result import RankRow, RanksReport


def by_steps(rows: Sequence[RankRow]) -> bool:
    """Return whether every rank has an average step, so that figures are of a step."""
    return bool(rows) and all(row.judged is not None and row.judged.steps for row in rows)


def rows_of(report: RanksReport) -> tuple[RankRow, ...]:
    """Return the rows of a report with the figures that people read."""
    return framed(report.ranks, report.met_steps)


def framed(rows: Sequence[RankRow], met_steps: int) -> tuple[RankRow, ...]:
    """Return the rows with the figures of an average step, and their waits divided by the number of steps.

    If no rank has steps, figures are of the time after the lead-in. If only some have steps, no frame fits all ranks,
    and figures stay those of their windows.

    Args:
        rows: All rows of a report.
        met_steps: `RanksReport.met_steps`.
    """
    stepped = by_steps(rows)
    if not stepped and any(row.judged is None or row.judged.steps for row in rows):
        return tuple(rows)
    divisor = max(1, met_steps) if stepped else 1
    return tuple(row if row.judged is None else _framed(row, row.judged, divisor) for row in rows)


def _framed(row: RankRow, judged: PerStep, steps: int) -> RankRow:
    def each(total_ns: int | None) -> int | None:
        return None if total_ns is None else round(total_ns / steps)

    return replace(
        row,
        span_ns=judged.span_ns,
        buckets=judged.buckets,
        efficiency_pct=efficiency_shown(judged),
        hidden_copy_pct=hidden_copy_shown(judged),
        comm_ns=judged.engines.comm_ns,
        exposed_comm_ns=judged.buckets.exposed_comm_ns,
        comm_compute_pct=judged.overlap.comm_compute_pct,
        waited_ns=each(row.waited_ns),
        waited_exposed_ns=each(row.waited_exposed_ns),
        made_wait_ns=each(row.made_wait_ns),
    )
