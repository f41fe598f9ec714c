"""A recording made ready for predictions: its dependency graph, replayed as recorded and as the plain program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from overlapscope.analysis.plain_step import PlainStep, measured, told
from overlapscope.analysis.timeline import build as build_timeline
from overlapscope.base.intervals import I64
from overlapscope.base.names import check_device
from overlapscope.errors import UsageError
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.fidelity import judge
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import Hardware, find_hardware
from overlapscope.prediction.recording_cost import HostCost, event_cost, host_cost, without
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import Fidelity
from overlapscope.prediction.steps import StepTimes, find_steps, step_times
from overlapscope.trace.model import Trace

_CLOSE = 0.005
"""A replayed step is as long as the plain one if they differ by less than this share."""
_MOST_TIMES = 3.0
"""What recording cost was up to twice what its launch calls say (`prediction.estimate`)."""
_ALIKE, _DIFFER = 0.015, 0.03
"""Shares of a step by which the usual cost may miss it, and by which kernels and copies differ at most between runs."""
_MOST_PART = 0.98
"""Of the host's work, which goes at most."""
_TRIES = 8


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


def known_step(base: Base, told_ns: int | None) -> PlainStep | None:
    """What a step takes while nothing is recorded, where that is told or was timed."""
    return told(told_ns) if told_ns is not None else measured(base.trace.plain_steps, base.recorded.median_ns)


def as_plain(base: Base, plain: PlainStep) -> Base:
    """The plain program: the recording's graph without what recording costs the host, until its step is the plain one.

    First the events' cost goes: what it is by the launch calls if that gives the plain step but for what kernels and
    copies differ by from run to run, else up to `_MOST_TIMES` that much. Where the step is still longer than they
    explain, a share of all host work goes as well. What then remains is in proportion (`Base.real_ns`), as it is where
    the plain step is longer than the recorded one.
    """
    cost = host_cost(base.graph, event_cost(base.trace, base.hardware.calibrated))
    usual = lightened(base, cost, 1.0)
    if abs(usual.steps.median_ns - plain.step_ns) <= _ALIKE * plain.step_ns:
        return replace(usual, plain=plain)
    found = _searched(
        base,
        plain.step_ns,
        lambda times: usual if times == 1 else lightened(base, cost, times),
        first=1.0,
        most=_MOST_TIMES,
    )
    if found.steps.median_ns > (1 + _DIFFER) * plain.step_ns:
        least = found
        found = _searched(
            least, plain.step_ns, lambda part: lightened(base, cost, _MOST_TIMES, 1 - part), first=0.3, most=_MOST_PART
        )
    return replace(found, plain=plain)


def _searched(base: Base, wanted_ns: int, at: Callable[[float], Base], *, first: float, most: float) -> Base:
    """The base with its host's work shortened by the amount, from 0 to `most`, that brings its step nearest.

    The step gets no longer as the work gets shorter, and is nearly linear in it: false position, where the value of an
    end that stays is halved ("Illinois"; Dowell and Jarratt, BIT 11, 1971).
    """
    low, low_over, amount = 0.0, _over(base, wanted_ns), first
    high, high_over, above = most, 0.0, True
    best, best_over = base, low_over
    for _ in range(_TRIES if low_over > 0 else 0):
        found = at(amount)
        over = _over(found, wanted_ns)
        if abs(over) < abs(best_over):
            best, best_over = found, over
        if over == 0 or (over > 0 and amount >= most):
            break
        if over > 0:
            gained, since = low_over - over, amount - low
            high_over /= 1 + above
            low, low_over, above = amount, over, True
            # Nothing is too short yet: somewhat further than the last stretch points to.
            further = min(1.1 * since * over / gained, 3 * amount) if gained > 0 else 3 * amount
        else:
            low_over /= 2 - above
            high, high_over, above, further = amount, over, False, 0.0
        bracketed = low + (high - low) * low_over / (low_over - high_over) if high_over else 0.0
        amount = bracketed if high_over else min(amount + further, most)
    return best


def lightened(base: Base, cost: HostCost, times: float, rest: float = 1.0) -> Base:
    """The recording without so many times that cost, and with the `rest` of what the host then takes, replayed."""
    graph = without(base.graph, cost, times, rest=rest)
    replayed = replay(graph)
    steps = step_times(graph, base.device, base.main_stream, base.numbers, replayed.start_ns, replayed.end_ns)
    return replace(base, graph=graph, replayed=replayed, steps=steps)


def _over(base: Base, wanted_ns: int) -> float:
    """By how much the step is too long; 0 where that is next to nothing."""
    over = base.steps.median_ns - wanted_ns
    return 0.0 if abs(over) <= _CLOSE * wanted_ns else float(over)


def _busiest(trace: Trace) -> int:
    """The device with the most time in ops; the lowest of equals."""
    ops = trace.gpu_ops
    return max(trace.devices, key=lambda one: (int((ops.end_ns - ops.start_ns)[ops.device == one].sum()), -one))
