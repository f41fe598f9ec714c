"""Predictions of a step from a recording: with interventions, or with those that save most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.facts import rounded_parts
from overlapscope.analysis.timeline import build, lengths
from overlapscope.base.grouping import groups_of
from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.base.words import duration, plural
from overlapscope.base.words import size as size_text
from overlapscope.catalog.advice import for_program
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.catalog.measures import BY_CAUSE, of_group
from overlapscope.prediction.base import Base, on_device, prepare
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.data_dependencies import BY_SHAPES
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Choice, in_order, parse
from overlapscope.prediction.outcomes import Outcome, apply, gain, interval, outcome, outcomes, replayed_as
from overlapscope.prediction.overhead import plain_program
from overlapscope.prediction.predicted_trace import predicted_times, predicted_trace
from overlapscope.prediction.replay import Deadlock, Replay
from overlapscope.prediction.result import AppliedChange, Assumption, Constant, Estimate, Figure, Rung, WhatIf
from overlapscope.prediction.steps import StepTimes, least_step_ns
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import sites_of_calls
from overlapscope.trace.model import Bool, Kind, Trace
from overlapscope.trace.ran import Ran, when_ran

VALUE_BYTES = 1024
"""Maximum size of a download that counts as a value or two."""
MIN_GAIN = 0.01
"""Minimum fraction of the unchanged step that a rung must save."""
_MAX_PLACES = 5
_WORDS = {
    "h2d_two_way": "H2D rate beside D2H copies, of the rate alone",
    "d2h_two_way": "D2H rate beside H2D copies, of the rate alone",
    "launch_latency_ns": "launch call to its kernel, the stream being empty",
    "copy_latency_ns": "copy call to its copy, the stream being empty",
    "kernel_gap_ns": "end of a kernel to the next in the queue",
    "handover_ns": "end of an op to the start of an op that an event held back",
    "return_ns": "end of an op to the return of the call that waits for it",
    "sync_call_ns": "synchronize call with nothing to wait for",
    "copy_call_ns": "pinned copy call",
    "graph_call_ns": "graph launch call, one kernel",
    "graph_node_call_ns": "graph launch call, each kernel more",
    "graph_latency_ns": "graph launch call to its first kernel",
    "graph_gap_ns": "end of a kernel to the next inside a graph",
}
"""Names of the constants that interventions use (`InterventionTexts.uses`)."""
_ALWAYS = ("kernel_gap_ns", "launch_latency_ns", "return_ns")


class Prediction(Struct, frozen=True, eq=False, dict=True):
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
    recorded, base = _prepared(trace, device, calibration, plain_step_ns)
    return conclude(recorded, base, parse(interventions))


def _prepared(
    trace: Trace, device: int | None, calibration: Calibration | None, plain_step_ns: int | None
) -> tuple[Base, Base]:
    """Return the recording and the program without the profiler; the recording twice if its plain step is unknown."""
    recorded = prepare(trace, calibration)
    base = plain_program(recorded, plain_step_ns) or recorded
    return on_device(recorded, device), on_device(base, device)


def conclude(recorded: Base, base: Base, choices: Sequence[Choice]) -> Prediction:
    """Predict from a prepared recording and its plain program (`plain_program`)."""
    if not base.fidelity.valid:
        return Prediction(_unpredicted(base), base.trace, None)
    try:
        return _concluded(recorded, base, choices)
    except Deadlock:
        reason = "With these changes, launches, ops and waits wait for each other in a circle."
        contradicted = replace(base.fidelity, valid=False, reasons=(reason,))
        return Prediction(_unpredicted(replace(base, fidelity=contradicted)), base.trace, None)


def _concluded(recorded: Base, base: Base, choices: Sequence[Choice]) -> Prediction:
    taken = outcomes(base, choices)
    expected, step = taken[Stance.EXPECTED], interval(base, taken)
    was, constants, doubt = base.step_ns, _constants(base, choices, expected), base.hardware.doubt
    doubts = [] if doubt is None or all(constant.origin != "table" for constant in constants) else [doubt]
    if base.plain is not None and base.plain.is_impossible(_busy_ns(recorded)):
        doubts.append(
            f"The GPU works for longer than {duration(was)} in a recorded step, so that length can't be right."
        )
    result = replace(
        _unpredicted(base),
        replayed_step_ns=recorded.replayed_step_ns,
        predicted_step_ns=step,
        gain_ns=gain(base, expected, {stance: each.step_ns for stance, each in taken.items()}),
        gain_pct=100 * (was - step.value) / was if was else None,
        # The recording itself, profiler included.
        recorded_predicted_step_ns=expected.step_ns if base.plain is None else outcome(recorded, choices).step_ns,
        buckets=_compared_buckets(base, taken),
        interventions=tuple(
            _change(base.trace, choice, done) for choice, done in zip(choices, expected.applied, strict=True)
        ),
        assumptions=_assumptions(base, choices, expected),
        constants=constants,
        replay=replace(base.fidelity, reasons=(*base.fidelity.reasons, *doubts)),
    )
    return Prediction(result, base.trace, expected, tuple(choices))


def _busy_ns(recorded: Base) -> int:
    """Return the time for which the device works in an average recorded step."""
    step_ns = recorded.recorded.mean_ns
    parts = _buckets(build(recorded.trace, recorded.device), recorded.recorded, step_ns, step_ns)
    return step_ns - parts["idle_ns"]


def _compared_buckets(base: Base, taken: Mapping[Stance, Outcome]) -> dict[str, Figure]:
    """Return each bucket of an average step, of the recording or of the plain program, and predicted."""
    if base.plain is None:
        step_ns = base.recorded.mean_ns
        before = _buckets(build(base.trace, base.device), base.recorded, step_ns, step_ns)
    else:
        ran = _ran(base.graph, base.replayed, base.device)
        before = _buckets(ran, base.steps, base.steps.mean_ns, base.step_ns)
    after = {
        stance: _buckets(_ran(each.graph, each.replayed, base.device), each.steps, each.replayed_step_ns, each.step_ns)
        for stance, each in taken.items()
    }
    compared = {}
    for name, measured in before.items():
        lengths_ns = [buckets[name] for buckets in after.values()]
        predicted = Estimate(value=after[Stance.EXPECTED][name], low=min(lengths_ns), high=max(lengths_ns))
        compared[name] = Figure(measured=measured, predicted=predicted)
    return compared


def _ran(graph: Graph, replayed: Replay, device: int) -> Ran:
    """Return the predicted times of a device's ops."""
    ops = np.flatnonzero((graph.items.device == device)[graph.item_of_op] & ~graph.items.gone[graph.item_of_op])
    start, end = predicted_times(graph, replayed)
    return when_ran(graph.trace.gpu_ops.kind[ops], start[ops], end[ops])


