"""A recording prepared for predictions: its dependency graph, replayed as recorded and as the plain program."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.average import begins_with_warm_up
from overlapscope.analysis.missing_ops import find_missing
from overlapscope.analysis.periods import phases_of, request_waits
from overlapscope.analysis.results import PlainStep
from overlapscope.analysis.timeline import Timeline
from overlapscope.analysis.timeline import build as build_timeline
from overlapscope.analysis.trust import clocks_agree, judge_file
from overlapscope.base.columns import quantile
from overlapscope.base.grouping import among, distinct
from overlapscope.base.words import check_device, duration, listed, percent, plural, unit_for
from overlapscope.errors import UsageError
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import Hardware, find_hardware
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import Fidelity
from overlapscope.prediction.steps import JudgedSteps, StepTimes, find_steps, step_times
from overlapscope.trace.host import find_blocking
from overlapscope.trace.model import Trace

MAX_ERROR_PCT = 2.0
"""Maximum median error of the step times of a valid replay, in percent."""
MIN_SHARE_ON_TIME = 0.99
"""Minimum fraction of ops that a valid replay starts within the launch latency of their measured start."""
_MIN_LATENCY_NS = 10_000
MAX_SPREAD = 0.25
"""Report steps that differ by more than this fraction."""
MAX_LOST_SHARE = 0.01
"""Maximum fraction of ops after the lead-in without a recorded launch, and of time in which ops are missing, in a valid
replay."""


class Base(Struct, frozen=True, eq=False, weakref=True):
    """Starting point of predictions: the recording, or its plain program."""

    trace: Trace
    judged: JudgedSteps
    """The judged steps, and the last one."""
    warm_up: bool
    """True if a step before them is left out as warm-up, because of its length in the recording."""
    hardware: Hardware
    graph: Graph
    replayed: Replay
    """The measured times if the graph cannot be replayed; `fidelity` is not valid then."""
    recorded: StepTimes
    """Steps as measured in the recording."""
    replayed_step_ns: int
    """Step time of the recording's own replay, without changes."""
    steps: StepTimes
    """Steps as replayed."""
    fidelity: Fidelity
    """Fidelity of the recording's own replay."""
    plain: PlainStep | None = None
    """Step of the plain program; None for the recording itself."""

    @property
    def device(self) -> int:
        """The device whose steps are predicted."""
        return self.judged.timeline.device

    @property
    def step_ns(self) -> int:
        """Step time without changes."""
        return self.real_ns(self.steps.mean_ns)

    def real_ns(self, step_ns: int) -> int:
        """Return the real length of a replayed step.

        The replay of the plain program may not be quite as long as the plain step. Where it is too long, all lengths
        are scaled, since the difference has no known place; where it is too short, no change saves what is missing, nor
        what steps add that are longer than any recorded one.
        """
        if self.plain is None:
            return step_ns
        usual_ns = self.plain.usual.step_ns
        lacking_ns = usual_ns - self.steps.mean_ns
        real_ns = step_ns + lacking_ns if lacking_ns > 0 else round(step_ns * usual_ns / self.steps.mean_ns)
        return real_ns + self.plain.step_ns - usual_ns


def prepare(trace: Trace, calibration: Calibration | None) -> Base:
    """Build and replay a recording's graph, for the steps of its busiest device.

    Returns:
        The graph and its replay, and whether the replay explains the recording.

    Raises:
        UsageError: The trace has no GPU op with a time, or the calibration is of another GPU.
    """
    activity = next(check for check in judge_file(trace) if check.id == "gpu-activity")
    if activity.status == "fail":
        raise UsageError(f"{trace.source}: nothing can be predicted. {activity.detail}")
    named = set(trace.device_names.values())
    if calibration is not None and named and calibration.gpu not in named:
        raise UsageError(
            f"the calibration is of an {calibration.gpu}, but {trace.source} was recorded on "
            f"{', '.join(sorted(named))}; leave it out, or make one on that GPU."
        )
    ops = trace.gpu_ops
    busy_ns = {device: int((ops.end_ns - ops.start_ns)[ops.device == device].sum()) for device in trace.devices}
    hardware = find_hardware(trace, calibration)
    graph = build(trace, hardware.constants)
    timeline = build_timeline(trace, max(busy_ns, key=busy_ns.__getitem__))
    judged, recorded, warm_up = _judged(graph, timeline)
    items, calls = graph.items, graph.calls
    replayed, steps = Replay(items.start_ns, items.end_ns, calls.start_ns, calls.end_ns), recorded
    try:
        replayed = replay(graph)
        steps = step_times(graph, judged, replayed.start_ns, replayed.end_ns)
        fidelity = judge(graph, replayed, recorded, steps, timeline)
    except Deadlock:
        fidelity = Fidelity(
            valid=False,
            reasons=("Its launches, ops and waits contradict each other: they wait for each other in a circle.",),
            step_error_pct=None,
            start_error_ns=0,
            launch_latency_ns=hardware.constants.launch_latency_ns or 0,
            unexplained_ns=0,
        )
    return Base(trace, judged, warm_up, hardware, graph, replayed, recorded, steps.mean_ns, steps, fidelity)


