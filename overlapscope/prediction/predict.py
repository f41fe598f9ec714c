"""Predicts a step from a recording and interventions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average
from overlapscope.analysis.figures import Buckets, Overlap, Period, Window
from overlapscope.analysis.host import sites_of_calls
from overlapscope.analysis.host_sampled import step_ns
from overlapscope.analysis.timeline import Ran, build, lengths, measured, when_ran
from overlapscope.base.grouping import groups_of
from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.base.words import plural
from overlapscope.catalog.advice import for_program
from overlapscope.catalog.causes import CommCause, CopyCause, IdleCause, OtherCause
from overlapscope.prediction.base import Base, on_device, prepare
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.data_dependencies import BY_SHAPES
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Choice, parse
from overlapscope.prediction.interventions.intervention import Applied, Request
from overlapscope.prediction.noise import spread
from overlapscope.prediction.overhead import busy_ns, plain_program
from overlapscope.prediction.predicted_trace import predicted_times, predicted_trace
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import (
    AppliedChange,
    Assumption,
    Constant,
    Estimate,
    Fidelity,
    Figure,
    KnownStep,
    Percentage,
    WhatIf,
)
from overlapscope.prediction.steps import StepTimes, engine_ns, least_step_ns, step_times
from overlapscope.trace.model import Kind, Trace

_PLACES = 5
_ALWAYS = ("kernel_gap_ns", "launch_latency_ns", "return_ns")


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """Result of interventions on a recording, under given stances."""

    applied: tuple[Applied, ...]
    graph: Graph
    replayed: Replay
    steps: StepTimes
    replayed_step_ns: int
    """Step time when many steps follow each other."""
    step_ns: int
    """Real step time (`Base.real_ns`)."""


class Prediction(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Result of a prediction, with the timelines before and after."""

    result: WhatIf
    before: Trace
    expected: Outcome | None
    """None if nothing can be predicted."""
    choices: tuple[Choice, ...] = ()

    @cached_property
    def after(self) -> Trace | None:
        """The predicted timeline, built on first use; None if nothing can be predicted."""
        if self.expected is None:
            return None
        by = (*(self.before.predicted_by or ()), *(choice.text for choice in self.choices))
        return replace(predicted_trace(self.expected.graph, self.expected.replayed), predicted_by=by)


def apply(
    base: Base, choices: Sequence[Choice], stances: Sequence[Stance] = (), computed: Sequence[Applied] = ()
) -> tuple[Applied, ...]:
    """Apply each choice to the result of the previous choices.

    Args:
        stances: Stance of each choice; `EXPECTED` for all by default.
        computed: Results of the first choices, if they were computed before.

    Returns:
        The outcome of each choice, in order.
    """
    applied = [*computed]
    each = zip(choices, stances or [Stance.EXPECTED] * len(choices), strict=True)
    plain_ns = step_ns(base.trace) if base.plain is None else base.steps.mean_ns
    for choice, stance in [*each][len(computed) :]:
        graph = applied[-1].graph if applied else base.graph
        request = Request(base.hardware, stance, base.judged, plain_ns, choice.argument)
        applied.append(choice.intervention.apply(graph, request))
    return tuple(applied)


def outcome(
    base: Base, choices: Sequence[Choice], stances: Sequence[Stance] = (), run: Stance = Stance.EXPECTED
) -> Outcome:
    """Apply the choices at their stances, and replay the result as a lucky or unlucky run."""
    return replayed_as(base, apply(base, choices, stances), run)


def replayed_as(base: Base, applied: tuple[Applied, ...], run: Stance = Stance.EXPECTED) -> Outcome:
    """Replay the result of `apply` as a lucky or unlucky run."""
    graph, changed = base.graph, any(done.touched for done in applied)
    if changed:
        graph = spread(applied[-1].graph, run, plain=base.plain is not None, changed=True)
    replayed = base.replayed if graph is base.graph and base.replayed is not None else replay(graph)
    steps = step_times(graph, base.judged, replayed.start_ns, replayed.end_ns)
    step_ns = steps.mean_ns
    if changed and not steps.is_window:
        step_ns = max(step_ns, engine_ns(graph, base.judged, replayed.start_ns, replayed.end_ns))
    return Outcome(applied, graph, replayed, steps, step_ns, base.real_ns(step_ns))


