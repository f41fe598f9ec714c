"""The command line: one module per subcommand, and `main`, where exceptions become exit codes.

The module of the subcommand `diff` has a class `DiffCommand` with the methods of `Subcommand`; its docstring is the
help text. Only the module of the subcommand in use is imported, so `--help` stays fast.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import keyword
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from overlapscope.base import output as streams
from overlapscope.base.registry import load
from overlapscope.base.words import did_you_mean
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "run": "run a script, record a trace, and report whether copies overlap with compute",
    "ps": "list the running processes that can be recorded",
    "record": "record a running process for a few steps, and report",
    "attach": "have a running process watched that was started without (Python 3.14)",
    "analyze": "report whether copies overlap with compute, and if not, why",
    "diff": "show what changed between two traces, and whether it is more than noise",
    "whatif": "predict the step time with pinned memory, side streams, a CUDA graph...",
    "try": "run a program with each change that may help, and say which pay",
    "ranks": "compare the ranks of a job, and name the rank that delays the others",
    "query": "ask SQL of traces and of what was found in them",
    "check": "check traces against budgets, for CI: fail if overlap was lost",
    "baseline": "write or show a baseline for relative budgets",
    "history": "keep reports over time, with their commits, and list them",
    "dashboard": "open traces in a browser, with a timeline",
    "cache": "show or clear the cache of large traces",
    "rules": "list the rules behind the findings",
    "explain": "explain a word in a report, or list all words",
    "schema": "print the JSON schema of a report, or of what another command writes",
    "hta": "run an analysis of HolisticTraceAnalysis (HTA) on traces",
    "skill": "print a skill file that tells an assistant how to use overlapscope",
    "mcp": "answer assistants that ask about traces, over MCP",
    "samples": "print the directory of the sample traces",
    "doctor": "show what works in this installation, and what is missing",
    "completion": "print a completion script for bash, zsh or fish",
    "scenarios": "run experiments with known outcomes, and compare",
}
"""One line for each subcommand: its name, and its help."""

_READING = ("analyze", "diff", "whatif", "check", "baseline", "query", "history", "ranks")
"""Those that compute on traces, and run no program of the user's, here or in a process of its own."""

DONE, WRONG_INPUT, INTERRUPTED = 0, 2, 130
DEFECT = 70
"""EX_SOFTWARE of sysexits.h: none of the codes by which a command answers."""
BROKEN_PIPE = 128 + 13

_DESCRIPTION = """Does data move while the GPU computes? If not, why not, and what would a fix save?

overlapscope reads traces of torch.profiler and jax.profiler, and reports of
Nsight Systems (nsys export --type sqlite)."""

EXIT_CODES = """Exit codes: 0 success; 1 a budget of `check` failed, or `whatif` made no prediction; 2 the
input, the configuration or the usage is wrong, or a file cannot be read or written; 3 `check`
could not judge a budget; 70 internal error; 130 interrupted."""

_EPILOG = f"""{EXIT_CODES}
Run `overlapscope COMMAND --help` for help on a command."""


class ProgramInterrupted(BaseException):
    """Ctrl-C ended the program that was run, so it has to end this process as well."""


