"""Gains of changes: the ladder of interventions that save most, and the saving of a finding's fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from operator import itemgetter

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.prediction.base import Base, on_device, prepare
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import INTERVENTIONS, Choice, in_order, parse
from overlapscope.prediction.interventions.intervention import Applied
from overlapscope.prediction.overhead import plain_program
from overlapscope.prediction.predict import (
    Outcome,
    Prediction,
    apply,
    conclude,
    gain,
    interval,
    outcome,
    outcomes,
    replayed_as,
)
from overlapscope.prediction.replay import Deadlock
from overlapscope.prediction.result import Estimate, Rung
from overlapscope.prediction.steps import least_step_ns
from overlapscope.trace.model import Bool, Kind, Trace

VALUE_BYTES = 1024
"""Maximum size of a download that counts as a value or two."""
LEAST_GAIN = 0.01
"""Minimum fraction of the unchanged step that a rung must save."""


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
    prepared = prepare(trace, calibration)
    base = on_device(plain_program(prepared, plain_step_ns) or prepared, device)
    recorded = on_device(prepared, device)
    if not recorded.fidelity.valid:
        return conclude(recorded, base, ())
    was = base.step_ns
    alone = {choice: done for choice in candidates(base) for done in apply(base, [choice]) if done.touched}
    remaining = list(alone)
    taken: tuple[Choice, ...] = ()
    now = was
    unchanged = Estimate(value=was, low=was, high=was)
    rungs = [Rung(interventions=(), added="", predicted_step_ns=unchanged, gain_ns=0)]
    reached: Mapping[Stance, Outcome] | None = None
    while gained := _next(base, alone, taken, remaining, now):
        expected, added = gained
        now = expected.step_ns
        taken = in_order((*taken, *added))
        remaining = [choice for choice in remaining if choice not in added]
        try:
            reached = outcomes(base, taken, expected)
        except Deadlock:
            reached = None
            continue
        step_ns = interval(base, reached)
        rungs.append(
            Rung(
                interventions=tuple(choice.text for choice in taken),
                added=" + ".join(choice.text for choice in added),
                predicted_step_ns=step_ns,
                gain_ns=was - step_ns.value,
            )
        )
    chosen = conclude(recorded, base, taken, reached)
    return replace(chosen, result=msgspec.structs.replace(chosen.result, ladder=tuple(rungs)))


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
        if not intervention.words.arguments
        for argument in (names if intervention.words.argument_required else [None])
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
    base: Base, alone: Mapping[Choice, Applied], taken: Sequence[Choice], remaining: Sequence[Choice], now_ns: int
) -> tuple[Outcome, tuple[Choice, ...]] | None:
    """Find the best next rung: a candidate, or else a pair, that shortens the step most.

    Args:
        alone: Result of each candidate on the unchanged recording.
        now_ns: Step time of the current rung.

    Returns:
        The outcome and the added candidates, the first of equals; None if nothing gains enough.
    """
    worth_ns = LEAST_GAIN * base.step_ns
    for many in (1, 2):
        best = None
        for added in combinations(remaining, many):
            choices = in_order((*taken, *added))
            applied = apply(base, choices, computed=[alone[choices[0]]])
            # A set whose lower bound is too long needs no replay.
            least_ns = base.real_ns(least_step_ns(applied[-1].graph, base.judged))
            if now_ns - least_ns < worth_ns or (best is not None and least_ns >= best[0].step_ns):
                continue
            try:
                tried = replayed_as(base, applied)
            except Deadlock:
                continue
            if now_ns - tried.step_ns >= worth_ns and (best is None or tried.step_ns < best[0].step_ns):
                best = tried, added
        if best is not None:
            return best
    return None


class FixGain(msgspec.Struct, frozen=True):
    """Gain of a set of interventions in an average step; negative for a loss."""

    gain_ns: Estimate
    fix: tuple[str, ...]


class Savings:
    """Savings on a device of a recording or its plain program, prepared on first use."""

    def __init__(self, trace: Trace, device: int, ready: Base | None = None) -> None:
        self._trace, self._device, self._ready = trace, device, ready
        self._step_ns: dict[tuple[str, ...], int | None] = {}
        self._savings: dict[tuple[str, ...], FixGain | None] = {}

    def largest(self, fixes: Iterable[tuple[str, ...]]) -> FixGain | None:
        """Return the saving of the set of interventions that saves most by `predict`.

        None if the recording cannot be replayed or no set changes anything.
        """
        base = self._base
        if base is None:
            return None
        # The time of pinned copies is unknown if the link's rate is a guess.
        computable = [fix for fix in fixes if not (base.hardware.guessed and {"pin", "batch-copies"} & {*fix})]
        new = {fix: self._expected(fix) for fix in computable if fix not in self._step_ns}
        self._step_ns |= {fix: None if expected is None else expected.step_ns for fix, expected in new.items()}
        known = [(step_ns, fix) for fix in computable if (step_ns := self._step_ns[fix]) is not None]
        # Only the best is replayed at the other stances, too.
        best_first = (fix for _, fix in sorted(known, key=itemgetter(0)))
        return next((saving for fix in best_first if (saving := self._saving(fix, new.get(fix))) is not None), None)

    @cached_property
    def _base(self) -> Base | None:
        base = on_device(self._ready or prepare(self._trace, None), self._device)
        return base if base.fidelity.valid else None

    def _expected(self, fix: tuple[str, ...]) -> Outcome | None:
        """Return the expected outcome; None if the set changes nothing or cannot be replayed."""
        base = self._base
        assert base is not None
        try:
            expected = outcome(base, parse(fix))
        except Deadlock:
            return None
        return expected if base.replayed is not None and all(change.touched for change in expected.applied) else None

    def _saving(self, fix: tuple[str, ...], expected: Outcome | None) -> FixGain | None:
        """Return the saving; None if the set cannot be replayed at every stance."""
        base = self._base
        assert base is not None
        if fix not in self._savings:
            try:
                self._savings[fix] = FixGain(gain(base, outcomes(base, parse(fix), expected)), fix)
            except Deadlock:
                self._savings[fix] = None
        return self._savings[fix]
