"""The result of a search."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.contracts.compare import Promise

Verdict = Literal["good", "bad", "skipped"]


class BisectCandidate(Struct, frozen=True, order=True):
    """A commit."""

    id: str
    """Its number."""
    author: str = ""
    date: str = ""
    subject: str = ""

    @property
    def short(self) -> str:
        """The first digits of its number."""
        return self.id[:10]


class BisectOutcome(Struct, frozen=True, kw_only=True):
    """Facts about a commit, from which each search gets its verdict."""

    problem: str = ""
    """Reason why it can't be judged; empty if it can."""
    lost: tuple[Promise, ...] = ()
    """Promises of GOOD's contract that it breaks."""
    unknown: tuple[Promise, ...] = ()
    """Promises that can't be judged."""
    gone: tuple[str, ...] = ()
    """Copies and collectives of GOOD's that it doesn't have."""
    confirmed_for: str = ""
    """BAD of the search in which two recordings agreed; empty if only one was made."""
    seconds: float = 0.0
    """Time that running and judging took."""


class JudgedCandidate(Struct, frozen=True, kw_only=True):
    """A candidate with its verdict."""

    candidate: BisectCandidate
    verdict: Verdict
    reason: str
    """Its losses, or the reason to skip it."""


class Bisection(Struct, frozen=True, kw_only=True):
    """The result of `overlapscope bisect`."""

    kind: Literal["bisect"] = "bisect"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    good: BisectCandidate
    bad: BisectCandidate
    first: BisectCandidate | None
    """The first that is bad; None if that is one of `possible`."""
    possible: tuple[BisectCandidate, ...]
    """Candidates that may be the first bad one, the others being skipped; empty if `first` is known."""
    lost: tuple[Promise, ...]
    """Losses of the first bad one, or of BAD if that is unknown."""
    later: tuple[Promise, ...]
    """Losses of BAD that a later one brought."""
    change: str
    """Lines that the first bad commit changed in the file that loses it, as a diff; empty if unknown."""
    judged: tuple[JudgedCandidate, ...]
    """All candidates that were judged, in the order of the search."""
    commands: tuple[str, ...]
    """Commands that show the loss."""