def _buckets(ran: Ran, steps: StepTimes, step_ns: int, real_ns: int) -> dict[str, int]:
    """Return the buckets of a device's average step.

    Args:
        ran: Times of the device's ops.
        steps: Steps to average.
        step_ns: Length of a step when many follow each other.
        real_ns: Real length of such a step (`base.Base.real_ns`).
    """
    count = len(steps.lengths_ns)
    ns = lengths(ran, steps.start_ns[:count], steps.end_ns[:count])
    means = rounded_parts({name: int(ns[name].sum()) for name in ("compute", *BY_CAUSE)}, count)
    buckets = {measure.id: means[measure.name] for measure in of_group("buckets")}
    # The step exceeds its own window while a copy engine works for it.
    buckets["exposed_copy_ns"] += step_ns - sum(means.values())
    return fitted(buckets, "idle_ns", real_ns)


def fitted(parts: Mapping[str, int], spare: str, target: int) -> dict[str, int]:
    """Adjust lengths so that they add up to `target`.

    The `spare` length takes the difference. If it is too short, all lengths are reduced in proportion.

    Returns:
        The adjusted lengths, under the same keys.
    """
    result = dict(parts)
    result[spare] = max(0, result[spare] + target - sum(result.values()))
    total, running, assigned = sum(result.values()), 0, 0
    if total > target:
        for name, ns in result.items():
            running += ns
            # Rounding the running sum loses no nanosecond.
            result[name] = running * target // total - assigned
            assigned += result[name]
    return result


