"""Outcomes of changes: their replays in lucky, usual and unlucky runs, and by how much a step becomes shorter.

No prediction can know how runs of a program differ. The differences here are fractions of the times, from two sets of
32 recordings of four programs on an H200 (`docs/evaluation/noise.md`). Kernels and copies differed little between runs,
the host's work much more. It is also unknown what untied threads wait for. Their calls stay in place, or in a lucky
run, move with the main thread's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import step_ns
from overlapscope.base.intervals import covered, union
from overlapscope.base.kept import kept
from overlapscope.prediction.base import Base, on_device, prepare
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Choice, Request, parse
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.result import Estimate
from overlapscope.prediction.steps import StepTimes, engine_ns, least_step_ns, mean, step_times
from overlapscope.trace.model import Trace

KERNEL_UNCERTAINTY = {Stance.BEST: -0.01, Stance.WORST: 0.06}
"""The worst case includes a GPU with less idle time and a lower clock: all kernels of a training step took 5.6% longer
once its batch was copied a step ahead (traces/further/training)."""
COPY_UNCERTAINTY = {Stance.BEST: -0.03, Stance.WORST: 0.03}
HOST_UNCERTAINTY = {Stance.BEST: -0.2, Stance.WORST: 0.2}
"""Also for copies from and to pageable memory, which the host moves."""
HOST_OF_PLAIN = {Stance.BEST: -0.1, Stance.WORST: 0.1}
"""If the plain step shows the host's speed, only the shares of its parts differ."""


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


def apply(base: Base, choices: Sequence[Choice], stances: Sequence[Stance] = ()) -> tuple[Applied, ...]:
    """Apply each choice to the result of the previous choices, at its stance; `EXPECTED` for all by default."""
    return _applied(base, tuple(choices), tuple(stances or [Stance.EXPECTED] * len(choices))) if choices else ()


@kept(most=6)
def _applied(base: Base, choices: tuple[Choice, ...], stances: tuple[Stance, ...]) -> tuple[Applied, ...]:
    """Apply the choices, the last of them to the result of the others, which sets of fixes have in common."""
    before = _applied(base, choices[:-1], stances[:-1]) if len(choices) > 1 else ()
    plain_ns = step_ns(base.trace) if base.plain is None else base.steps.mean_ns
    request = Request(base.hardware, stances[-1], base.judged, plain_ns, choices[-1].argument)
    return (*before, choices[-1].apply(before[-1].graph if before else base.graph, request))


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
    replayed = base.replayed if graph is base.graph else replay(graph)
    steps = step_times(graph, base.judged, replayed.start_ns, replayed.end_ns)
    step_ns = steps.mean_ns
    if changed and not steps.is_window:
        step_ns = max(step_ns, engine_ns(graph, base.judged, replayed.start_ns, replayed.end_ns))
    return Outcome(applied, graph, replayed, steps, step_ns, base.real_ns(step_ns))


def outcomes(base: Base, choices: Sequence[Choice]) -> dict[Stance, Outcome]:
    """Return the outcome at each stance, in a run that is as lucky."""
    return {stance: outcome(base, choices, [stance] * len(choices), stance) for stance in Stance}


def spread(graph: Graph, stance: Stance, *, plain: bool, changed: bool) -> Graph:
    """Return the graph of a lucky run (`BEST`) or an unlucky run (`WORST`).

    Args:
        graph: The graph.
        stance: How lucky the run is.
        plain: The plain step is known.
        changed: Whether the program was changed, so that guesses, and speeds beside other work, may no longer hold.
    """
    if stance == Stance.EXPECTED:
        return graph
    items, calls = graph.items, graph.calls
    if changed and stance == Stance.BEST:
        # Calls of untied threads come after the main thread's, as if it had handed over to them.
        may = (calls.maybe_by >= 0) & (calls.handed_by < 0)
        before_ns = np.where(may, calls.start_ns - calls.end_ns[calls.maybe_by], calls.before_ns)
        calls = replace(calls, before_ns=before_ns, handed_by=np.where(may, calls.maybe_by, calls.handed_by))
        graph = graph.without_guesses()
    host = (HOST_OF_PLAIN if plain else HOST_UNCERTAINTY)[stance]
    copies, kernels = (COPY_UNCERTAINTY[stance], KERNEL_UNCERTAINTY[stance]) if changed else (0.0, 0.0)
    device = np.where(items.on_engine, copies, np.where(items.is_copy, host, kernels))
    return replace(
        graph,
        items=replace(items, duration_ns=items.duration_ns * (1 + device)),
        calls=replace(
            calls,
            before_ns=np.rint(calls.before_ns * (1 + host)).astype(np.int64),
            length_ns=np.rint(calls.length_ns * (1 + host)).astype(np.int64),
        ),
    )


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
        # Even a short step has its copies and kernels.
        shortest_ns = base.real_ns(least_step_ns(taken[Stance.BEST].graph, base.judged))
        times += [
            max(shortest_ns, round(taken[Stance.BEST].step_ns * least)),
            round(taken[Stance.WORST].step_ns * most),
        ]
    return Estimate(value=expected.step_ns, low=min(times), high=max(times))