def predict(
    trace: Trace,
    interventions: Sequence[str] = (),
    *,
    device: int | None = None,
    calibration: Calibration | None = None,
    plain_step_ns: int | None = None,
) -> Prediction:
    """Predict the step time with interventions such as `pin`, `side-stream` or `no-sync cudaStreamSynchronize`.

    The step is the plain program's if the recorder timed it or the user passed `plain_step_ns`; otherwise the
    recording's. `device` defaults to the busiest. Constants of the hardware come from a calibration of
    the trace's GPU, then the trace, then the shipped table of an H200.

    Returns:
        The predicted step, as an interval, and the judgement of the replay that it rests on.

    Raises:
        UsageError: An intervention does not exist or lacks its argument, or the trace has no GPU activity or no such
            device.
    """
    recorded = prepare(trace, calibration)
    base = plain_program(recorded, plain_step_ns) or recorded
    return conclude(on_device(recorded, device), on_device(base, device), parse(interventions))


def outcomes(base: Base, choices: Sequence[Choice], expected: Outcome | None = None) -> dict[Stance, Outcome]:
    """Return the outcome at each stance, in a run that is as lucky. `expected` is used if already computed."""
    computed = {} if expected is None else {Stance.EXPECTED: expected}
    return {
        stance: computed.get(stance) or outcome(base, choices, [stance] * len(choices), stance) for stance in Stance
    }


def conclude(
    recorded: Base, base: Base, choices: Sequence[Choice], taken: Mapping[Stance, Outcome] | None = None
) -> Prediction:
    """Predict from a prepared recording and its plain program (`plain_program`).

    Args:
        taken: Outcomes of the choices by stance, if they were computed before.

    Returns:
        The predicted step, as an interval.
    """
    if not base.fidelity.valid:
        return Prediction(_unpredicted(base), base.trace, None)
    try:
        return _concluded(recorded, base, choices, taken or outcomes(base, choices))
    except Deadlock:
        reason = "With these changes, launches, ops and waits wait for each other in a circle."
        contradicted = msgspec.structs.replace(base.fidelity, valid=False, reasons=(reason,))
        return Prediction(_unpredicted(replace(base, fidelity=contradicted)), base.trace, None)


def _concluded(recorded: Base, base: Base, choices: Sequence[Choice], taken: Mapping[Stance, Outcome]) -> Prediction:
    expected = taken[Stance.EXPECTED]
    step = interval(base, taken)
    was = base.step_ns
    after = [_figures_of(base, taken[stance]) for stance in Stance]
    constants = _constants(base, choices, expected)
    before = _figures_before(base)
    result = msgspec.structs.replace(
        _unpredicted(base),
        replayed_step_ns=recorded.replayed_step_ns,
        predicted_step_ns=step,
        gain_ns=gain(base, taken),
        gain_pct=100 * (was - step.value) / was if was else None,
        recorded_predicted_step_ns=_of_recording(recorded, base, choices, expected),
        buckets=_compared_buckets(before, after),
        hidden_copy_pct=_compared_percentage("hidden_copy_pct", before, after),
        efficiency_pct=_compared_percentage("efficiency_pct", before, after),
        interventions=tuple(
            _change(base.trace, choice, done) for choice, done in zip(choices, expected.applied, strict=True)
        ),
        assumptions=_assumptions(base, choices, expected),
        constants=constants,
        replay=_with_doubts(base, constants),
    )
    return Prediction(result, base.trace, expected, tuple(choices))


