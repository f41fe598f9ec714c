"""Comparison of results with declarations and published figures: each claim, and whether it holds here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from overlapscope.analysis.results import Device
from overlapscope.catalog.causes import CopyCause
from overlapscope.plugins.laboratory.experiment import Truth
from overlapscope.plugins.laboratory.results import Analysis, ExperimentResult, Results

Kind = Literal["order", "results", "diagnosis"]
WALL = "wall_ms"


class Claim(Struct, frozen=True):
    """A statement about an experiment."""

    experiment: str
    kind: Kind
    """Kind of claim. `order`: which variant is faster; `results`: right or wrong; `diagnosis`: what the analysis must
    find."""
    text: str
    """Sentence without its full stop."""
    observed: str
    """Observation on this machine."""
    holds: bool | None
    """True if the claim holds; None where unknown, and `observed` says why."""
    published: bool | None = None
    """True if the claim holds for the published figures; None where they don't cover it."""


class ComparedFigure(Struct, frozen=True):
    """A figure of a variant, measured here and published, each also as a multiple of the first variant's."""

    name: str
    ours: float | None
    published: float | None
    ours_ratio: float | None
    published_ratio: float | None


class ExperimentComparison(Struct, frozen=True):
    """Comparison of an experiment."""

    result: ExperimentResult
    claims: tuple[Claim, ...]
    figures: dict[str, tuple[ComparedFigure, ...]]
    """Figures of each variant: the wall time, then all others that were measured here or published."""

    def wall(self, variant: str) -> ComparedFigure:
        """Return a variant's wall time."""
        return self.figures[variant][0]


def compare(results: Results) -> tuple[ExperimentComparison, ...]:
    """Compare each experiment."""
    return tuple(
        ExperimentComparison(
            result=experiment,
            claims=(*_orders(experiment), *_results(experiment), *_diagnoses(experiment)),
            figures=_figures(experiment),
        )
        for experiment in results.experiments
    )


