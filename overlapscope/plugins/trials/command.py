"""`overlapscope try`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import stat
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import clean, did_you_mean, listed
from overlapscope.commands import DONE, INTERRUPTED
from overlapscope.commands._options import add_format, add_output, add_verbose, less_common, whole_number
from overlapscope.commands._output import check_output, make_directory, present
from overlapscope.commands._run_options import add_program, check_not_python, launcher_of
from overlapscope.errors import UsageError
from overlapscope.plugins.trials.changes import CHANGES

if TYPE_CHECKING:
    from overlapscope.plugins.trials.conduct import ProgramFailed
    from overlapscope.plugins.trials.processes import CommandLine

_LAST_LINES = 40
_MIN_STEPS, _MAX_STEPS = 10, 100_000


class TryCommand:
    """Run a program as it is and with each change that may make its steps
    shorter, and report which changes pay, how much, and how to edit them in.

    The changes are made in the running program; its files are not touched. The
    program is run many times, each time in a new process, until the changes'
    effects are clear or --minutes are over. Steps are timed without a profiler.
    All runs start from the same random seed, and their results are compared: a
    change that makes them different is never recommended.

    The program runs in the current directory, and every run writes its files
    there again; --scratch gives each run an empty directory instead. Ctrl-C
    ends it and shows the results so far.

    The exit code is 0, whether changes pay or not; the program's own, if it
    fails without any change; 2 if it makes too few steps; 130 after Ctrl-C.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_program(parser, "try")
        parser.add_argument(
            "--minutes", type=_minutes, default=5.0, metavar="N", help="how long all runs may take (default: 5)"
        )
        rare = less_common(parser)
        rare.add_argument(
            "--steps",
            type=whole_number(f"a number of steps from {_MIN_STEPS} on", _MIN_STEPS, _MAX_STEPS),
            metavar="N",
            help="steps to time in each run (default: for about 3 seconds, 20 to 300)",
        )
        parser.add_argument(
            "--only", type=_changes, default=(), metavar="CHANGE,...", help=f"try only these changes: {listed(CHANGES)}"
        )
        parser.add_argument("--scratch", action="store_true", help="give each run an empty working directory")
        rare.add_argument(
            "--recordings",
            type=Path,
            metavar="DIR",
            help="keep the recordings before and after, and what each run printed, in DIR (default: none is kept)",
        )
        add_format(parser)
        add_output(parser)
        add_verbose(rare, "also show the values of a change that were not chosen")

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        check_not_python(args)
        program = _program(args)
        from overlapscope.plugins.trials.conduct import ProgramFailed, TrialOptions, conduct
        from overlapscope.plugins.trials.document import document
        from overlapscope.recorder.imports import require_torch
        from overlapscope.render.progress import Progress

        require_torch()
        options = TrialOptions(args.minutes, args.steps, args.only, keep=args.recordings is not None)
        with ExitStack() as stack:
            # The program runs in a session of its own, and would continue after us.
            former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            stack.callback(signal.signal, signal.SIGTERM, former)
            directory = _directory(args.recordings, stack)
            _announce(args, program.text)
            try:
                with Progress() as progress:
                    trial, ending = conduct(program, options, directory, progress)
            except ProgramFailed as failed:
                return _tell_failure(failed)
            present(trial, lambda: document(trial), args, verbose=args.verbose)
            return INTERRUPTED if ending == "interrupted" else DONE


def _announce(args: argparse.Namespace, program: str) -> None:
    where = (
        "Each run has an empty directory"
        if args.scratch
        else "What it writes in this directory, it writes each time; --scratch gives each run an empty one"
    )
    tell(
        f"Running {clean(program, 200)} again and again for up to {args.minutes:g} min. {where}. Ctrl-C shows what is "
        "known by then."
    )


def _tell_failure(failed: ProgramFailed) -> int:
    """Report a failure of the unchanged program; return its exit code, or 1 if it has none."""
    ended = failed.ended
    for line in ended.output.splitlines()[-_LAST_LINES:]:
        tell(line)
    if failed.runs_alone:
        tell(
            "overlapscope: the program runs by itself, but fails under `overlapscope try`, so no change was tried. "
            f"{clean(ended.how, 300)} This is an error in overlapscope. Please report it, with the lines above."
        )
        return 1
    tell(f"overlapscope: the program fails as it is, so no change was tried. {clean(ended.how, 300)}")
    if ended.exit_code is None:
        tell("overlapscope: if it needs more time, pass a larger --minutes.")
        return 1
    return 128 - ended.exit_code if ended.exit_code < 0 else ended.exit_code


def _directory(recordings: Path | None, stack: ExitStack) -> Path:
    if recordings is None:
        return Path(stack.enter_context(TemporaryDirectory(prefix="overlapscope-try-")))
    if recordings.is_dir() and any(recordings.iterdir()):
        raise UsageError(f"{recordings}: is not empty; name a new directory for --recordings.")
    make_directory(recordings)
    return recordings.absolute()


# -- The program ----------------------------------------------------------------------------------


def _program(args: argparse.Namespace) -> CommandLine:
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = (args.script,)
    if args.module or args.code:
        options = ("-m" if args.module else "-c", args.script)
    elif launcher_of(args) is not None:
        path = shutil.which(args.script)
        if path is None:
            raise UsageError(f"{args.script}: is not installed, or not on PATH.")
        launcher = (path,)
    elif args.script != "-":
        if not Path(args.script).exists():
            raise UsageError(f"{args.script}: there is no such script.")
        # Each run may have a directory of its own.
        options = (str(Path(args.script).absolute()),) if args.scratch else options
    from overlapscope.plugins.trials.processes import CommandLine

    words = [*("python" if not launcher else args.script,), *(() if launcher else options), *args.arguments]
    return CommandLine(
        options=options,
        arguments=tuple(args.arguments),
        launcher=launcher,
        records=launcher_of(args) is None,
        text=shlex.join(words),
        root=Path.cwd() if args.module or args.code or launcher else Path(args.script).absolute().parent,
        stdin=_stdin(),
        scratch=args.scratch,
    )


def _stdin() -> bytes:
    """Return the input for each run of the program; a terminal can't be read again."""
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        return b""
    try:
        if stat.S_ISFIFO(Path("/dev/stdin").stat().st_mode):
            tell("Reading stdin to its end, because each run reads it anew.")
        return stream.buffer.read()
    except OSError:
        return b""


# -- Options --------------------------------------------------------------------------------------


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes; write it like 5 or 0.5")
    return minutes


def _changes(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in CHANGES:
            raise argparse.ArgumentTypeError(
                f"there is no change {name!r}{did_you_mean(name, CHANGES)}; changes: {listed(CHANGES)}"
            )
    return names
