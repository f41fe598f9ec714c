"""Why a trace's figures cannot be believed, or are not those of a recording."""

from __future__ import annotations

from collections.abc import Collection

from overlapscope.analysis.results import TraceResult
from overlapscope.base.words import clean
from overlapscope.catalog.checks import check_by_id
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.trace.lost import Part, part_words


def doubt(trace: TraceResult, rests_on: Collection[Part]) -> str | None:
    """Why nothing can be said of a trace's figures that are computed from these parts of the recording; None where they
    can be believed."""
    for check in sorted(
        trace.trust.checks, key=lambda check: (not check_by_id(check.id).grave, check.status != "fail")
    ):
        gone = check.lost_parts.intersection(rests_on)
        if gone:
            what = f"by the trust check {check.id} some {part_words(gone)} are lost or wrong"
            if check.status == "fail":
                what = f"the trust check {check.id} failed"
            what = check_by_id(check.id).grave or what
            return f"{what} ({clean(check.detail, 300).rstrip('.')})"
    return None


def refuse_predicted(report: Report) -> None:
    """Raises UsageError where a trace is no recording."""
    for trace in report.traces:
        if trace.predicted_by is not None:
            changes = ", ".join(trace.predicted_by) or "with nothing changed"
            raise UsageError(
                f"{trace.source}: was predicted by `overlapscope whatif` ({clean(changes, 120)}), and is no recording; "
                "name a recording of the changed program, or say --allow-predicted."
            )