def tally(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """Return how many claims hold, don't hold, and are unknown."""
    held = [claim.holds for claim in claims]
    return held.count(True), held.count(False), held.count(None)


_WORDS_BY_STATUS = {"ok": "was not timed", "failed": "failed", "skipped": "was skipped"}


def _orders(experiment: ExperimentResult) -> Iterator[Claim]:
    by_name = {variant.name: variant for variant in experiment.variants}
    for names in experiment.faster:
        pair = [by_name[name] for name in names if name in by_name]
        text = f"{names[0]} is faster than {names[1]}"
        if len(pair) < 2:
            yield Claim(experiment.name, "order", text, "there is no such variant", None)
            continue
        published = [variant.published[WALL] for variant in pair if WALL in variant.published]
        published_holds = published[0] < published[1] if len(published) == 2 else None
        first, second = (variant.wall_ms for variant in pair)
        if first is None or second is None:
            reason = "; ".join(
                f"{variant.name} {_WORDS_BY_STATUS[variant.status]}" for variant in pair if variant.wall_ms is None
            )
            yield Claim(experiment.name, "order", text, reason, None, published_holds)
            continue
        observation = f"{first.median:.4g} against {second.median:.4g} ms"
        holds: bool | None = first.median < second.median
        if abs(first.median - second.median) < max(first.iqr, second.iqr):
            observation += ", which is within their spread"
            holds = None
        yield Claim(experiment.name, "order", text, observation, holds, published_holds)


def _results(experiment: ExperimentResult) -> Iterator[Claim]:
    for variant in experiment.variants:
        if variant.wrong_expected is None:
            continue
        some = variant.wrong_expected == "some"
        text = f"{variant.name} {'can compute wrong results' if some else 'computes no wrong result'}"
        counted = variant.wrong_results
        if counted is None:
            reason = (
                "no results were counted"
                if variant.status == "ok"
                else f"{variant.name} {_WORDS_BY_STATUS[variant.status]}"
            )
            yield Claim(experiment.name, "results", text, reason, None)
        else:
            observation = f"{counted.wrong} of {counted.tries} were wrong"
            yield Claim(experiment.name, "results", text, observation, (counted.wrong > 0) == some)


def _diagnoses(experiment: ExperimentResult) -> Iterator[Claim]:
    for variant in experiment.variants:
        reason = (
            "nothing ran on a GPU" if variant.status == "ok" else f"{variant.name} {_WORDS_BY_STATUS[variant.status]}"
        )
        for analysis in variant.analyses or (None,):
            of = f" ({place(analysis)})" if analysis is not None and len(variant.analyses) > 1 else ""
            for verdict in check_truth(variant.truth, analysis, analysis.rules if analysis is not None else ()):
                text = f"{variant.name}{of}: {verdict.claim}"
                yield Claim(experiment.name, "diagnosis", text, verdict.observed or reason, verdict.holds)


def place(analysis: Analysis) -> str:
    """Return the rank or device of an analysis, for variants with several."""
    return f"device {analysis.device}" if analysis.rank is None else f"rank {analysis.rank}"


def _figures(experiment: ExperimentResult) -> dict[str, tuple[ComparedFigure, ...]]:
    ours = {
        variant.name: {WALL: variant.wall_ms.median if variant.wall_ms else None, **variant.figures}
        for variant in experiment.variants
    }
    published: dict[str, dict[str, float]] = {variant.name: variant.published for variant in experiment.variants}
    first = experiment.variants[0].name if experiment.variants else ""
    return {
        variant: tuple(
            ComparedFigure(
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


# -- Truth about the recorded program --------------------------------------------------------------

Subject = Literal["exposed copy", "idle", "hidden copy", "finding", "no finding"]


class TruthVerdict(Struct, frozen=True):
    """Verdict on whether the analysis found a true statement about a program."""

    subject: Subject
    expected: str
    observed: str
    """Observation; empty where nothing was analysed."""
    holds: bool | None
    """True if it was observed; None where nothing was analysed."""

    @property
    def claim(self) -> str:
        """True statement, as a sentence without its full stop."""
        return f"{_CLAIMS[self.subject]} {self.expected}"


_CLAIMS: dict[Subject, str] = {
    "exposed copy": "copies are exposed by",
    "idle": "the GPU is idle by",
    "hidden copy": "the hidden share of copies is",
    "finding": "the analysis reports",
    "no finding": "the analysis does not report",
}


def check_truth(truth: Truth, device: Device | Analysis | None, rules: Collection[str] = ()) -> Iterator[TruthVerdict]:
    """Yield one verdict for each statement of `truth` on a device's recording.

    An expected cause must explain its share of a time that is not zero, leaving out the lead-in, where nothing is
    judged. The hidden share refers to `device.overlap`. `device` is None where nothing was analysed, and `rules` are
    those that fired on it.
    """
    if truth.exposed_copy is not None:
        by_cause = None if device is None else device.exposed_copy_by_cause
        yield _cause("exposed copy", truth.exposed_copy, truth.least_share, by_cause)
    if truth.idle is not None:
        yield _cause("idle", truth.idle, truth.least_share, None if device is None else device.idle_by_cause)
    if truth.hidden_copy_pct is not None:
        yield _hidden(truth.hidden_copy_pct, device)
    listed = "" if device is None else ", ".join(sorted(set(rules))) or "none"
    for rule in truth.findings:
        yield TruthVerdict("finding", rule, listed, None if device is None else rule in rules)
    for rule in truth.no_findings:
        yield TruthVerdict("no finding", rule, listed, None if device is None else rule not in rules)


def _cause(subject: Subject, cause: str, least: float, by_cause: Mapping[str, int] | None) -> TruthVerdict:
    expected = f"{cause} (at least {100 * least:.0f}%)"
    if by_cause is None:
        return TruthVerdict(subject, expected, "", None)
    judged = {name: ns for name, ns in by_cause.items() if ns and name != CopyCause.LEAD_IN}
    total = sum(judged.values())
    largest = sorted(((ns, name) for name, ns in judged.items()), reverse=True)[:3]
    shares = ", ".join(f"{name} {100 * ns / total:.0f}%" for ns, name in largest if 100 * ns >= total)
    return TruthVerdict(subject, expected, shares or "none", judged.get(cause, 0) >= least * total > 0)


def _hidden(between: tuple[float, float], device: Device | Analysis | None) -> TruthVerdict:
    least, most = between
    expected = f"{least:g} to {most:g}%"
    if device is None:
        return TruthVerdict("hidden copy", expected, "", None)
    hidden_pct = device.overlap.hidden_copy_pct
    if hidden_pct is None:
        return TruthVerdict("hidden copy", expected, "no copies", False)
    return TruthVerdict("hidden copy", expected, f"{hidden_pct:.1f}%", least <= hidden_pct <= most)