class Subcommand(Protocol):
    """The methods of a subcommand's class."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit code. Raises OverlapscopeError with a sentence for the user."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        code = _run(arguments)
        streams.write_output()
    except OverlapscopeError as error:
        return _refused(str(error))
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        return BROKEN_PIPE
    except OSError as error:
        # What the system refuses where nothing more can be said of it: a full disk, a directory that is gone.
        where = f"{error.filename}: " if error.filename is not None else ""
        return _refused(f"{where}{error.strerror or error}.")
    except ProgramInterrupted:
        # Left to Python, which dies by SIGINT then, as whoever started it expects. The traceback has been shown.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        return _refused("there is not enough memory; use a machine with more, or a smaller trace.")
    except Exception as error:
        tell_defect(error)
        return DEFECT
    return code


def tell_defect(error: Exception) -> None:
    """Say that what happened is nobody's fault but overlapscope's, and what to do with it."""
    import traceback

    with contextlib.suppress(RecursionError):
        for line in "".join(traceback.format_exception(error)).splitlines():
            streams.tell(line)
    what = f"{type(error).__name__}: {error}".strip(".: ")
    streams.tell(
        f"overlapscope: internal error: {what}. Please report this bug of overlapscope {__version__}, with the lines "
        "above, at https://github.com/overlapscope/overlapscope/issues."
    )


def console() -> int:
    """`main` for a process that ends with it."""
    streams.hold_places()
    if sys.argv[1:2] and sys.argv[1] in _READING:
        # The threads that numpy's OpenBLAS starts keep the other cores busy looking for work, which reading needs (a
        # tenth of a second of CPU on two cores), and nothing here multiplies matrices.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = main()
    streams.settle()
    # The interpreter's last collection would walk over all that the process takes along anyway. DuckDB complains on
    # stderr of what is left without it.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _refused(sentence: str) -> int:
    streams.tell(f"overlapscope: error: {sentence}")
    return WRONG_INPUT


def _run(arguments: list[str]) -> int:
    if any("\0" in argument for argument in arguments):
        raise UsageError("an argument contains a NUL character; remove it.")
    asked = next(iter(arguments), "")
    if asked and not asked.startswith("-") and asked not in COMMANDS:
        if os.path.isfile(asked) or asked.endswith((".py", ".ipynb")):
            raise UsageError(
                f"there is no command {asked!r}; to run it, use `{shlex.join(['overlapscope', 'run', *arguments])}`."
            )
        raise UsageError(
            f"there is no command {asked!r}{did_you_mean(asked, COMMANDS)}; commands: {', '.join(COMMANDS)}."
        )
    parser, own, command = _parser(asked)
    try:
        parsed, unknown = parser.parse_known_args(arguments)
        if unknown:
            own.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(own, unknown)}")
    except SystemExit as stop:
        return int(stop.code or 0)
    return command.run(parsed) if command is not None else DONE


def _meant(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """A hint at the option that was meant."""
    option = next((argument.partition("=")[0] for argument in unknown if argument.startswith("--")), "")
    known = [spelled for action in parser._actions for spelled in action.option_strings]
    return did_you_mean(option, known) if option else ""


def subcommand(name: str) -> Subcommand:
    """Import the module of one of `COMMANDS`, and return an instance of its class."""
    module = f"{name}_" if keyword.iskeyword(name) else name
    command: Subcommand = load(f"{__name__}.{module}:{name.capitalize()}Command")()
    return command


def _parser(asked: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, Subcommand | None]:
    """The parser, that of the one command that is asked for, else the same again, and the command."""
    import inspect

    formatter = _formatter()
    parser = argparse.ArgumentParser(
        prog="overlapscope",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"overlapscope {__version__}")
    # A parser for each of the others is only needed to list them. `prog` keeps argparse from asking its formatter for
    # one, which would import all of rich.
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="overlapscope")
    command: Subcommand | None = None
    own = parser
    for name, summary in COMMANDS.items():
        if name != asked:
            if asked not in COMMANDS:
                parsers.add_parser(name, help=summary)
            continue
        command = loaded = subcommand(name)
        own = parsers.add_parser(
            name,
            help=summary,
            description=inspect.cleandoc(type(loaded).__doc__ or ""),
            formatter_class=formatter,
            allow_abbrev=False,
        )
        loaded.prepare_parser(own)
    return parser, own, command


def _formatter() -> type[argparse.HelpFormatter]:
    import shutil

    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        # Help texts contain brackets that are not markup.
        text_markup = False
        help_markup = False

        def __init__(self, prog: str, **settings: Any) -> None:
            super().__init__(prog, width=streams.bounded(shutil.get_terminal_size().columns) - 2, **settings)

        @property  # type: ignore[misc]
        def console(self) -> Console:
            if self._console is None:
                from rich.console import Console

                self._console = Console(_environ=streams.environment())
            return self._console

    return Formatter
