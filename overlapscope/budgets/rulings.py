"""What a budget or a forbidden rule comes to at one place, before the places make a verdict together."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from overlapscope.base.words import clean
from overlapscope.budgets.places import Place
from overlapscope.budgets.settings import Exemption
from overlapscope.budgets.verdicts import Level, Part, Status, Subject
from overlapscope.rules.finding import Finding

WORST_FIRST: Final[dict[Status, int]] = {"fail": 0, "unknown": 1, "accepted": 2, "skipped": 3, "pass": 4}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ruling:
    """One place judged; figures in the metric's unit."""

    subject: Subject
    place: Place | None = None
    """Of a budget; a forbidden rule needs no samples."""
    status: Status
    value: float | None = None
    samples: int = 0
    """Those that have a value: a percentage of nothing is none."""
    limit: float | None = None
    baseline: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str = ""
    """Without its place and the full stop: `step_time is 3.4 ms, but at most 3 ms is allowed`."""
    note: str = ""
    """Why it passes though the percentage that is allowed is exceeded: `18% more, within noise`."""
    nothing: bool = False
    """Whether neither side of a comparison has anything to measure."""
    exception: str = ""
    """What an exception has to say."""
    findings: tuple[Finding, ...] = ()
    """Of a forbidden rule."""

    @property
    def part(self) -> Part:
        """What a verdict tells of it."""
        return Part(
            source=self.subject.source,
            rank=self.subject.rank,
            device=self.subject.device,
            status=self.status,
            value=self.value,
            samples=self.samples,
        )


def counts(status: Status, level: Level, fail_level: Level, *, allow_missing: bool) -> bool:
    """Whether a verdict can change the outcome of the check."""
    if status == "unknown" and allow_missing:
        return False
    return status in ("fail", "unknown") and (level == "error" or fail_level == "warn")


class Exemptions:
    """The exceptions of one check; it remembers which of them met something."""

    def __init__(self, exemptions: Sequence[Exemption], today: datetime.date) -> None:
        self._exemptions = tuple(exemptions)
        self._today = today
        self._met: set[int] = set()
        self._needed: set[int] = set()

    def apply(self, budget: str, metric: str, ruling: Ruling) -> Ruling:
        """The ruling under the exceptions, with a sentence where one matters. Only a failure can be accepted."""
        ended = ""
        for number, exemption in enumerate(self._exemptions):
            if not exemption.means(budget, metric) or not exemption.where.match(ruling.subject):
                continue
            self._met.add(number)
            if ruling.status != "fail":
                continue
            self._needed.add(number)
            reason = clean(exemption.reason, 300).rstrip(".")
            if self._today <= exemption.until:
                accepted = f"Accepted until {exemption.until}: {reason}."
                return replace(ruling, status="accepted", exception=accepted)
            ended = f"Its exception ended on {exemption.until}: {reason}."
        return replace(ruling, exception=ended)

    def notes(self) -> Iterator[str]:
        """A sentence for each exception that changed nothing."""
        for number, exemption in enumerate(self._exemptions):
            what = f"{clean(exemption.origin)}: the exception for {clean(exemption.rule or exemption.budget or '', 80)}"
            if number not in self._met:
                yield f"{what} matches nothing that was judged; remove it."
            elif number not in self._needed:
                yield f"{what} is not needed, as that does not fail; remove it."
