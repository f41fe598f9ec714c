"""The search through a repository's commits, by order or by time, and through stored traces.

Recordings of commits are kept between searches, so that an interrupted one continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.base import disk
from overlapscope.base.saved import decode, encode
from overlapscope.base.words import clean, duration, plural
from overlapscope.contracts.compare import Promise
from overlapscope.contracts.model import Contract
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.inputs import read_trace
from overlapscope.plugins.ci.bisect.commits import BisectedRepository
from overlapscope.plugins.ci.bisect.judge import (
    MAX_RUNS,
    MIN_RUNS,
    Border,
    ByOrder,
    Found,
    TraceSeries,
    by_order,
    contract_of,
    first_that_loses,
    judged_by_order,
    names,
    same,
    step_ns_of,
    steps_left,
)
from overlapscope.plugins.ci.bisect.program import LAST_LINES, BisectedProgram, Failed, record, variables
from overlapscope.plugins.ci.bisect.result import (
    BisectCandidate,
    Bisection,
    BisectOutcome,
    By,
    Judge,
    JudgedCandidate,
    Verdict,
)
from overlapscope.reading import expand
from overlapscope.reading.cache_folder import default_folder
from overlapscope.render.progress import Progress
from overlapscope.trace.host import shown_line
from overlapscope.trace.model import Trace
from overlapscope.version import __version__

_MIN_LIMIT_S: Final = 120.0
_MAX_RECORDING_RATIO: Final = 5
"""Maximum time of a commit, as a multiple of the longest recording so far, unless the user states it."""
_OPTIONS: Final[dict[By, tuple[str, ...]]] = {"order": ("--plain-steps", "0", "--stacks"), "step-time": ()}


def folder_of(repository: BisectedRepository, good: BisectCandidate, *settings: object) -> Path:
    """Return the folder of a search; the same search has the same folder. Raises UsageError."""
    cache = default_folder()
    if cache is None:
        raise UsageError("this user has no home folder; name a folder in OVERLAPSCOPE_CACHE_DIR.")
    identity = repr((os.fspath(repository.data), os.fspath(repository.inside), good.id, __version__, *settings))
    folder = cache / "bisect" / f"{repository.top.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, *folder.parents):
        disk.refuse_planted(place)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from the folder. Raises UsageError if one is there."""
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("the same search is under way in another process; wait for it, or stop it.") from None
        yield


