"""The search through a repository's commits, by order or by time, and through stored traces."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from overlapscope.analysis.host import shown_line
from overlapscope.base.words import plural
from overlapscope.contracts.compare import Promise
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.inputs import read_trace
from overlapscope.plugins.ci.bisect.judge import (
    FEWEST_RUNS,
    MOST_RUNS,
    Border,
    Found,
    TraceSeries,
    by_order,
    contract_of,
    first_that_loses,
    judged_by_order,
    names,
    same,
)
from overlapscope.plugins.ci.bisect.result import (
    BisectCandidate,
    Bisection,
    BisectOutcome,
    By,
    JudgedCandidate,
    Verdict,
)
from overlapscope.plugins.ci.bisect.session import RecordedCommits
from overlapscope.reading import expand
from overlapscope.render.progress import Progress

Ends = tuple[BisectCandidate, BisectCandidate]


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

    def result(self, by: By, ends: Ends, found: Found, wanted: Sequence[Promise], outcome: BisectOutcome) -> Bisection:
        """Return the result. `outcome` is that of the first bad candidate, if it is known."""
        some = tuple(map(self.describe, found.candidates))
        alone = len(some) == 1
        return Bisection(
            by=by,
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


# -- Commits -----------------------------------------------------------------------------------------


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
    search = _by_order if session.by == "order" else _by_time
    found, wanted = search(session, ends, verdicts)
    first = found.candidates[0]
    result = verdicts.result(session.by, ends, found, wanted, session.outcomes[first])
    session.tidy((ends[0].id, first))
    if result.first is None:
        return result
    shown = next((line for each in result.lost if (line := shown_line(each.line))), None)
    change = session.repository.change(first, shown.file if shown else "")
    traces = [os.fspath(session.trace_of(commit)) for commit in (result.good.id, first)]
    commands = [f"git show {result.first.short}", shlex.join(["overlapscope", *session.comparison, *traces])]
    if result.later:
        commands.append(f"overlapscope bisect {result.first.short} {result.bad.short} -- {command}")
    return replace(result, change=change, commands=tuple(commands))


def _by_order(session: RecordedCommits, ends: Ends, verdicts: _Verdicts) -> tuple[Found, tuple[Promise, ...]]:
    good, bad = ends
    session.begin(good)
    unstable = session.outcome_of_end(good, "GOOD")
    broken = session.outcome_of_end(bad, "BAD")
    wanted = _wanted(broken, unstable, bad.short)
    verdicts.tell(bad.id, *by_order(wanted)(broken))
    found = first_that_loses(session, (good.id, bad.id), wanted, verdicts.tell)
    return found, wanted


def _wanted(broken: BisectOutcome, unstable: BisectOutcome, bad: str) -> tuple[Promise, ...]:
    """Return what BAD breaks and GOOD, recorded once more, does not. Raises UsageError if there is nothing."""
    varies = same(broken.lost, (*unstable.lost, *unstable.unknown))
    wanted = tuple(each for each in broken.lost if each not in varies)
    if wanted:
        return wanted
    if varies:
        raise UsageError(f"GOOD itself, recorded twice, does not always keep this: {names(varies)}.")
    unsure = f" This is uncertain: {names(broken.unknown)}." if broken.unknown else ""
    raise UsageError(
        f"BAD ({bad}) keeps all that GOOD's contract promises, so nothing is lost by order.{unsure} If it is slower, "
        "--by step-time finds the commit."
    )


def _by_time(session: RecordedCommits, ends: Ends, verdicts: _Verdicts) -> tuple[Found, tuple[Promise, ...]]:
    good, bad = ends
    runs = FEWEST_RUNS
    while True:
        sides = [session.timed(end, runs, name=name).steps_ns for end, name in zip(ends, ("GOOD", "BAD"), strict=True)]
        border = Border(sides[0], sides[1])
        if border.differs or runs >= MOST_RUNS:
            break
        runs += 1
    if not border.differs:
        raise UsageError(f"BAD's steps are not longer than GOOD's by more than noise: {border.words}.")

    def judge(commit: str, left: int) -> Verdict:
        runs = 1
        while (verdict := border.verdict(session.timed(verdicts.describe(commit), runs, left))) is None:
            runs += 1
        verdicts.tell(commit, *verdict)
        return verdict[0]

    verdicts.tell(bad.id, "bad", border.words)
    return Found(session.first_bad(good.id, bad.id, judge), ()), ()


# -- Stored traces -----------------------------------------------------------------------------------


def bisect_traces(sources: Sequence[str], progress: Progress) -> Bisection:
    """Return the first bad one of stored traces, oldest first; those that can't be judged are skipped.

    Raises:
        UsageError: There are too few, or one is named twice, or the first or the last can't be judged, or nothing is
            lost.
        UnreadableTrace: A source has no trace, or the first can't be read.
    """
    paths = [os.fspath(path) for source in sources for path in expand(source)]
    if len(paths) < 2:
        raise UsageError("name two traces or more, oldest first.")
    files = list(map(os.path.realpath, paths))
    for number, path in enumerate(paths):
        if files[number] in files[:number]:
            raise UsageError(f"{path}: is named twice, so the order is unknown; name each trace once, oldest first.")
    ends = BisectCandidate(paths[0]), BisectCandidate(paths[-1])
    contract = contract_of(read_trace(paths[0]))
    outcomes: dict[str, BisectOutcome] = {}

    def outcome_of(path: str, left: int) -> BisectOutcome:
        if path not in outcomes:
            progress.note(f"Reading {path}" + (f" ({plural(left, 'trace')} left)" if left else ""))
            try:
                outcomes[path] = judged_by_order(contract, read_trace(path))
            except OverlapscopeError as error:
                outcomes[path] = BisectOutcome(problem=error.reason)
        return outcomes[path]

    broken = outcome_of(paths[-1], 0)
    if broken.problem:
        raise UsageError(f"{paths[-1]}: can't be judged: {broken.problem}")
    wanted = _wanted(broken, BisectOutcome(), paths[-1])
    verdicts = _Verdicts(progress, BisectCandidate)
    verdicts.tell(paths[-1], *by_order(wanted)(broken))
    found = first_that_loses(TraceSeries(paths, outcome_of), (paths[0], paths[-1]), wanted, verdicts.tell)
    result = verdicts.result("order", ends, found, wanted, outcomes.get(found.candidates[0], BisectOutcome()))
    comparison = ("diff",) if contract.host_ops is not None else ("contract", "diff")
    shows = shlex.join(["overlapscope", *comparison, paths[0], found.candidates[-1]])
    return replace(result, commands=(shows,))