def interval(base: Base, taken: Mapping[Stance, Outcome]) -> Estimate:
    """Return the predicted step and its interval."""
    expected = taken[Stance.EXPECTED]
    times = [taken[stance].step_ns for stance in Stance]
    if any(done.touched for done in expected.applied):
        # The steps of a recording differ among themselves.
        least, most = (part / max(base.recorded.mean_ns, 1) for part in base.recorded.spread)
        if base.plain is not None:
            # The overhead of recording may all have been in the time that the changes remove.
            times.append(taken[Stance.BEST].replayed_step_ns)
            # At any stance, the result is only as certain as the plain step.
            least, most = (end / base.plain.step_ns for end in (base.plain.low_ns, base.plain.high_ns))
        times += [round(taken[Stance.BEST].step_ns * least), round(taken[Stance.WORST].step_ns * most)]
    return Estimate(value=expected.step_ns, low=min(times), high=max(times))


def gain(base: Base, taken: Mapping[Stance, Outcome]) -> Estimate:
    """Return by how much a step becomes shorter, in runs in which the host is as fast with the changes as without.

    Args:
        base: Program without the changes.
        taken: Outcomes of the changes by stance.
    """
    value = base.step_ns - taken[Stance.EXPECTED].step_ns
    if not any(done.touched for done in taken[Stance.EXPECTED].applied):
        return Estimate(value=value, low=value, high=value)
    parts = [1 - each.step_ns / max(1, _unchanged_ns(base, stance)) for stance, each in taken.items()]
    others = [value, *(round(base.step_ns * part) for part in parts)]
    low, high = min(others), max(others)
    if base.plain is not None and base.plain.origin == "measured":
        # Plain steps differ by the time that the device waits, and savings of that time differ in proportion.
        waiting_ns = max(1, base.step_ns - busy_ns(base))
        low -= round((base.plain.step_ns - base.plain.low_ns) * min(1.0, max(0, low) / waiting_ns))
        high += round((base.plain.high_ns - base.plain.step_ns) * min(1.0, max(0, high) / waiting_ns))
    # No step becomes shorter than its copies and its kernels on one stream take.
    most = max(value, base.step_ns - base.real_ns(least_step_ns(taken[Stance.EXPECTED].graph, base.judged)))
    return Estimate(value=value, low=low, high=min(high, most))


@kept()
def _unchanged_ns(base: Base, run: Stance) -> int:
    """Return the real step time of the unchanged program in a lucky or unlucky run."""
    if run == Stance.EXPECTED or base.replayed is None:
        return base.step_ns
    graph = spread(base.graph, run, plain=base.plain is not None, changed=False)
    replayed = replay(graph)
    return base.real_ns(step_times(graph, base.judged, replayed.start_ns, replayed.end_ns).mean_ns)


def _of_recording(recorded: Base, base: Base, choices: Sequence[Choice], expected: Outcome) -> int:
    """Return the predicted step of the recording itself, profiler included."""
    if base.plain is None:
        return expected.step_ns
    return outcome(recorded, choices).step_ns


def _figures_before(base: Base) -> ReplayFigures:
    """Return the figures to compare predictions with: of the recording, or of the plain program."""
    if base.plain is None or base.replayed is None:
        step_ns = base.recorded.mean_ns
        return _figures(build(base.trace, base.device), base.recorded, step_ns, step_ns)
    ran = _ran(base.graph, base.replayed, base.device)
    return _figures(ran, base.steps, base.steps.mean_ns, base.step_ns)


def _figures_of(base: Base, outcome: Outcome) -> ReplayFigures:
    ran = _ran(outcome.graph, outcome.replayed, base.device)
    return _figures(ran, outcome.steps, outcome.replayed_step_ns, outcome.step_ns)


def _ran(graph: Graph, replayed: Replay, device: int) -> Ran:
    """Return the predicted times of a device's ops."""
    ops = np.flatnonzero((graph.items.device == device)[graph.item_of_op] & ~graph.items.gone[graph.item_of_op])
    start, end = predicted_times(graph, replayed)
    return when_ran(graph.trace.gpu_ops.kind[ops], start[ops], end[ops])


