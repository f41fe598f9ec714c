"""Which failures are known and accepted, and what has to be said of exceptions that have ended or are not needed."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from overlapscope.base.words import clean
from overlapscope.budgets.settings import Exemption
from overlapscope.budgets.verdicts import Status, Subject


class Exemptions:
    """The exceptions of one check; it remembers which of them met something."""

    def __init__(self, exemptions: Sequence[Exemption], today: datetime.date) -> None:
        self._exemptions = tuple(exemptions)
        self._today = today
        self._met: set[int] = set()
        self._needed: set[int] = set()

    def apply(self, budget: str, metric: str, subject: Subject, status: Status) -> tuple[Status, str]:
        """The status under the exceptions, and a sentence where one matters. Only a failure can be accepted."""
        ended = ""
        for number, one in enumerate(self._exemptions):
            if not one.means(budget, metric) or not one.where.match(subject):
                continue
            self._met.add(number)
            if status != "fail":
                continue
            self._needed.add(number)
            reason = clean(one.reason, 300).rstrip(".")
            if self._today <= one.until:
                return "accepted", f"Accepted until {one.until}: {reason}."
            ended = f"Its exception ended on {one.until}: {reason}."
        return status, ended

    def notes(self) -> Iterator[str]:
        """A sentence for each exception that changed nothing."""
        for number, one in enumerate(self._exemptions):
            what = clean(one.rule or one.budget or "", 80)
            if number not in self._met:
                yield f"{clean(one.origin)}: the exception for {what} matches nothing that was judged; remove it."
            elif number not in self._needed:
                yield f"{clean(one.origin)}: the exception for {what} is not needed, as that does not fail; remove it."
