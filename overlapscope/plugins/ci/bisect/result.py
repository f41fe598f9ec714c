"""The result of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.contracts.compare import Promise

By = Literal["order", "step-time"]
Verdict = Literal["good", "bad", "skipped"]
Judge = Callable[[str, int], Verdict]
"""Function of a candidate and of the number of candidates left that returns the verdict on it."""


class BisectCandidate(Struct, frozen=True, order=True):
    """A commit, or a stored trace."""

    id: str
    """Number of the commit, or path of the trace."""
    author: str = ""
    date: str = ""
    subject: str = ""

    @property
    def short(self) -> str:
        """The first digits of a commit's number, or the path."""
        return self.id[:10] if self.subject or self.author else self.id


class BisectOutcome(Struct, frozen=True, kw_only=True):
    """Facts about a commit or trace, from which each search gets its verdict."""

    problem: str = ""
    """Reason why it can't be judged; empty if it can."""
    lost: tuple[Promise, ...] = ()
    """Promises of GOOD's contract that it breaks."""
    unknown: tuple[Promise, ...] = ()
    """Promises that can't be judged."""
    gone: tuple[str, ...] = ()
    """Copies and collectives of GOOD's that it doesn't have."""
    steps_ns: tuple[int, ...] = ()
    """Step times without the profiler, one for each run."""
    confirmed_for: str = ""
    """BAD of the search in which two recordings agreed; empty if only one was made."""
    seconds: float = 0.0
    """Time that running and judging took."""


class JudgedCandidate(Struct, frozen=True, kw_only=True):
    """A candidate with its verdict."""

    candidate: BisectCandidate
    verdict: Verdict
    reason: str
    """Its losses, its step time, or the reason to skip it."""


class Bisection(Struct, frozen=True, kw_only=True):
    """The result of `overlapscope bisect`."""

    kind: Literal["bisect"] = "bisect"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    by: By
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