def _with_doubts(base: Base, constants: Sequence[Constant]) -> Fidelity:
    """Return the fidelity, with further doubts about a prediction that used these constants."""
    doubt = base.hardware.doubt
    if doubt is None or all(constant.origin != "table" for constant in constants):
        return base.fidelity
    return msgspec.structs.replace(base.fidelity, reasons=(*base.fidelity.reasons, doubt))


def _unpredicted(base: Base) -> WhatIf:
    """Return the result of a recording without a prediction."""
    return WhatIf(
        source=base.trace.source,
        rank=base.trace.rank,
        device=base.device,
        device_name=base.trace.device_names.get(base.device),
        steps=0 if base.recorded.is_window else len(base.recorded.lengths_ns),
        baseline_step_ns=base.recorded.mean_ns if base.plain is None else base.plain.step_ns,
        plain=None
        if base.plain is None
        else KnownStep(
            step_ns=base.plain.step_ns,
            low_ns=base.plain.low_ns,
            high_ns=base.plain.high_ns,
            origin=base.plain.origin,
        ),
        recorded_step_ns=base.recorded.mean_ns,
        replayed_step_ns=base.replayed_step_ns,
        predicted_step_ns=None,
        recorded_predicted_step_ns=None,
        gain_ns=None,
        gain_pct=None,
        buckets={},
        hidden_copy_pct=None,
        efficiency_pct=None,
        interventions=(),
        assumptions=(),
        constants=(),
        replay=base.fidelity,
    )


def _change(trace: Trace, choice: Choice, done: Applied) -> AppliedChange:
    title, needs = choice.intervention.words.of(trace.framework)
    return AppliedChange(
        intervention=choice.intervention.id,
        argument=choice.argument,
        title=title,
        touched=done.touched,
        what=done.what if done.touched else f"Not applicable: {done.why_not or f'the recording has no {needs}'}.",
        advice=for_program(trace, choice.intervention.id, choice.intervention.advice),
        where=_places(trace, done.graph.calls.row[done.calls]),
    )


def _places(trace: Trace, rows: I64) -> tuple[str, ...]:
    """Return the Python lines, or else ops, around the given runtime calls, the most frequent first."""
    if not len(rows):
        return ()
    sites = sites_of_calls(trace, rows)
    _, first, times = np.unique(groups_of((sites.line, sites.op)), return_index=True, return_counts=True)
    counts = Counter[str]()
    for number, many in zip(first.tolist(), times.tolist(), strict=True):
        site = sites.site_at(trace, number)
        if place := site.line or site.op:
            counts[place] += many
    return tuple(sorted(counts, key=lambda place: (-counts[place], place))[:_PLACES])


def _assumptions(base: Base, choices: Sequence[Choice], expected: Outcome) -> tuple[Assumption, ...]:
    """Return each choice's assumptions, with the extra step time if they don't hold."""
    assumptions = []
    for number, (choice, done) in enumerate(zip(choices, expected.applied, strict=True)):
        for assumption in choice.intervention.assumptions if done.touched else ():
            cost = 0 if assumption.harmless else None
            if assumption.costed:
                stances = [Stance.EXPECTED] * len(choices)
                stances[number] = Stance.WORST
                cost = max(0, outcome(base, choices, stances).step_ns - expected.step_ns)
            shown = done.shown.turns if assumption.costed else done.shown.needs
            assumptions.append(
                Assumption(intervention=choice.intervention.id, text=assumption.text, cost_ns=cost, shown=shown)
            )
        if done.shown.by_shapes:
            text = BY_SHAPES.format(copies=plural(done.shown.by_shapes, "copy"))
            assumptions.append(Assumption(intervention=choice.intervention.id, text=text, cost_ns=None, shown=False))
    return tuple(assumptions)


def _constants(base: Base, choices: Sequence[Choice], expected: Outcome) -> tuple[Constant, ...]:
    """Return the constants that the interventions or every replay use."""
    used = [
        field
        for choice, done in zip(choices, expected.applied, strict=True)
        for field in (choice.intervention.uses if done.touched else ())
    ]
    fields = dict.fromkeys([*_ALWAYS, *used])
    constants = [constant for field in fields if (constant := base.hardware.constant(field)) is not None]
    items = expected.graph.items
    for done in expected.applied:
        for kind in (Kind.H2D, Kind.D2H):
            sizes = items.bytes[done.copies[items.kind[done.copies] == kind]]
            if len(sizes):
                constants.append(base.hardware.copy_constant(kind, int(np.median(sizes))))
    return tuple(dict.fromkeys(constants))