def on_device(base: Base, device: int | None) -> Base:
    """Return the base for the steps of another device of the same trace.

    The busiest device sets the plain program of all devices.

    Raises:
        NotInTrace: The trace has no such device.
    """
    check_device(base.trace.source, device, base.trace.devices)
    if device is None or device == base.device:
        return base
    timeline, graph = build_timeline(base.trace, device), base.graph
    judged, recorded, warm_up = _judged(graph, timeline)
    replayed, plain = base.replayed, base.plain
    steps = step_times(graph, judged, replayed.start_ns, replayed.end_ns)
    if plain is not None:
        low, value, high, longer = (
            round(steps.mean_ns * ns / max(1, base.steps.mean_ns))
            for ns in (plain.low_ns, plain.step_ns, plain.high_ns, plain.longer_ns)
        )
        plain = replace(plain, step_ns=value, low_ns=low, high_ns=high, longer_ns=longer)
        # The recording's own replay is not known here, but its mean step is nearly the recorded one.
        replayed_step_ns = round(base.replayed_step_ns * recorded.mean_ns / max(1, base.recorded.mean_ns))
    else:
        replayed_step_ns = steps.mean_ns
    return replace(
        base,
        judged=judged,
        warm_up=warm_up,
        recorded=recorded,
        replayed_step_ns=replayed_step_ns,
        steps=steps,
        plain=plain,
    )


def _judged(graph: Graph, timeline: Timeline) -> tuple[JudgedSteps, StepTimes, bool]:
    """Return a device's steps to judge, their recorded times, and whether one before them is left out as warm-up."""
    judged = find_steps(graph, timeline)
    recorded = step_times(graph, judged, graph.items.start_ns, graph.items.end_ns)
    warm_up = not phases_of(graph.trace) and begins_with_warm_up((recorded.end_ns - recorded.start_ns).tolist())
    if warm_up:
        judged = replace(judged, numbers=judged.numbers[1:])
        recorded = step_times(graph, judged, graph.items.start_ns, graph.items.end_ns)
    return judged, recorded, warm_up


def judge(graph: Graph, replayed: Replay, measured: StepTimes, steps: StepTimes, timeline: Timeline) -> Fidelity:
    """Compare the replay of the unchanged graph with the recording."""
    items, device = graph.items, timeline.device
    here = items.device == device
    error_pct = 100 * quantile(np.abs(steps.lengths_ns - measured.lengths_ns) / np.maximum(measured.lengths_ns, 1), 0.5)
    # Compare starts within each step, so that an error in a step does not affect the next.
    step = np.maximum(np.searchsorted(measured.start_ns, items.start_ns[here], side="right") - 1, 0)
    late = replayed.start_ns[here] - steps.start_ns[step] - (items.start_ns[here] - measured.start_ns[step])
    latency = max(graph.constants.launch_latency_ns or 0, _MIN_LATENCY_NS)
    near = float(np.mean(np.abs(late) <= latency)) if len(late) else 1.0
    reasons = []
    checks = judge_file(graph.trace)
    if len(phases := phases_of(graph.trace)) > 1:
        reasons.append(f"Its steps are of several phases ({listed(phases)}), and an average stands for none of them.")
    if len(request_waits(graph.trace)):
        reasons.append("The server waited for requests, and a replay can't tell that from its work.")
    if not clocks_agree(checks):
        reasons.append("The clocks of host and device disagree, so launches cannot be matched to GPU ops.")
    # Ops of the lead-in were launched before the recording, so their launches are not missing.
    behind = items.start_ns[here] >= timeline.judged_from_ns
    lost = float(np.mean(items.call[here][behind] < 0)) if behind.any() else 1.0
    if lost > MAX_LOST_SHARE:
        reasons.append(
            f"{percent(100 * lost)} of the GPU ops have no recorded launch, so what they waited for is unknown."
        )
    missing_ns = int(find_missing(graph.trace, timeline, find_blocking(graph.trace)).length_ns.sum())
    if missing_ns > MAX_LOST_SHARE * (timeline.end_ns - timeline.judged_from_ns):
        reasons.append(f"The GPU did work of {duration(missing_ns)} that was not recorded, so a replay would skip it.")
    if error_pct > MAX_ERROR_PCT:
        reasons.append(
            f"The replay's steps differ from the recorded ones by {percent(error_pct)} (median), more than "
            f"{MAX_ERROR_PCT:g}%."
        )
    if near < MIN_SHARE_ON_TIME:
        text = duration(latency)
        reasons.append(
            f"{percent(100 * (1 - near))} of the ops start more than a launch latency ({text}) earlier or later "
            "than recorded."
        )
    valid, unexplained = not reasons, int(graph.unexplained_ns[here].sum())
    if valid:
        if device in graph.devices_with_kept_delays:
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
    """Return a doubt about threads that wait for something unknown, if there are any."""
    calls = graph.calls
    untied = distinct(calls.thread[(calls.maybe_by >= 0) & (calls.handed_by < 0)])
    if not len(untied):
        return []
    call_count = plural(int(among(calls.thread, untied).sum()), "call")
    return [
        f"The recording does not show what {plural(len(untied), 'thread')} with {call_count} waited for. These calls "
        "stay where they were, and the interval allows for earlier ones."
    ]


def _differing(measured: StepTimes) -> list[str]:
    """Return a doubt about steps that differ so much that a single one hardly represents all."""
    low, high = measured.spread
    if high <= low * (1 + MAX_SPREAD):
        return []
    unit = unit_for(high)
    return [f"The recorded steps vary: most take {unit.text(low)} to {unit.text(high)}."]