class RecordedCommits:
    """The outcomes of commits, each recorded in the worktree when it is asked for."""

    def __init__(
        self,
        repository: BisectedRepository,
        program: BisectedProgram,
        folder: Path,
        tree: Path,
        progress: Progress,
        by: By,
        options: Sequence[str],
        timeout_s: float | None,
        ends: tuple[BisectCandidate, BisectCandidate],
    ) -> None:
        """Read what an earlier search found out."""
        self.repository, self.program, self.folder, self.tree = repository, program, folder, tree
        self.by, self._options = by, (*_OPTIONS[by], *options)
        self._progress, self._timeout_s = progress, timeout_s
        self._variables: dict[str, str] | None = None
        self._contract: Contract | None = None
        self._ends = ends
        self.outcomes: dict[str, BisectOutcome] = {}
        with suppress(OSError, msgspec.DecodeError):
            saved = decode((folder / "outcomes.json").read_bytes(), dict[str, BisectOutcome])
            # The user may have mended what kept a commit from being judged, or raised its time limit.
            self.outcomes = {commit: outcome for commit, outcome in saved.items() if not outcome.problem}
        self._seconds = [each.seconds / max(1, len(each.steps_ns)) for each in self.outcomes.values()]

    def trace_of(self, commit: str) -> Path:
        """Return the file of a commit's recording."""
        return self.folder / f"{commit[:12]}.trace.json.gz"

    @property
    def comparison(self) -> tuple[str, ...]:
        """The command that compares two recordings."""
        return ("diff",) if self._contract is None or self._contract.host_ops is not None else ("contract", "diff")

    def first_bad(self, good: str, bad: str, judge: Judge) -> list[str]:
        """Return the first bad commit, or all that may be it since they are skipped."""
        return self.repository.first_bad(self.tree, good, bad, judge)

    def before(self, candidate: str, good: str) -> Sequence[str]:
        """Return the parents of a commit that come after GOOD."""
        return self.repository.parents(candidate, good)

    # -- By order -------------------------------------------------------------------------------------

    def begin(self, good: BisectCandidate) -> None:
        """Record GOOD, whose contract judges the others. Raises UsageError if it has none."""
        if not self.trace_of(good.id).is_file():
            self._progress.note(f"Recording GOOD, {_shown(good)}")
            try:
                self._record(good, self.trace_of(good.id))
            except Failed as failed:
                for line in failed.output.splitlines()[-LAST_LINES:]:
                    self._progress.say(line)
                raise UsageError(f"GOOD ({good.short}) can't be recorded: {failed.reason}") from None
        try:
            self._contract = contract_of(read_trace(self.trace_of(good.id), cache=False))
        except OverlapscopeError as error:
            self.trace_of(good.id).unlink()
            raise UsageError(f"GOOD ({good.short}) has no contract: {error}") from None

    def outcome_of_end(self, end: BisectCandidate, name: str) -> BisectOutcome:
        """Return the outcome of GOOD, recorded once more, or of BAD. Raises UsageError if it can't be judged."""
        if end.id not in self.outcomes:
            self._progress.note(f"Recording {name}, {_shown(end)}")
            outcome = self._judged(end, self.folder / "again.trace.json.gz" if name == "GOOD" else None)
            if outcome.problem:
                raise UsageError(f"{name} ({end.short}) can't be judged: {outcome.problem}")
            self._keep(end.id, outcome)
        return self.outcomes[end.id]

    def outcome_of(self, commit: str, left: int) -> BisectOutcome:
        """Return the outcome of a commit by order, after recording it if necessary."""
        if commit not in self.outcomes:
            candidate = self.repository.described(commit)
            self.announce(candidate, left)
            self._keep(commit, self._judged(candidate))
        return self.outcomes[commit]

    def repeats(self, commit: str, verdict: ByOrder) -> bool:
        """Return whether another recording of a commit gets the same verdict; if not, its outcome is a problem.

        Raises:
            UsageError: The commit is BAD.
        """
        bad = self._ends[1].id
        if self.outcomes[commit].confirmed_for == bad:
            return True
        candidate, before = self.repository.described(commit), verdict(self.outcomes[commit])
        self._progress.note(f"Recording {_shown(candidate)} again, to be sure")
        again = self._judged(candidate)
        if verdict(again)[0] == before[0]:
            self._keep(commit, replace(again, confirmed_for=bad))
            return True
        reason = f"two recordings of it disagree: {before[1]}; {verdict(again)[1]}."
        if any(commit == end.id for end in self._ends):
            raise UsageError(f"{candidate.short}: {reason}")
        self._keep(commit, BisectOutcome(problem=reason))
        return False

    def _judged(self, candidate: BisectCandidate, trace: Path | None = None) -> BisectOutcome:
        assert self._contract is not None
        return self._outcome(candidate, trace or self.trace_of(candidate.id), partial(judged_by_order, self._contract))

    # -- By time --------------------------------------------------------------------------------------

    def timed(self, candidate: BisectCandidate, runs: int, left: int = 0, name: str = "") -> BisectOutcome:
        """Return the step times of at least so many runs of a commit. Raises UsageError if an end can't be timed."""
        while len((known := self.outcomes.get(candidate.id, BisectOutcome())).steps_ns) < runs and not known.problem:
            self.announce(candidate, left, run=len(known.steps_ns) + 1)
            run = self._outcome(
                candidate, self.trace_of(candidate.id), lambda trace: BisectOutcome(steps_ns=(step_ns_of(trace),))
            )
            if run.problem and name:
                raise UsageError(f"{name} ({candidate.short}) can't be timed: {run.problem}")
            steps_ns = (*known.steps_ns, *run.steps_ns)
            self._keep(candidate.id, replace(run, steps_ns=steps_ns, seconds=known.seconds + run.seconds))
        return self.outcomes[candidate.id]

    # -- Recording ------------------------------------------------------------------------------------

    def _outcome(
        self, candidate: BisectCandidate, file: Path, judge: Callable[[Trace], BisectOutcome]
    ) -> BisectOutcome:
        """Record a commit into a file, and return its outcome."""
        began = time.monotonic()
        try:
            self._record(candidate, file)
            outcome = judge(read_trace(file, cache=False))
        except OverlapscopeError as error:
            outcome = BisectOutcome(problem=str(error))
        return replace(outcome, seconds=time.monotonic() - began)

    def announce(self, candidate: BisectCandidate, left: int, run: int = 1) -> None:
        """Show what is recorded now, and how long the search may take."""
        # By order, the last two verdicts must repeat.
        steps = steps_left(left) + (2 if left and self.by == "order" else 0)
        mean = fmean(self._seconds) if self._seconds else 0.0
        time_left = f", about {duration(1e9 * mean * steps)}" if mean else ""
        more = f" ({plural(left, 'commit')} may be it: {plural(steps, 'recording')}{time_left})" if left else ""
        again = f", run {run}" if run > 1 else ""
        self._progress.note(f"Recording {_shown(candidate)}{again}{more}")

    def _record(self, candidate: BisectCandidate, trace: Path) -> None:
        """Record a commit. Raises Failed."""
        began = time.monotonic()
        try:
            self.repository.check_out(self.tree, candidate.id)
            if self._variables is None:
                commits = [end.id for end in self._ends]
                self._variables = variables(self.program, self.repository, self.tree, commits)
        except UsageError as error:
            raise Failed(str(error)) from None
        limit_s = self._timeout_s or max(_MIN_LIMIT_S, _MAX_RECORDING_RATIO * max(self._seconds, default=0.0))
        if not self._seconds and self._timeout_s is None:
            limit_s = float("inf")
        try:
            record(self.program, self.tree / self.repository.inside, self._variables, trace, self._options, limit_s)
        except BaseException:
            # A program that fails may have been recorded in part.
            trace.unlink(missing_ok=True)
            raise
        self._seconds.append(time.monotonic() - began)

    def _keep(self, commit: str, outcome: BisectOutcome) -> None:
        self.outcomes[commit] = outcome
        disk.write(self.folder / "outcomes.json", [encode(self.outcomes)])

    def tidy(self, kept: Sequence[str]) -> None:
        """Remove all recordings but those of some commits, and of those that were found before."""
        found = [commit for commit, outcome in self.outcomes.items() if outcome.confirmed_for and outcome.lost]
        names = {self.trace_of(commit) for commit in (*kept, *found)}
        for path in self.folder.glob("*.trace.json.gz"):
            if path not in names:
                path.unlink(missing_ok=True)