class ReplayFigures(msgspec.Struct, frozen=True):
    """Figures of an average step of a timeline."""

    buckets: Buckets
    """Buckets of the step; they add up to it."""
    overlap: Overlap


def _figures(ran: Ran, steps: StepTimes, step_ns: int, real_ns: int) -> ReplayFigures:
    """Return the figures of a device's average step.

    Args:
        ran: Times of the device's ops.
        steps: Steps to average.
        step_ns: Length of a step when many follow each other.
        real_ns: Real length of such a step (`base.Base.real_ns`).
    """
    count = len(steps.lengths_ns)
    ns = {name: values.tolist() for name, values in lengths(ran, steps.start_ns[:count], steps.end_ns[:count]).items()}
    periods = [_period({name: values[number] for name, values in ns.items()}) for number in range(count)]
    step = average(periods, range(count))
    assert step is not None
    # The step exceeds its own window while a copy engine works for it.
    beyond = step_ns - step.span_ns
    buckets = msgspec.structs.replace(step.buckets, exposed_copy_ns=step.buckets.exposed_copy_ns + beyond)
    return ReplayFigures(Buckets(**fitted(msgspec.structs.asdict(buckets), "idle_ns", real_ns)), step.overlap)


def _period(ns: dict[str, int]) -> Period:
    """Return the figures of a step without causes."""
    buckets, engines, overlap = measured(ns)
    return Period(
        name="",
        window=Window(start_ns=0, end_ns=0),
        span_ns=0,
        buckets=buckets,
        engines=engines,
        overlap=overlap,
        exposed_copy_by_cause={CopyCause.UNKNOWN: buckets.exposed_copy_ns},
        exposed_comm_by_cause={CommCause.UNKNOWN: buckets.exposed_comm_ns},
        exposed_other_by_cause={OtherCause.UNKNOWN: buckets.exposed_other_ns},
        idle_by_cause={IdleCause.UNKNOWN: buckets.idle_ns},
        partial=False,
    )


K = TypeVar("K", bound=Hashable)


def fitted(parts: Mapping[K, int], spare: K, target: int) -> dict[K, int]:
    """Adjust lengths so that they add up to `target`.

    The `spare` length takes the difference. If it is too short, all lengths are reduced in proportion.

    Returns:
        The adjusted lengths, under the same keys.
    """
    result = dict(parts)
    result[spare] = max(0, result[spare] + target - sum(result.values()))
    total, running, given = sum(result.values()), 0, 0
    if total > target:
        for name, ns in result.items():
            running += ns
            # Rounding the running sum loses no nanosecond.
            result[name] = running * target // total - given
            given += result[name]
    return result


def _compared_buckets(before: ReplayFigures, after: Sequence[ReplayFigures]) -> dict[str, Figure]:
    """Return each bucket, measured and predicted; `after` is by stance."""
    compared = {}
    for name in Buckets.__struct_fields__:
        by_stance = [getattr(analysis.buckets, name) for analysis in after]
        predicted = Estimate(value=by_stance[Stance.EXPECTED], low=min(by_stance), high=max(by_stance))
        compared[name] = Figure(measured=getattr(before.buckets, name), predicted=predicted)
    return compared


def _compared_percentage(name: str, before: ReplayFigures, after: Sequence[ReplayFigures]) -> Percentage:
    """Return a percentage of the overlap, measured and predicted."""
    values = [getattr(analysis.overlap, name) for analysis in after]
    numbers = [value for value in values if value is not None]
    return Percentage(
        measured=getattr(before.overlap, name),
        predicted=values[Stance.EXPECTED],
        low=min(numbers, default=None),
        high=max(numbers, default=None),
    )
