"""A prediction in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from overlapscope.base.words import Unit, clean, duration, percent, unit_for
from overlapscope.prediction.result import Change, Estimate, WhatIf

Level = Literal["good", "poor", "muted"]

_NAME_LIMIT = 200
_TEXT_LIMIT = 1000
_REMEDY = (
    "It may help to record again with `overlapscope run` or `overlapscope.record`, which note what each event wait "
    "waits for, and from behind a synchronize, so that no op was launched before the recording."
)
_WORTH_PCT = 1.0
"""What changes less is neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in one sentence, and the palette's name of its colour."""

    text: str
    level: Level


def unit(result: WhatIf) -> Unit:
    """The unit of time in which the longer of the two steps reads well."""
    predicted = result.predicted_step_ns
    return unit_for(max(result.baseline_step_ns, result.recorded_step_ns, predicted.value if predicted else 0))


def headline(result: WhatIf) -> Headline:
    """What the changes bring; where nothing is predicted, that."""
    period = "A step" if result.steps else "The whole window"
    of, predicted, gain = unit(result), result.predicted_step_ns, result.gain_ns
    if predicted is None or gain is None:
        return Headline("Nothing is predicted: the replay does not explain this recording.", "muted")
    if not result.interventions and not result.ladder:
        was, again = of.text(result.recorded_step_ns), of.text(result.replayed_step_ns)
        replayed = "as it does replayed" if was == again else f"{again} replayed"
        return Headline(f"{period} takes {was}, {replayed}: what changes would bring can be predicted.", "muted")
    if not result.interventions:
        return Headline(f"{period} takes {of.text(result.unchanged_step_ns)}, and no change makes it shorter.", "muted")
    if not changes_anything(result):
        return Headline(f"{period} would take as long as now: there is nothing here that this would change.", "muted")
    value, was = of.number(predicted.value), of.text(result.unchanged_step_ns)
    between = _between(predicted, of)
    if was == f"{value} {of.name}":
        return Headline(f"{period} would take as long as now, {was}{f' ({between})' if between else ''}.", "muted")
    more = "less" if gain.value > 0 else "more"
    share = f"{percent(abs(result.gain_pct))} {more}" if result.gain_pct is not None else more
    told = f"{share}; {between}" if between else share
    level: Level = "muted" if abs(result.gain_pct or 0) < _WORTH_PCT else "good" if gain.value > 0 else "poor"
    return Headline(f"{period} would take {value} {of.name} instead of {was} ({told}).", level)


def changes_anything(result: WhatIf) -> bool:
    """Whether the recording has something that the interventions concern."""
    return any(change.touched for change in result.interventions)


def _between(estimate: Estimate, of: Unit) -> str:
    told = interval(estimate, of)
    return f"between {told.replace(' to ', ' and ')} {of.name}" if told else ""


def interval(estimate: Estimate, of: Unit) -> str:
    """`30.1 to 65.0`; empty where both ends are the same."""
    low, high = of.number(estimate.low), of.number(estimate.high)
    return "" if low == high else f"{low} to {high}"


def subject(result: WhatIf) -> str:
    """The recording that it is about, and what a step's figures are."""
    named = [PurePath(result.source).name, *([f"rank {result.rank}"] if result.rank is not None else [])]
    named += [result.device_name or "a GPU without a name", f"device {result.device}"]
    subject = ", ".join(clean(one, _NAME_LIMIT) for one in named)
    if not result.replay.valid:
        return subject
    what = f"median of {result.steps:,} steps" if result.steps > 1 else "one step"
    what = what if result.steps else "without steps: the whole window"
    return f"{subject}; {what}"


def option(change: Change) -> str:
    """An intervention as it is asked for: `no-sync cudaStreamSynchronize`."""
    return clean(f"{change.intervention} {change.argument}" if change.argument else change.intervention, _NAME_LIMIT)


def done(change: Change) -> str:
    """What it changed."""
    return change.what if change.touched else "This recording has nothing of the kind."


def in_order(result: WhatIf) -> list[Change]:
    """The changes in the order in which to make them: that of the ladder, where there is one."""
    rungs = [set(rung.interventions) for rung in result.ladder]

    def rung_of(change: Change) -> int:
        asked = f"{change.intervention} {change.argument}" if change.argument else change.intervention
        return next((number for number, rung in enumerate(rungs) if asked in rung), len(rungs))

    return sorted(result.interventions, key=rung_of)


def doubts(result: WhatIf) -> Iterator[str]:
    """What makes a prediction less certain than its interval says, a sentence each."""
    if result.replay.valid:
        yield from (f"In doubt: {clean(reason, _TEXT_LIMIT)}" for reason in result.replay.reasons)


def refusal(result: WhatIf) -> Iterator[str]:
    """Where nothing is predicted: why, and what may help, a sentence each."""
    yield from (clean(reason, _TEXT_LIMIT) for reason in result.replay.reasons)
    yield _REMEDY


def program(result: WhatIf) -> Iterator[str]:
    """Whose step it is, the plain program's or the recording's: a sentence."""
    of, plain = unit(result), result.plain
    if not result.replay.valid:
        return
    if plain is None:
        yield (
            "Figures are of the recording, which slows the host. Pass what a step takes without a profiler as "
            "--plain-step, or record with `overlapscope run`, which times it."
        )
        return
    yield (
        f"Figures are of the program without a profiler: a step takes {of.text(plain.step_ns)} now ({plain.origin})."
    )
    recorded = f"Recorded, a step takes {of.text(result.recorded_step_ns)} now"
    if result.recorded_predicted_step_ns is not None and changes_anything(result):
        recorded += f", and would take {of.text(result.recorded_predicted_step_ns)} with the changes"
    yield f"{recorded}."


def replay(result: WhatIf) -> Iterator[str]:
    """How well a recording that is explained is explained, a sentence each."""
    of, told = unit(result), result.replay
    took = "a step" if result.steps else "the window"
    off = f": {percent(told.step_error_pct)} off" if told.step_error_pct is not None else ""
    yield (
        f"With nothing changed, the replay takes {of.text(result.replayed_step_ns)} for {took}, "
        f"where {of.text(result.recorded_step_ns)} were recorded{off}."
    )
    yield (
        f"GPU ops begin at most {duration(told.start_error_ns)} from where they did in their step, "
        f"which is judged by a tolerance of {duration(told.launch_latency_ns)}."
    )
