"""Whether a replay can be believed: it must give the recording back when nothing is changed."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.trust import clocks_agree, judge_file
from overlapscope.base.words import duration, percent, plural, unit_for
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.replay import Replay
from overlapscope.prediction.result import Fidelity
from overlapscope.prediction.steps import StepTimes

MOST_ERROR_PCT = 2.0
"""A replay is valid where the median error of the step times is at most this..."""
LATE = 0.99
"""...and so large a share of the ops begin within the launch latency of where they were measured to."""
_LEAST_LATENCY_NS = 10_000
MOST_SPREAD = 0.25
"""Steps that differ by more than this share are told of."""
MOST_LOST = 0.01
"""A replay is valid where at most this share of the ops behind the lead-in has no recorded launch."""


def judge(
    graph: Graph, replayed: Replay, measured: StepTimes, steps: StepTimes, device: int, lead_in_end_ns: int
) -> Fidelity:
    """Compare the replay of the unchanged graph with the recording."""
    items = graph.items
    here = items.device == device
    error_pct = float(100 * np.median(np.abs(steps.known - measured.known) / np.maximum(measured.known, 1)))
    # Where each begins within its step: an error in one step is not carried into the next.
    step = np.maximum(np.searchsorted(measured.start_ns, items.start_ns[here], side="right") - 1, 0)
    late = replayed.start_ns[here] - steps.start_ns[step] - (items.start_ns[here] - measured.start_ns[step])
    latency = max(graph.constants.launch_latency_ns or 0, _LEAST_LATENCY_NS)
    near = float(np.mean(np.abs(late) <= latency)) if len(late) else 1.0
    reasons = []
    checks = judge_file(graph.trace)
    if not clocks_agree(checks):
        reasons.append("The clocks of host and device do not agree, so what launched what cannot be told.")
    # Ops of the lead-in were launched before the recording, and lack nothing.
    behind = items.start_ns[here] >= lead_in_end_ns
    lost = float(np.mean(items.call[here][behind] < 0)) if behind.any() else 1.0
    if lost > MOST_LOST:
        reasons.append(
            f"{percent(100 * lost)} of the GPU ops have no recorded launch, so what they waited for cannot be told."
        )
    if error_pct > MOST_ERROR_PCT:
        reasons.append(
            f"The replay's steps differ from the recorded ones by {percent(error_pct)} (median), more than "
            f"{MOST_ERROR_PCT:g}%."
        )
    if near < LATE:
        text = duration(latency)
        reasons.append(
            f"{percent(100 * (1 - near))} of the ops begin more than a launch's latency ({text}) away from where they "
            "were recorded."
        )
    valid, unexplained = not reasons, int(graph.unexplained_ns[here].sum())
    if valid and device in graph.keeping:
        text = duration(unexplained)
        reasons.append(f"Nothing in the recording explains waits of {text} in all; they are kept unchanged.")
    if valid:
        reasons += _untied(graph)
    if valid:
        reasons += [check.detail for check in checks if check.status == "fail"]
        reasons += _differing(measured)
    return Fidelity(
        valid=valid,
        reasons=tuple(reasons),
        step_error_pct=error_pct,
        start_error_ns=int(np.abs(late).max(initial=0)),
        launch_latency_ns=latency,
        unexplained_ns=unexplained,
    )


def _untied(graph: Graph) -> list[str]:
    """A doubt about threads of which nothing tells what they wait for."""
    calls = graph.calls
    untied = np.unique(calls.thread[(calls.maybe_by >= 0) & (calls.handed_by < 0)])
    if not len(untied):
        return []
    made = plural(int(np.isin(calls.thread, untied).sum()), "call")
    return [
        f"Nothing in the recording tells what {plural(len(untied), 'thread')} with {made} waited for: those calls are "
        "kept where they were, and the interval allows for their coming earlier."
    ]


def _differing(measured: StepTimes) -> list[str]:
    """A doubt about steps that are so different that one of them hardly stands for all."""
    low, high = measured.spread
    if high <= low * (1 + MOST_SPREAD):
        return []
    unit = unit_for(high)
    return [f"The recorded steps differ: most take {unit.text(low)} to {unit.text(high)}."]
