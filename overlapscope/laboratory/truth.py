"""Holds an analysis against what is true of the recorded program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from overlapscope.analysis.causes import CopyCause
from overlapscope.analysis.results import Overlap
from overlapscope.laboratory.experiment import Truth

Subject = Literal["exposed copy", "idle", "hidden copy", "finding", "no finding"]


class Judged(Protocol):
    """What is asked of a device's result."""

    @property
    def exposed_copy_by_cause(self) -> Mapping[str, int]: ...
    @property
    def idle_by_cause(self) -> Mapping[str, int]: ...
    @property
    def overlap(self) -> Overlap: ...


class Fired(Protocol):
    """What is asked of a finding."""

    @property
    def rule(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one thing that is true was found."""

    subject: Subject
    expected: str
    found: str
    holds: bool


def check(truth: Truth, device: Judged, findings: Iterable[Fired]) -> tuple[Verdict, ...]:
    """One verdict for each thing that `truth` states of a device's recording; `findings` are those on that device.

    An expected cause must explain its share of a time that is not zero; the lead-in, where nothing is judged, is
    left out of it. The hidden share is of what `device.overlap` is of.
    """
    rules = {finding.rule for finding in findings}
    verdicts = []
    if truth.exposed_copy is not None:
        verdicts.append(_cause("exposed copy", truth.exposed_copy, truth.least_share, device.exposed_copy_by_cause))
    if truth.idle is not None:
        verdicts.append(_cause("idle", truth.idle, truth.least_share, device.idle_by_cause))
    if truth.hidden_copy_pct is not None:
        verdicts.append(_hidden(truth.hidden_copy_pct, device.overlap.hidden_copy_pct))
    listed = ", ".join(sorted(rules)) or "none"
    verdicts += [Verdict("finding", rule, listed, rule in rules) for rule in truth.findings]
    verdicts += [Verdict("no finding", rule, listed, rule not in rules) for rule in truth.no_findings]
    return tuple(verdicts)


def _cause(subject: Subject, cause: str, least: float, by_cause: Mapping[str, int]) -> Verdict:
    judged = {name: ns for name, ns in by_cause.items() if ns and name != CopyCause.LEAD_IN}
    whole, mine = sum(judged.values()), judged.get(cause, 0)
    largest = sorted(((ns, name) for name, ns in judged.items()), reverse=True)[:3]
    found = ", ".join(f"{name} {100 * ns / whole:.0f}%" for ns, name in largest if 100 * ns >= whole)
    return Verdict(
        subject, f"{cause} (at least {100 * least:.0f}%)", found or "no such time", mine >= least * whole > 0
    )


def _hidden(between: tuple[float, float], found: float | None) -> Verdict:
    least, most = between
    return Verdict(
        "hidden copy",
        f"{least:g} to {most:g}%",
        "no copies" if found is None else f"{found:.1f}%",
        found is not None and least <= found <= most,
    )
