"""Holds an analysis against what is true of the recorded program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from overlapscope.analysis.results import Device
from overlapscope.catalog.causes import CopyCause
from overlapscope.laboratory.experiment import Truth
from overlapscope.laboratory.results import Analysis

Subject = Literal["exposed copy", "idle", "hidden copy", "finding", "no finding"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one thing that is true was found."""

    subject: Subject
    expected: str
    found: str
    """Empty where nothing was analysed."""
    holds: bool | None
    """None where nothing was analysed."""

    @property
    def claim(self) -> str:
        """What is true, as a sentence without its full stop."""
        return f"{_CLAIMS[self.subject]} {self.expected}"


_CLAIMS: dict[Subject, str] = {
    "exposed copy": "copies are exposed by",
    "idle": "the GPU is idle by",
    "hidden copy": "the share of copies that is hidden is",
    "finding": "there is the finding",
    "no finding": "there is no finding",
}


def check(truth: Truth, device: Device | Analysis | None, rules: Collection[str] = ()) -> Iterator[Verdict]:
    """One verdict for each thing that `truth` states of a device's recording; `rules` are those that fired on it.

    An expected cause must explain its share of a time that is not zero; the lead-in, where nothing is judged, is
    left out of it. The hidden share is of what `device.overlap` is of.
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
        yield Verdict("finding", rule, listed, None if device is None else rule in rules)
    for rule in truth.no_findings:
        yield Verdict("no finding", rule, listed, None if device is None else rule not in rules)


def _cause(subject: Subject, cause: str, least: float, by_cause: Mapping[str, int] | None) -> Verdict:
    expected = f"{cause} (at least {100 * least:.0f}%)"
    if by_cause is None:
        return Verdict(subject, expected, "", None)
    judged = {name: ns for name, ns in by_cause.items() if ns and name != CopyCause.LEAD_IN}
    whole = sum(judged.values())
    largest = sorted(((ns, name) for name, ns in judged.items()), reverse=True)[:3]
    found = ", ".join(f"{name} {100 * ns / whole:.0f}%" for ns, name in largest if 100 * ns >= whole)
    return Verdict(subject, expected, found or "no such time", judged.get(cause, 0) >= least * whole > 0)


def _hidden(between: tuple[float, float], device: Device | Analysis | None) -> Verdict:
    least, most = between
    expected = f"{least:g} to {most:g}%"
    if device is None:
        return Verdict("hidden copy", expected, "", None)
    hidden_pct = device.overlap.hidden_copy_pct
    if hidden_pct is None:
        return Verdict("hidden copy", expected, "no copies", False)
    return Verdict("hidden copy", expected, f"{hidden_pct:.1f}%", least <= hidden_pct <= most)
