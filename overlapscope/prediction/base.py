"""A recording made ready for predictions: its dependency graph, replayed as recorded and as the plain program."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import distinct
from overlapscope.analysis.plain_step import PlainStep
from overlapscope.analysis.timeline import build as build_timeline
from overlapscope.analysis.trust import clocks_agree, judge_file
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import I64
from overlapscope.base.words import check_device, duration, percent, plural, unit_for
from overlapscope.errors import UsageError
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import Hardware, find_hardware
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import Fidelity
from overlapscope.prediction.steps import StepTimes, find_steps, step_times
from overlapscope.trace.model import Trace

MOST_ERROR_PCT = 2.0
"""A replay is valid where the median error of the step times is at most this..."""
LATE = 0.99
"""...and so large a share of the ops begin within the launch latency of where they were measured to."""
_LEAST_LATENCY_NS = 10_000
MOST_SPREAD = 0.25
"""Steps that differ by more than this share are told of."""
MOST_LOST = 0.01
"""A replay is valid where at most this share of the ops behind the lead-in has no recorded launch."""


class Base(Struct, frozen=True, eq=False):
    """What predictions start from: the recording, or the plain program that it is a recording of."""

    trace: Trace
    device: int
    main_stream: int
    numbers: I64
    """Of the steps that are judged."""
    hardware: Hardware
    graph: Graph
    replayed: Replay | None
    """None where the graph cannot be replayed; `fidelity` then is not valid."""
    recorded: StepTimes
    """As measured in the recording."""
    replayed_step_ns: int
    """Of the recording's own replay, with nothing changed."""
    steps: StepTimes
    """As replayed."""
    fidelity: Fidelity
    """Of the recording's own replay."""
    plain: PlainStep | None = None
    """Of the plain program; None for the recording itself."""

    @property
    def step_ns(self) -> int:
        """What a step takes with nothing changed."""
        return self.real_ns(self.steps.median_ns)

    def real_ns(self, step_ns: int) -> int:
        """What a replayed step stands for: the replay may not come to be quite as long as the plain step is. Nobody
        knows what of it takes longer or shorter than recorded, so all of it does."""
        if self.plain is None:
            return step_ns
        return round(step_ns * self.plain.step_ns / max(1, self.steps.median_ns))


def prepare(trace: Trace, device: int | None, calibration: Calibration | None, *, with_shapes: bool = True) -> Base:
    """Build and replay a recording's graph. `with_shapes` lets it read the recording's file again for those of inputs.

    Raises NotInTrace where it has no such device, UsageError where it has no GPU activity at all.
    """
    if not len(trace.gpu_ops):
        raise UsageError(f"{trace.source}: there is no GPU activity to predict from.")
    check_device(trace.source, device, trace.devices)
    named = set(trace.device_names.values())
    if calibration is not None and named and calibration.gpu not in named:
        raise UsageError(
            f"the calibration is of an {calibration.gpu}, but {trace.source} was recorded on "
            f"{', '.join(sorted(named))}; leave it out, or make one on that GPU."
        )
    chosen = _busiest(trace) if device is None else device
    hardware = find_hardware(trace, calibration)
    graph = build(trace, hardware.known, with_shapes=with_shapes)
    timeline = build_timeline(trace, chosen)
    stream = timeline.main_stream
    numbers = find_steps(graph, chosen, stream, timeline.judged_from_ns)
    recorded = step_times(graph, chosen, stream, numbers, graph.items.start_ns, graph.items.end_ns)
    replayed, steps = None, recorded
    try:
        replayed = replay(graph)
        steps = step_times(graph, chosen, stream, numbers, replayed.start_ns, replayed.end_ns)
        fidelity = judge(graph, replayed, recorded, steps, chosen, timeline.judged_from_ns)
    except Deadlock:
        fidelity = Fidelity(
            valid=False,
            reasons=("Its launches, ops and waits contradict each other: they wait for each other in a circle.",),
            step_error_pct=None,
            start_error_ns=0,
            launch_latency_ns=hardware.known.launch_latency_ns or 0,
            unexplained_ns=0,
        )
    return Base(trace, chosen, stream, numbers, hardware, graph, replayed, recorded, steps.median_ns, steps, fidelity)


def _busiest(trace: Trace) -> int:
    """The device with the most time in ops; the lowest of equals."""
    ops = trace.gpu_ops
    return max(
        trace.devices, key=lambda device: (int((ops.end_ns - ops.start_ns)[ops.device == device].sum()), -device)
    )


def judge(
    graph: Graph, replayed: Replay, measured: StepTimes, steps: StepTimes, device: int, lead_in_end_ns: int
) -> Fidelity:
    """Compare the replay of the unchanged graph with the recording."""
    items = graph.items
    here = items.device == device
    error_pct = 100 * quantile(np.abs(steps.known - measured.known) / np.maximum(measured.known, 1), 0.5)
    # Where each begins within its step: an error in one step is not carried into the next.
    step = np.maximum(np.searchsorted(measured.start_ns, items.start_ns[here], side="right") - 1, 0)
    late = replayed.start_ns[here] - steps.start_ns[step] - (items.start_ns[here] - measured.start_ns[step])
    latency = max(graph.constants.launch_latency_ns or 0, _LEAST_LATENCY_NS)
    near = float(np.mean(np.abs(late) <= latency)) if len(late) else 1.0
    reasons = []
    checks = judge_file(graph.trace)
    if not clocks_agree(checks):
        reasons.append("The clocks of host and device disagree, so launches cannot be matched to GPU ops.")
    # Ops of the lead-in were launched before the recording, and lack nothing.
    behind = items.start_ns[here] >= lead_in_end_ns
    lost = float(np.mean(items.call[here][behind] < 0)) if behind.any() else 1.0
    if lost > MOST_LOST:
        reasons.append(
            f"{percent(100 * lost)} of the GPU ops have no recorded launch, so what they waited for is unknown."
        )
    if error_pct > MOST_ERROR_PCT:
        reasons.append(
            f"The replay's steps differ from the recorded ones by {percent(error_pct)} (median), more than "
            f"{MOST_ERROR_PCT:g}%."
        )
    if near < LATE:
        text = duration(latency)
        reasons.append(
            f"{percent(100 * (1 - near))} of the ops start more than a launch latency ({text}) earlier or later "
            "than recorded."
        )
    valid, unexplained = not reasons, int(graph.unexplained_ns[here].sum())
    if valid:
        if device in graph.keeping:
            text = duration(unexplained)
            reasons.append(f"The recording does not explain waits of {text} in total; they are kept unchanged.")
        failed = (check.detail for check in checks if check.status == "fail")
        reasons += [*_untied(graph), *failed, *_differing(measured)]
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
    untied = distinct(calls.thread[(calls.maybe_by >= 0) & (calls.handed_by < 0)])
    if not len(untied):
        return []
    made = plural(int(np.isin(calls.thread, untied).sum()), "call")
    return [
        f"The recording does not show what {plural(len(untied), 'thread')} with {made} waited for. These calls "
        "stay where they were, and the interval allows for earlier ones."
    ]


def _differing(measured: StepTimes) -> list[str]:
    """A doubt about steps that are so different that one of them hardly stands for all."""
    low, high = measured.spread
    if high <= low * (1 + MOST_SPREAD):
        return []
    unit = unit_for(high)
    return [f"The recorded steps vary: most take {unit.text(low)} to {unit.text(high)}."]
