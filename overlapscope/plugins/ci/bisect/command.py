"""`overlapscope bisect`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import parse_span
from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output, add_verbose, less_common
from overlapscope.commands._output import check_output, present
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.plugins.ci.bisect.result import Bisection

ONLY_RANGE = 1
"""Exit code if skipped candidates leave several that may be the first bad one."""
_EXAMPLE = "`overlapscope bisect GOOD BAD -- python train.py`"


class BisectCommand:
    """Find the commit that lost overlap: git bisect, judged by the order of the
    program's calls, so that a busy or slower machine changes nothing.

    GOOD and BAD are commits, GOOD the earlier one. The program is recorded at
    some commits between them, each checked out in a worktree of its own; your
    files, index and branches stay as they are. A commit is bad if it breaks
    what BAD breaks of GOOD's contract (see `overlapscope contract`). Commits
    that don't run, record no steps or can't be judged are skipped.

    A commit has only the files that git tracks. --setup adds other files that
    the program needs:
    overlapscope bisect v1.2 main --setup "ln -s $PWD/data ." -- python train.py

    Ctrl-C ends it, and the same command continues. With traces instead of
    commits, it finds the first trace with the losses of the last:
    overlapscope bisect traces/*.json.gz

    The exit code is 0 if one commit or trace was found; 1 if several may be
    it, because they can't be judged; 2 if GOOD or BAD can't be judged, or
    nothing is lost; 130 after Ctrl-C.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = (
            "overlapscope bisect [options] GOOD BAD -- python SCRIPT [ARGUMENTS...]\n"
            "       overlapscope bisect [options] TRACE TRACE..."
        )
        self._usage = parser.usage
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="GOOD BAD",
            help="two commits, and after -- the program; or traces, oldest first",
        )
        _add_options(parser, less_common(parser))

    def run(self, args: argparse.Namespace) -> int:
        # Options may stand before, between and after the commits, and those after `--` are the program's.
        words: list[str] = args.words
        del args.words
        end = words.index("--") if "--" in words else len(words)
        again = argparse.ArgumentParser("overlapscope bisect", self._usage, allow_abbrev=False, add_help=False)
        again.add_argument("words", nargs="*")
        _add_options(again, again)
        try:
            again.parse_intermixed_args(words[:end], args)
        except SystemExit as stop:
            return int(stop.code or 0)
        check_output(args.output, force=args.force)
        from overlapscope.plugins.ci.bisect.document import document

        found = _of_commits(args, words[end + 1 :]) if end < len(words) else _of_traces(args)
        present(found, lambda: document(found), args, verbose=args.verbose)
        return DONE if found.first is not None else ONLY_RANGE


def _add_options(parser: argparse.ArgumentParser, rare: argparse._ActionsContainer) -> None:
    parser.add_argument("--setup", default="", metavar="COMMAND", help="shell command to run before each recording")
    parser.add_argument(
        "--by",
        choices=("order", "step-time"),
        default="order",
        help="what decides: the order of calls, or the step's length, which takes several runs (default: order)",
    )
    parser.add_argument(
        "--timeout",
        type=_span,
        metavar="TIME",
        help="longest time for a commit, such as 5min (default: 5 times what others took, at least 2 minutes)",
    )
    rare.add_argument(
        "--run-options",
        default="",
        metavar="OPTIONS",
        help="further options of `overlapscope run`, in one argument, such as '--steps-by loader --active 3'",
    )
    rare.add_argument("--anew", action="store_true", help="record all again, also what an earlier search recorded")
    add_format(parser)
    add_output(parser)
    add_verbose(rare, "also list the commits that were judged")


def _span(text: str) -> float:
    try:
        return parse_span(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _of_traces(args: argparse.Namespace) -> Bisection:
    from overlapscope.plugins.ci.bisect.find import bisect_traces
    from overlapscope.render.progress import Progress

    if args.by != "order":
        raise UsageError("stored traces are judged by order; leave out --by.")
    if not args.words or not all(map(os.path.exists, args.words)):
        raise UsageError(f"name traces that exist, or two commits and a program: {_EXAMPLE}.")
    with Progress() as progress:
        return bisect_traces(args.words, progress)


def _of_commits(args: argparse.Namespace, command: Sequence[str]) -> Bisection:
    if len(args.words) != 2 or not command:
        raise UsageError(f"name two commits and a program: {_EXAMPLE}.")
    good, bad = args.words
    import shlex

    from overlapscope.plugins.ci.bisect.commits import BisectedRepository
    from overlapscope.plugins.ci.bisect.find import RecordedCommits, bisect_commits, folder_of, locked
    from overlapscope.plugins.ci.bisect.program import program, shown
    from overlapscope.render.progress import Progress

    repository = BisectedRepository(Path.cwd())
    ends = repository.commit(good), repository.commit(bad)
    repository.check_order(*ends)
    if repository.is_dirty():
        tell("overlapscope: changes in this directory that are not committed are not part of any commit here.")
    try:
        options = shlex.split(args.run_options)
    except ValueError as error:
        raise UsageError(f"--run-options: {error}.") from None
    runs = program(command, args.setup, repository)
    folder = folder_of(repository, ends[0], args.by, runs, options)
    with ExitStack() as stack:
        # The program runs in a session of its own, and would go on after us.
        for ending in (signal.SIGTERM, signal.SIGHUP):
            # `nohup` keeps the search going without its terminal.
            if signal.getsignal(ending) is signal.SIG_IGN:
                continue
            former = signal.signal(ending, lambda number, _: sys.exit(128 + number))
            stack.callback(signal.signal, ending, former)
        stack.enter_context(locked(folder))
        if args.anew:
            for path in folder.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        tree = stack.enter_context(repository.worktree(folder / "tree", ends[1].id))
        with Progress() as progress:
            session = RecordedCommits(repository, runs, folder, tree, progress, args.by, options, args.timeout, ends)
            try:
                return bisect_commits(session, ends, progress, shown(runs))
            except KeyboardInterrupt:
                progress.say("Interrupted; the same command continues.")
                raise
