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
    "attach": "watch a running process that was started without overlapscope (Python 3.14)",
    "analyze": "report whether copies overlap with compute, and if not, why",
    "diff": "show what changed between two traces, and whether it is more than noise",
    "whatif": "predict the step time with pinned memory, side streams, a CUDA graph...",
    "try": "run a program with each change that may help, and report which pay",
    "ranks": "compare the ranks of a job, and name the rank that delays the others",
    "query": "query traces and analysis results with SQL",
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
"""Names and help texts of all subcommands."""

_READING = ("analyze", "diff", "whatif", "check", "baseline", "query", "history", "ranks")
"""Commands that compute on traces and run no program of the user."""

DONE, WRONG_INPUT, INTERRUPTED = 0, 2, 130
DEFECT = 70
"""EX_SOFTWARE of sysexits.h, which no command uses as a result."""
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
    """Ctrl-C ended the program that a command ran, so it must also end this process."""


class Subcommand(Protocol):
    """The methods of a subcommand's class."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code. Raises OverlapscopeError with a sentence for the user."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        code = _run(arguments)
        streams.write_output()
    except OverlapscopeError as error:
        return _refused(str(error))
    except BrokenPipeError:
        # The reader of the output has closed it, for example `head`.
        return BROKEN_PIPE
    except OSError as error:
        # Errors of the system without a better message elsewhere, such as a full disk or a removed directory.
        where = f"{error.filename}: " if error.filename is not None else ""
        return _refused(f"{where}{error.strerror or error}.")
    except ProgramInterrupted:
        # Python ends by SIGINT, as the parent process expects. The traceback has already been printed.
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
    """Print an internal error with its traceback, and ask the user to report it."""
    import traceback

    with contextlib.suppress(RecursionError):
        for line in "".join(traceback.format_exception(error)).splitlines():
            streams.tell(line)
    description = f"{type(error).__name__}: {error}".strip(".: ")
    streams.tell(
        f"overlapscope: internal error: {description}. Please report this bug of overlapscope {__version__}, with the "
        "lines above, at https://github.com/overlapscope/overlapscope/issues."
    )


def console() -> int:
    """Run `main` in a process that ends afterwards."""
    streams.hold_places()
    if sys.argv[1:2] and sys.argv[1] in _READING:
        # OpenBLAS's threads wait busily for work at start, which costs a tenth of a second of CPU that reading needs.
        # These commands don't multiply matrices.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = main()
    streams.settle()
    # Freezing skips the last garbage collection, which only costs time at exit. DuckDB needs it, since it reports
    # leaked objects on stderr.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _refused(sentence: str) -> int:
    streams.tell(f"overlapscope: error: {sentence}")
    return WRONG_INPUT


def _run(arguments: list[str]) -> int:
    if any("\0" in argument for argument in arguments):
        raise UsageError("an argument contains a NUL character; remove it.")
    name = next(iter(arguments), "")
    if name and not name.startswith("-") and name not in COMMANDS:
        if os.path.isfile(name) or name.endswith((".py", ".ipynb")):
            raise UsageError(
                f"there is no command {name!r}; to run it, use `{shlex.join(['overlapscope', 'run', *arguments])}`."
            )
        raise UsageError(
            f"there is no command {name!r}{did_you_mean(name, COMMANDS)}; commands: {', '.join(COMMANDS)}."
        )
    parser, subparser, command = _parser(name)
    try:
        parsed, unknown = parser.parse_known_args(arguments)
        if unknown:
            subparser.error(f"unrecognized arguments: {' '.join(unknown)}{_suggestion(subparser, unknown)}")
    except SystemExit as stop:
        return int(stop.code or 0)
    return command.run(parsed) if command is not None else DONE


def _suggestion(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """Return a suggestion of the option that the user may have meant."""
    option = next((argument.partition("=")[0] for argument in unknown if argument.startswith("--")), "")
    options = [spelling for action in parser._actions for spelling in action.option_strings]
    return did_you_mean(option, options) if option else ""


def subcommand(name: str) -> Subcommand:
    """Import the module of one of `COMMANDS`, and return an instance of its class."""
    module = f"{name}_" if keyword.iskeyword(name) else name
    command: Subcommand = load(f"{__name__}.{module}:{name.capitalize()}Command")()
    return command


def _parser(chosen: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, Subcommand | None]:
    """Return the parser, the parser of the chosen command (without one, the same), and the command."""
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
    # Parsers of other commands are only needed to list them. Without `prog`, argparse would ask its formatter for it,
    # which would import all of rich.
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="overlapscope")
    command: Subcommand | None = None
    subparser = parser
    for name, summary in COMMANDS.items():
        if name != chosen:
            if chosen not in COMMANDS:
                parsers.add_parser(name, help=summary)
            continue
        command = loaded = subcommand(name)
        subparser = parsers.add_parser(
            name,
            help=summary,
            description=inspect.cleandoc(type(loaded).__doc__ or ""),
            formatter_class=formatter,
            allow_abbrev=False,
        )
        loaded.prepare_parser(subparser)
    return parser, subparser, command


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
