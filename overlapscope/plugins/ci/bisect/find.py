"""The search for the first bad commit of a repository."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host import shown_line
from overlapscope.base.words import plural
from overlapscope.contracts.compare import Promise
from overlapscope.errors import UsageError
from overlapscope.plugins.ci.bisect.commits import BisectedRepository
from overlapscope.plugins.ci.bisect.judge import (
    ByOrder,
    by_order,
    names,
    same,
)
from overlapscope.plugins.ci.bisect.result import (
    BisectCandidate,
    Bisection,
    BisectOutcome,
    JudgedCandidate,
    Verdict,
)
from overlapscope.plugins.ci.bisect.session import RecordedCommits
from overlapscope.render.progress import Progress

Judge = Callable[[str, int], Verdict]
"""Function of a candidate and of the number of candidates left that returns the verdict on it."""
Tell = Callable[[str, Verdict, str], None]
"""Function that shows the verdict on a candidate, with its reason."""


Ends = tuple[BisectCandidate, BisectCandidate]


class Commits(Struct, frozen=True):
    """Commits, searched by `git bisect` in a worktree."""

    repository: BisectedRepository
    tree: Path

    def first_bad(self, good: str, bad: str, judge: Judge) -> list[str]:
        """Return the first bad commit, or all that may be it since they are skipped."""
        repository, tree = self.repository, self.tree
        repository.begin(tree, good, bad)
        while not (found := repository.found(tree)):
            commit = repository.next(tree)
            verdict = judge(commit, repository.left(tree))
            repository.mark(tree, commit, "skip" if verdict == "skipped" else verdict)
        return found

    def before(self, candidate: str, good: str) -> Sequence[str]:
        """Return the predecessors of a commit that come after GOOD."""
        return self.repository.parents(candidate, good)


class Found(Struct, frozen=True):
    """The end of a search."""

    candidates: Sequence[str]
    """The first bad candidate, or all that may be it."""
    lost: tuple[Promise, ...]
    """Losses of the first bad one that were searched for; all of these if it is unknown."""


def first_that_loses(
    commits: Commits,
    ends: tuple[str, str],
    wanted: tuple[Promise, ...],
    outcome_of: Callable[[str, int], BisectOutcome],
    repeats: Callable[[str, ByOrder], bool],
    tell: Tell,
) -> Found:
    """Return the first candidate that loses something of what BAD lost.

    A loss that was at another place before, such as in a function that was renamed since, is followed there. The
    verdicts on the first one and on those before it must repeat; if one doesn't, that candidate is skipped.

    Args:
        commits: The commits.
        ends: GOOD and BAD.
        wanted: Losses to search for.
        outcome_of: Returns the outcome of a candidate, after recording it if necessary. It also gets the number of
            candidates that may be the first bad one.
        repeats: Returns whether another recording of a candidate gets the same verdict. If not, its outcome is a
            problem afterwards.
        tell: Shows each verdict and its reason.
    """
    good, bad = ends
    verdict = by_order(wanted)

    def judge(candidate: str, left: int) -> Verdict:
        mark, reason = verdict(outcome_of(candidate, left))
        tell(candidate, mark, reason)
        return mark

    while True:
        found = commits.first_bad(good, bad, judge)
        if len(found) > 1:
            return Found(found, wanted)
        first, sides = found[0], commits.before(found[0], good)
        if not all(repeats(each, verdict) for each in (first, *sides)):
            continue
        here = outcome_of(first, 1).lost
        lost = same(here, wanted)
        for side in sides:
            moved = same(outcome_of(side, 1).lost, lost, moved=True)
            if moved and not same(moved, here):
                bad, wanted, verdict = side, moved, by_order(moved)
                break
        else:
            return Found(found, lost)


class _Verdicts:
    """Verdicts so far, each printed when it is new."""

    def __init__(self, progress: Progress, describe: Callable[[str], BisectCandidate]) -> None:
        self._progress, self.describe = progress, describe
        self.judged: dict[str, JudgedCandidate] = {}

    def tell(self, name: str, verdict: Verdict, reason: str) -> None:
        now = JudgedCandidate(candidate=self.describe(name), verdict=verdict, reason=reason)
        if self.judged.get(name) != now:
            self._progress.say(f"{now.candidate.short} {verdict}: {reason}")
        self.judged[name] = now

    def result(self, ends: Ends, found: Found, wanted: Sequence[Promise], outcome: BisectOutcome) -> Bisection:
        """Return the result. `outcome` is that of the first bad candidate, if it is known."""
        some = tuple(map(self.describe, found.candidates))
        alone = len(some) == 1
        return Bisection(
            good=ends[0],
            bad=ends[1],
            first=some[0] if alone else None,
            possible=() if alone else some,
            lost=found.lost,
            later=tuple(each for each in wanted if alone and not same([each], outcome.lost, moved=True)),
            change="",
            judged=tuple(self.judged.values()),
            commands=(),
        )


# -- The result ---------------------------------------------------------------------------------------


def bisect_commits(session: RecordedCommits, ends: Ends, progress: Progress, command: str) -> Bisection:
    """Return the first bad commit.

    Args:
        session: Records commits.
        ends: GOOD and BAD.
        progress: Shows each verdict.
        command: Command line of the program.

    Raises:
        UsageError: GOOD or BAD can't be judged, or they don't differ.
    """
    verdicts = _Verdicts(progress, session.repository.described)
    if session.outcomes:
        progress.say(f"Continuing: {plural(len(session.outcomes), 'commit')} recorded before.")
    good, bad = ends
    session.begin(good)
    unstable = session.outcome_of_end(good, "GOOD")
    broken = session.outcome_of_end(bad, "BAD")
    wanted = _wanted(broken, unstable, bad.short)
    verdicts.tell(bad.id, *by_order(wanted)(broken))
    commits = Commits(session.repository, session.tree)
    found = first_that_loses(commits, (good.id, bad.id), wanted, session.outcome_of, session.repeats, verdicts.tell)
    first = found.candidates[0]
    result = verdicts.result(ends, found, wanted, session.outcomes[first])
    session.tidy((good.id, first))
    return _with_code(session, result, command)


def _wanted(broken: BisectOutcome, unstable: BisectOutcome, bad: str) -> tuple[Promise, ...]:
    """Return what BAD breaks and GOOD, recorded once more, does not. Raises UsageError if there is nothing."""
    varies = same(broken.lost, (*unstable.lost, *unstable.unknown))
    wanted = tuple(each for each in broken.lost if each not in varies)
    if wanted:
        return wanted
    if varies:
        raise UsageError(f"GOOD itself, recorded twice, does not always keep this: {names(varies)}.")
    unsure = f" This is uncertain: {names(broken.unknown)}." if broken.unknown else ""
    raise UsageError(f"BAD ({bad}) keeps all that GOOD's contract promises, so nothing is lost by order.{unsure}")


def _with_code(session: RecordedCommits, result: Bisection, command: str) -> Bisection:
    """Return the result with the change, and with commands that show the loss."""
    shown = next((line for each in result.lost if (line := shown_line(each.line))), None)
    first = result.first
    if first is None:
        return result
    change = session.repository.change(first.id, shown.file if shown else "")
    traces = [os.fspath(session.trace_of(commit)) for commit in (result.good.id, first.id)]
    commands = [f"git show {first.short}", shlex.join(["overlapscope", *session.comparison, *traces])]
    if result.later:
        commands.append(f"overlapscope bisect {first.short} {result.bad.short} -- {command}")
    return replace(result, change=change, commands=tuple(commands))