def gain(base: Base, expected: Outcome, steps_ns: Mapping[Stance, int]) -> Estimate:
    """Return by how much a step becomes shorter, in runs in which the host is as fast with the changes as without.

    Args:
        base: Program without the changes.
        expected: Expected outcome of the changes.
        steps_ns: Step time of the outcome at each stance.
    """
    value = base.step_ns - expected.step_ns
    if not any(done.touched for done in expected.applied):
        return Estimate(value=value, low=value, high=value)
    parts = [1 - step_ns / max(1, _unchanged_ns(base, stance)) for stance, step_ns in steps_ns.items()]
    others = [value, *(round(base.step_ns * part) for part in parts)]
    low, high = min(others), max(others)
    if base.plain is not None and base.plain.origin == "measured":
        # Plain steps differ by the time that the device waits, and savings of that time differ in proportion.
        items, steps = base.graph.items, base.recorded
        working = (items.device == base.device) & ~items.gone
        busy = union(items.start_ns[working], items.end_ns[working])
        busy_ns = mean(covered(busy, steps.start_ns, steps.end_ns)[: len(steps.lengths_ns)])
        waiting_ns = max(1, base.step_ns - busy_ns)
        low -= round((base.plain.step_ns - base.plain.low_ns) * min(1.0, max(0, low) / waiting_ns))
        high += round((base.plain.high_ns - base.plain.step_ns) * min(1.0, max(0, high) / waiting_ns))
    # No step becomes shorter than its copies and its kernels on one stream take.
    most = max(value, base.step_ns - base.real_ns(least_step_ns(expected.graph, base.judged)))
    return Estimate(value=value, low=low, high=min(high, most))


@kept()
def _unchanged_ns(base: Base, run: Stance) -> int:
    """Return the real step time of the unchanged program in a lucky or unlucky run."""
    if run == Stance.EXPECTED:
        return base.step_ns
    graph = spread(base.graph, run, plain=base.plain is not None, changed=False)
    replayed = replay(graph)
    return base.real_ns(step_times(graph, base.judged, replayed.start_ns, replayed.end_ns).mean_ns)


class FixGain(msgspec.Struct, frozen=True):
    """Gain of a set of interventions in an average step; negative for a loss."""

    gain_ns: Estimate
    fix: tuple[str, ...]


def largest_gains(
    trace: Trace, device: int, each: Iterable[Sequence[tuple[str, ...]]], base: Base | None = None
) -> Iterator[FixGain | None]:
    """Yield `largest_gain` for each of some collections of sets, on a device of a recording.

    Args:
        trace: The recording.
        device: The device.
        each: The collections.
        base: Starting point of predictions for the recording, if it exists.
    """
    base = on_device(base or prepare(trace, None), device)
    for fixes in each:
        yield largest_gain(base, fixes)


def largest_gain(base: Base, fixes: Iterable[tuple[str, ...]]) -> FixGain | None:
    """Return the gain of the set of interventions that gains most by `predict`.

    None if the recording cannot be replayed or no set changes anything.
    """
    if not base.fidelity.valid:
        return None
    # The time of pinned copies is unknown if the link's rate is a guess.
    computable = [fix for fix in fixes if not (base.hardware.guessed and {"pin", "batch-copies"} & {*fix})]
    expected = {fix: _expected(base, fix) for fix in computable}
    changing = [(each.step_ns, fix) for fix, each in expected.items() if each is not None]
    # Only the best is replayed at the other stances, too.
    gains = (_gain_of(base, fix) for _, fix in sorted(changing, key=itemgetter(0)))
    return next((each for each in gains if each is not None), None)


@kept(most=4)
def _expected(base: Base, fix: tuple[str, ...]) -> Outcome | None:
    """Return the expected outcome; None if a part of the set changes nothing, or if it cannot be replayed."""
    choices = parse(fix)
    if not all(apply(base, choices[: many + 1])[-1].touched for many in range(len(choices))):
        return None
    try:
        return replayed_as(base, apply(base, choices))
    except Deadlock:
        return None


@kept()
def _gain_of(base: Base, fix: tuple[str, ...]) -> FixGain | None:
    """Return the gain of a set that changes something; None if it cannot be replayed at every stance."""
    choices, expected = parse(fix), _expected(base, fix)
    assert expected is not None
    try:
        steps_ns = {Stance.EXPECTED: expected.step_ns}
        for stance in (Stance.BEST, Stance.WORST):
            # Graphs are large, so that only one of them is held at a time.
            steps_ns[stance] = outcome(base, choices, [stance] * len(choices), stance).step_ns
        return FixGain(gain(base, expected, steps_ns), fix)
    except Deadlock:
        return None
