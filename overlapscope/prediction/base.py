"""A recording made ready for predictions: its dependency graph, replayed as recorded and as the plain program."""

from __future__ import annotations

from dataclasses import dataclass

from overlapscope.analysis.plain_step import PlainStep
from overlapscope.analysis.timeline import build as build_timeline
from overlapscope.base.intervals import I64
from overlapscope.base.words import check_device
from overlapscope.errors import UsageError
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.fidelity import judge
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import Hardware, find_hardware
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import Fidelity
from overlapscope.prediction.steps import StepTimes, find_steps, step_times
from overlapscope.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Base:
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
            f"{', '.join(sorted(named))}; leave it out, or make one of that GPU."
        )
    chosen = _busiest(trace) if device is None else device
    hardware = find_hardware(trace, calibration)
    graph = build(trace, hardware.known, with_shapes=with_shapes)
    timeline = build_timeline(trace, chosen)
    stream = timeline.main_stream
    numbers = find_steps(graph, chosen, stream, timeline.judged_from_ns)
    recorded = step_times(graph, chosen, stream, numbers, graph.items.start_ns, graph.items.end_ns)
    try:
        replayed = replay(graph)
    except Deadlock:
        nothing = Fidelity(
            valid=False,
            reasons=("Its launches, ops and waits contradict each other: each waits for another.",),
            step_error_pct=None,
            start_error_ns=0,
            launch_latency_ns=hardware.known.launch_latency_ns or 0,
            unexplained_ns=0,
        )
        return Base(
            trace, chosen, stream, numbers, hardware, graph, None, recorded, recorded.median_ns, recorded, nothing
        )
    steps = step_times(graph, chosen, stream, numbers, replayed.start_ns, replayed.end_ns)
    fidelity = judge(graph, replayed, recorded, steps, chosen, timeline.judged_from_ns)
    return Base(trace, chosen, stream, numbers, hardware, graph, replayed, recorded, steps.median_ns, steps, fidelity)


def _busiest(trace: Trace) -> int:
    """The device with the most time in ops; the lowest of equals."""
    ops = trace.gpu_ops
    return max(trace.devices, key=lambda one: (int((ops.end_ns - ops.start_ns)[ops.device == one].sum()), -one))
