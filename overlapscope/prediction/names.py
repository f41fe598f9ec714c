"""Names from traces that interventions are told: calls and ranges."""

from __future__ import annotations

from collections.abc import Sequence

from overlapscope.analysis.host import find_blocking, inside_named
from overlapscope.analysis.periods import names_of
from overlapscope.base.names import check_known
from overlapscope.trace.model import Trace


def check_names(trace: Trace, interventions: Sequence[str]) -> None:
    """Raises UsageError for a call of `no-sync` or a range of `graph` that the trace does not have.

    What is wrong with the interventions themselves, `predict` says.
    """
    for name, _, argument in (one.strip().partition(" ") for one in interventions):
        asked = argument.strip()
        if asked and name == "graph":
            _check_range(trace, asked)
        elif asked and name == "no-sync":
            _check_call(trace, asked)


def _check_range(trace: Trace, asked: str) -> None:
    notes = trace.annotations
    if not notes.named(lambda name: name == asked).any():
        check_known(
            trace.source, "range", asked, names_of(notes)[1], none="none but the steps" if len(notes) else "none"
        )


def _check_call(trace: Trace, asked: str) -> None:
    calls, rows = trace.runtime_calls, find_blocking(trace).row
    if not inside_named(trace, asked, calls.thread[rows], calls.start_ns[rows]).any():
        check_known(trace.source, "blocking call", asked, dict.fromkeys(map(calls.name, rows.tolist())))