def _shown(candidate: BisectCandidate) -> str:
    return f"{candidate.short} {clean(candidate.subject, 60)}".rstrip()


# -- Search ------------------------------------------------------------------------------------------


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
    wanted = _wanted(broken, unstable, bad.short, "--by step-time finds the commit")
    verdicts.tell(bad.id, *by_order(wanted)(broken))
    found = first_that_loses(session, (good.id, bad.id), wanted, verdicts.tell)
    return found, wanted


def _wanted(broken: BisectOutcome, unstable: BisectOutcome, bad: str, if_slower: str) -> tuple[Promise, ...]:
    """Return what BAD breaks and GOOD, recorded once more, does not.

    `if_slower` is what helps if BAD is slower all the same.

    Raises:
        UsageError: BAD breaks nothing more.
    """
    varies = same(broken.lost, (*unstable.lost, *unstable.unknown))
    wanted = tuple(each for each in broken.lost if each not in varies)
    if wanted:
        return wanted
    if varies:
        raise UsageError(f"GOOD itself, recorded twice, does not always keep this: {names(varies)}.")
    unsure = f" This is uncertain: {names(broken.unknown)}." if broken.unknown else ""
    raise UsageError(
        f"BAD ({bad}) keeps all that GOOD's contract promises, so nothing is lost by order.{unsure} If it is slower, "
        f"{if_slower}."
    )


def _by_time(session: RecordedCommits, ends: Ends, verdicts: _Verdicts) -> tuple[Found, tuple[Promise, ...]]:
    good, bad = ends
    runs = MIN_RUNS
    while True:
        sides = [session.timed(end, runs, name=name).steps_ns for end, name in zip(ends, ("GOOD", "BAD"), strict=True)]
        border = Border(sides[0], sides[1])
        if border.differs or runs >= MAX_RUNS:
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
    wanted = _wanted(broken, BisectOutcome(), paths[-1], "`overlapscope diff` of both says why")
    verdicts = _Verdicts(progress, BisectCandidate)
    verdicts.tell(paths[-1], *by_order(wanted)(broken))
    found = first_that_loses(TraceSeries(paths, outcome_of), (paths[0], paths[-1]), wanted, verdicts.tell)
    result = verdicts.result("order", ends, found, wanted, outcomes.get(found.candidates[0], BisectOutcome()))
    comparison = ("diff",) if contract.host_ops is not None else ("contract", "diff")
    shows = shlex.join(["overlapscope", *comparison, paths[0], found.candidates[-1]])
    return replace(result, commands=(shows,))
