"""Figures of an inference server's steps by phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from overlapscope.analysis.average import average, judged_by_phase
from overlapscope.analysis.figures import Period, PhaseFigures, ServedSteps
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.servers import Phase, StepBatch, batch_in

_NS: Final = 10**9


def describe_served(steps: Sequence[Period], window: Period) -> ServedSteps | None:
    """Return the figures of each phase; None for steps that no server marked. `window` has the figures of all time."""
    batches = {number: batch for number, step in enumerate(steps) if (batch := batch_in(step.name)) is not None}
    if not batches:
        return None
    whole = [number for number, step in enumerate(steps) if not step.partial]
    judged = judged_by_phase(whole, [step.name for step in steps])
    phases = [
        _of_phase(phase, steps, batches, judged.get(phase, ()))
        for phase in dict.fromkeys(batch.phase for batch in batches.values())
    ]
    every = [number for phase, numbers in judged.items() if phase is not None for number in numbers]
    span_ns = sum(steps[number].span_ns for number in every)
    return ServedSteps(
        phases=tuple(sorted(phases, key=_total_ns, reverse=True)),
        tokens_per_s=_rate((batches[number].tokens for number in every), span_ns),
        awaiting_requests_ns=window.idle_by_cause[IdleCause.AWAITING_REQUESTS],
        decode_tokens_per_s=_rate((_decoded(batches[number]) for number in every), span_ns),
    )


def _of_phase(
    phase: Phase, steps: Sequence[Period], batches: dict[int, StepBatch], judged: Sequence[int]
) -> PhaseFigures:
    requests = [batches[number].requests for number in judged]
    known = [count for count in requests if count is not None]
    stated = bool(known) and len(known) == len(requests)
    return PhaseFigures(
        phase=phase,
        recorded=sum(batch.phase == phase for batch in batches.values()),
        fewest_requests=min(known) if stated else None,
        most_requests=max(known) if stated else None,
        tokens_per_s=_rate(
            (batches[number].tokens for number in judged), sum(steps[number].span_ns for number in judged)
        ),
        per_step=average(steps, judged),
    )


def _total_ns(phase: PhaseFigures) -> int:
    return 0 if phase.per_step is None else phase.per_step.steps * phase.per_step.span_ns


def _decoded(batch: StepBatch) -> int | None:
    """Return the tokens of requests that decode; None if unknown."""
    if batch.phase in ("prefill", "empty"):
        return 0
    return batch.tokens if batch.phase == "decode" else batch.decode_tokens


def _rate(counts: Iterable[int | None], span_ns: int) -> float | None:
    """Return counts by a second; None if any is unknown, or for no time."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total * _NS / span_ns if span_ns else None