def _unpredicted(base: Base) -> WhatIf:
    """Return the result of a recording without a prediction."""
    return WhatIf(
        source=base.trace.source,
        rank=base.trace.rank,
        device=base.device,
        device_name=base.trace.device_names.get(base.device),
        steps=0 if base.recorded.is_window else len(base.recorded.lengths_ns),
        baseline_step_ns=base.recorded.mean_ns if base.plain is None else base.plain.step_ns,
        plain=base.plain,
        recorded_step_ns=base.recorded.mean_ns,
        replayed_step_ns=base.replayed_step_ns,
        predicted_step_ns=None,
        recorded_predicted_step_ns=None,
        gain_ns=None,
        gain_pct=None,
        buckets={},
        interventions=(),
        assumptions=(),
        constants=(),
        replay=base.fidelity,
    )


def _change(trace: Trace, choice: Choice, done: Applied) -> AppliedChange:
    title, needs = choice.intervention.words(trace.framework)
    return AppliedChange(
        intervention=choice.intervention.id,
        argument=choice.argument,
        title=title,
        touched=done.touched,
        what=done.what if done.touched else f"Not applicable: {done.why_not or f'the recording has no {needs}'}.",
        advice=for_program(trace, choice.intervention.id, choice.intervention.texts.advice),
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
    return tuple(sorted(counts, key=lambda place: (-counts[place], place))[:_MAX_PLACES])


def _assumptions(base: Base, choices: Sequence[Choice], expected: Outcome) -> tuple[Assumption, ...]:
    """Return each choice's assumptions, with the extra step time if they don't hold."""
    assumptions = []
    for number, (choice, done) in enumerate(zip(choices, expected.applied, strict=True)):
        for assumption in choice.intervention.texts.assumptions if done.touched else ():
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
        for field in (choice.intervention.texts.uses if done.touched else ())
    ]
    hardware, items = base.hardware, expected.graph.items
    constants = [
        Constant(
            name=_WORDS[field],
            value=float(value),
            unit="ns" if field.endswith("_ns") else "x",
            origin=hardware.origins[field],
        )
        for field in dict.fromkeys([*_ALWAYS, *used])
        if (value := getattr(hardware.constants, field)) is not None
    ]
    for done in expected.applied:
        for kind in (Kind.H2D, Kind.D2H):
            sizes = items.bytes[done.copies[items.kind[done.copies] == kind]]
            if len(sizes):
                size = int(np.median(sizes))
                ratio = [abs(np.log(point.bytes / max(size, 1))) for point, _ in hardware.sized[kind]]
                took = Constant(
                    name=f"pinned {kind.name} copy of {size_text(size)}",
                    value=float(round(hardware.copy_ns(kind, np.array([size]))[0])),
                    unit="ns",
                    origin=hardware.sized[kind][int(np.argmin(ratio))][1],
                )
                constants.append(took)
    return tuple(dict.fromkeys(constants))


# -- The ladder ----------------------------------------------------------------------------------


def best(
    trace: Trace,
    *,
    device: int | None = None,
    calibration: Calibration | None = None,
    plain_step_ns: int | None = None,
) -> Prediction:
    """Predict with the best set of interventions, and list the gain of each.

    Starting without changes, the intervention that gains most is added, or the best pair if no single intervention
    gains anything, until nothing gains another 1% of the step. This raises the same errors as `predict`.

    Returns:
        The prediction with the whole set.
    """
    recorded, base = _prepared(trace, device, calibration, plain_step_ns)
    if not recorded.fidelity.valid:
        return conclude(recorded, base, ())
    was = base.step_ns
    remaining = [choice for choice in candidates(base) if apply(base, [choice])[0].touched]
    taken: tuple[Choice, ...] = ()
    now = was
    unchanged = Estimate(value=was, low=was, high=was)
    rungs = [Rung(interventions=(), added="", predicted_step_ns=unchanged, gain_ns=0)]
    while gained := _next(base, taken, remaining, now):
        now, added = gained
        taken = in_order((*taken, *added))
        remaining = [choice for choice in remaining if choice not in added]
        try:
            step_ns = interval(base, outcomes(base, taken))
        except Deadlock:
            continue
        rungs.append(
            Rung(
                interventions=tuple(choice.text for choice in taken),
                added=" + ".join(choice.text for choice in added),
                predicted_step_ns=step_ns,
                gain_ns=was - step_ns.value,
            )
        )
    chosen = conclude(recorded, base, taken)
    return replace(chosen, result=replace(chosen.result, ladder=tuple(rungs)))


