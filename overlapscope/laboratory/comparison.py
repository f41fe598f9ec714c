"""Results against what was declared and published: every claim, and whether it holds here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from overlapscope.laboratory import truth
from overlapscope.laboratory.results import Analysis, ExperimentResult, Results

Kind = Literal["order", "results", "diagnosis"]
WALL = "wall_ms"


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that is said to be so."""

    experiment: str
    kind: Kind
    """`order`: which variant is faster; `results`: right or wrong; `diagnosis`: what the analysis must find."""
    text: str
    """What is claimed, as a sentence without its full stop."""
    found: str
    """What was seen here."""
    holds: bool | None
    """None where it cannot be told; `found` says why."""
    published: bool | None = None
    """Whether the published figures say the same; None where they say nothing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one variant: ours and the published one, and each as a multiple of the first variant's."""

    name: str
    ours: float | None
    published: float | None
    ours_ratio: float | None
    published_ratio: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One experiment, compared."""

    result: ExperimentResult
    claims: tuple[Claim, ...]
    figures: dict[str, tuple[Figure, ...]]
    """For each variant: the wall time, then all others that it has here or published."""

    def wall(self, variant: str) -> Figure:
        """A variant's wall time."""
        return self.figures[variant][0]


def compare(results: Results) -> tuple[Comparison, ...]:
    """Compare each experiment."""
    return tuple(
        Comparison(
            result=experiment,
            claims=(*_orders(experiment), *_results(experiment), *_diagnoses(experiment)),
            figures=_figures(experiment),
        )
        for experiment in results.experiments
    )


def tally(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """How many hold, do not hold, and cannot be told."""
    held = [claim.holds for claim in claims]
    return held.count(True), held.count(False), held.count(None)


_ENDED = {"ok": "was not timed", "failed": "failed", "skipped": "was skipped"}


def _orders(experiment: ExperimentResult) -> Iterator[Claim]:
    by_name = {variant.name: variant for variant in experiment.variants}
    for names in experiment.faster:
        pair = [by_name[name] for name in names if name in by_name]
        text = f"{names[0]} is faster than {names[1]}"
        if len(pair) < 2:
            yield Claim(experiment.name, "order", text, "there is no such variant", None)
            continue
        published = [variant.published[WALL] for variant in pair if WALL in variant.published]
        said = published[0] < published[1] if len(published) == 2 else None
        first, second = (variant.wall_ms for variant in pair)
        if first is None or second is None:
            reason = "; ".join(
                f"{variant.name} {_ENDED[variant.status]}" for variant in pair if variant.wall_ms is None
            )
            yield Claim(experiment.name, "order", text, reason, None, said)
            continue
        found = f"{first.median:.4g} against {second.median:.4g} ms"
        holds: bool | None = first.median < second.median
        if abs(first.median - second.median) < max(first.iqr, second.iqr):
            found += ", which is within their spread"
            holds = None
        yield Claim(experiment.name, "order", text, found, holds, said)


def _results(experiment: ExperimentResult) -> Iterator[Claim]:
    for variant in experiment.variants:
        if variant.wrong_expected is None:
            continue
        some = variant.wrong_expected == "some"
        text = f"{variant.name} {'can compute wrong results' if some else 'computes no wrong result'}"
        counted = variant.wrong_results
        if counted is None:
            reason = "it counted none" if variant.status == "ok" else f"{variant.name} {_ENDED[variant.status]}"
            yield Claim(experiment.name, "results", text, reason, None)
        else:
            found = f"{counted.wrong} of {counted.tries} were wrong"
            yield Claim(experiment.name, "results", text, found, (counted.wrong > 0) == some)


def _diagnoses(experiment: ExperimentResult) -> Iterator[Claim]:
    for variant in experiment.variants:
        reason = "nothing ran on a GPU" if variant.status == "ok" else f"{variant.name} {_ENDED[variant.status]}"
        for analysis in variant.analyses or (None,):
            of = f" ({place(analysis)})" if analysis is not None and len(variant.analyses) > 1 else ""
            for verdict in truth.check(variant.truth, analysis, analysis.rules if analysis is not None else ()):
                text = f"{variant.name}{of}: {verdict.claim}"
                yield Claim(experiment.name, "diagnosis", text, verdict.found or reason, verdict.holds)


def place(analysis: Analysis) -> str:
    """The rank or device that an analysis is of, where a variant has several."""
    return f"device {analysis.device}" if analysis.rank is None else f"rank {analysis.rank}"


def _figures(experiment: ExperimentResult) -> dict[str, tuple[Figure, ...]]:
    ours = {
        variant.name: {WALL: variant.wall_ms.median if variant.wall_ms else None, **variant.figures}
        for variant in experiment.variants
    }
    published: dict[str, dict[str, float]] = {variant.name: variant.published for variant in experiment.variants}
    first = experiment.variants[0].name if experiment.variants else ""
    return {
        variant: tuple(
            Figure(
                name=name,
                ours=ours[variant].get(name),
                published=published[variant].get(name),
                ours_ratio=_ratio(ours[variant].get(name), ours[first].get(name)),
                published_ratio=_ratio(published[variant].get(name), published[first].get(name)),
            )
            for name in dict.fromkeys([WALL, *ours[variant], *published[variant]])
        )
        for variant in ours
    }


def _ratio(figure: float | None, first: float | None) -> float | None:
    return figure / first if figure is not None and first else None