@kept()
def applicable(trace: Trace, device: int) -> frozenset[str]:
    """Return the interventions without a required argument that change the steps, by themselves or after others.

    Raises:
        UsageError: The trace has no GPU activity or no such device.
    """
    _, base = _prepared(trace, device, None, None)
    choices = [Choice(each) for each in INTERVENTIONS.values() if not each.argument_required]
    together = apply(base, choices)
    return frozenset(
        choice.intervention.id
        for choice, after_others in zip(choices, together, strict=True)
        if after_others.touched or apply(base, [choice])[0].touched
    )


def candidates(base: Base) -> list[Choice]:
    """Return the candidates for the ladder: every intervention, and `no-sync` for each blocking call of the trace.

    Work of the host can be done elsewhere in many ways or in none, so that leaving it out is no candidate.
    """
    runtime = base.trace.runtime_calls
    blocking = call_kinds.synchronises(runtime)
    rows = base.graph.calls.row[base.graph.waits.call]
    names = sorted({runtime.name(row) for row in rows[blocking[rows]].tolist()} - _reading(base, blocking))
    return [
        Choice(intervention, argument)
        for intervention in INTERVENTIONS.values()
        if not intervention.arguments
        for argument in (names if intervention.argument_required else [None])
    ]


def _reading(base: Base, blocking: Bool) -> set[str]:
    """Return the blocking calls after which the host can read data downloaded since its previous wait.

    Skipping such a wait would be wrong, unless the program is changed to read later. That is possible for a value or
    two, as with `item()`, so only larger downloads count.
    """
    items, calls, runtime = base.graph.items, base.graph.calls, base.trace.runtime_calls
    waits = np.flatnonzero(blocking[calls.row])
    waits = waits[np.argsort(calls.end_ns[waits], kind="stable")]
    ends = calls.end_ns[waits]
    since = np.append(np.iinfo(np.int64).min, ends[:-1])
    big = np.sort(items.end_ns[(items.kind == Kind.D2H) & (items.bytes > VALUE_BYTES)])
    landed = np.searchsorted(big, ends, side="right") > np.searchsorted(big, since[: len(ends)], side="right")
    return {runtime.name(row) for row in calls.row[waits[landed]].tolist()}


def _next(
    base: Base, taken: Sequence[Choice], remaining: Sequence[Choice], now_ns: int
) -> tuple[int, tuple[Choice, ...]] | None:
    """Find the best next rung: a candidate, or else a pair, that shortens the step most.

    Args:
        base: The unchanged program.
        taken: Choices of the current rung.
        remaining: Candidates for the next.
        now_ns: Step time of the current rung.

    Returns:
        The step and the added candidates, the first of equals; None if nothing gains enough.
    """
    worth_ns = MIN_GAIN * base.step_ns
    for many in (1, 2):
        best = None
        for added in combinations(remaining, many):
            choices = in_order((*taken, *added))
            applied = apply(base, choices)
            # A set whose lower bound is too long needs no replay.
            least_ns = base.real_ns(least_step_ns(applied[-1].graph, base.judged))
            if now_ns - least_ns < worth_ns or (best is not None and least_ns >= best[0]):
                continue
            try:
                step_ns = replayed_as(base, applied).step_ns
            except Deadlock:
                continue
            if now_ns - step_ns >= worth_ns and (best is None or step_ns < best[0]):
                best = step_ns, added
        if best is not None:
            return best
    return None
