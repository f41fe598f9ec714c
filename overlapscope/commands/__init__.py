"""The command line: one module per subcommand, and `main`, where exceptions become exit codes.

The module of the subcommand `diff` has a class `DiffCommand` with the methods of `Subcommand`; its docstring is the
help text. Plugins bring further commands. Only the module of the subcommand in use is imported, so `--help` stays fast.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from overlapscope.base import output as streams
from overlapscope.base.registry import load
from overlapscope.base.words import capital, did_you_mean
from overlapscope.commands._options import less_common, shorten
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugin import built_in, plugins
from overlapscope.version import __version__

_GROUPS = {
    "Look at a recording": {
        "analyze": "report what keeps the GPU from computing, and what a fix saves",
        "dashboard": "open traces in a browser, with a timeline",
        "ranks": "compare the ranks of a job: which one delays the others?",
        "explain": "explain a word in a report, or list all words and rules",
    },
    "Record": {
        "run": "run a script, record some of its steps, and report",
    },
    "Fix": {
        "whatif": "predict the step time with pinned memory, a CUDA graph, ...",
        "diff": "compare two traces: what changed, and is it more than noise?",
    },
    "Keep it fixed": {
        "contract": "write down what may overlap, for `check` to hold",
        "check": "check traces against a contract, budgets or a baseline",
    },
    "More": {
        "samples": "print the directory of the sample traces",
        "doctor": "show what works in this installation, and what is missing",
        "completion": "print a completion script for bash, zsh or fish",
    },
    "": {
        "cache": "show or clear the cache of large traces",
        "schema": "print the JSON schema of a report, or of another output",
    },
}
"""Names and help texts of the core's commands, in groups. `overlapscope --help` lists all but the last."""
_OF_CORE = {name: summary for group in _GROUPS.values() for name, summary in group.items()}

_READING = ("analyze", "diff", "whatif", "check", "contract", "ranks")
"""The core's commands that compute on traces and run no program of the user."""
_COLLECTED_AFTER = 100_000
"""Number of new objects after which these commands and the dashboard look for garbage; Python's default is 700."""

DONE, WRONG_INPUT, INTERRUPTED = 0, 2, 130
DEFECT = 70
"""EX_SOFTWARE of sysexits.h, which no command uses as a result."""
BROKEN_PIPE = 128 + 13

_DESCRIPTION = """Does data move while the GPU computes? If not, why not, and what would a fix
save?

overlapscope reads traces of torch.profiler, torch_npu (trace_view.json) and
jax.profiler, and reports of Nsight Systems (nsys export --type sqlite)."""

_FIRST = """What keeps your GPU from computing, why, and what would a fix save?

  overlapscope run train.py              record a script, and report
  overlapscope analyze trace.json.gz     report on a trace that you have
  overlapscope dashboard trace.json.gz   look at it in a browser
  overlapscope check trace.json.gz       fail in CI if copies don't overlap

No trace yet? `overlapscope samples` prints a directory of traces to try.
All commands: `overlapscope --help`. Options of one: `overlapscope run --help`.
Documentation: https://overlapscope.github.io/overlapscope/"""
"""Printed without arguments."""

EXIT_CODES = """Exit codes: 0 success; 1 a budget of `check` failed, `whatif` made no
prediction, or `bisect` found several commits; 2 the input, the configuration or
the usage is wrong, or a file cannot be read or written; 3 `check` could not
judge a budget; 70 internal error; 130 interrupted."""

_EPILOG = f"""{EXIT_CODES}
`overlapscope COMMAND --help` explains a command."""


class ProgramInterrupted(BaseException):
    """Ctrl-C ended the program that a command ran, so it must also end this process."""


def groups() -> dict[str, dict[str, str]]:
    """Return names and help texts of all subcommands, in groups. `overlapscope --help` lists all but the group ""."""
    groups = {title: dict(group) for title, group in _GROUPS.items()}
    for plugin in plugins():
        for each in plugin.commands:
            groups.setdefault(each.group, {})[each.name] = each.summary
    return groups


def commands() -> dict[str, str]:
    """Return names and help texts of all subcommands."""
    return {name: summary for group in groups().values() for name, summary in group.items()}


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
    """Run `main` as the last thing in a process: exit fast, and with the right code even if stdout is closed."""
    streams.occupy_closed_streams()
    name = sys.argv[1] if sys.argv[1:] else ""
    reads = _reads(name)
    if reads:
        # OpenBLAS's threads wait busily for work at start, which costs a tenth of a second of CPU that reading needs.
        # These commands don't multiply matrices. Programs that the dashboard starts may.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if reads or name == "dashboard":
        # Nearly all objects live until the end, so that frequent collections find nothing.
        gc.set_threshold(_COLLECTED_AFTER)
    code = main()
    streams.discard_unwritable_output()
    if reads and _is_started_alone():
        # Freeing every object takes a twentieth of a small report's time, and the system frees memory at once.
        streams.leave(code)
    # Freezing skips the last garbage collection, which only costs time at exit. DuckDB needs it, since it reports
    # leaked objects on stderr.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _is_started_alone() -> bool:
    """Return whether this process was started as `overlapscope`, and not by a profiler that goes on after it."""
    script, module = (*sys.orig_argv[1:3], "", "")[:2]
    return os.path.splitext(os.path.basename(script))[0] == "overlapscope" or (script, module) == ("-m", "overlapscope")


def _reads(name: str) -> bool:
    if name in _OF_CORE:
        return name in _READING
    return any(each.reads for plugin in built_in() for each in plugin.commands if each.name == name)


def _refused(sentence: str) -> int:
    streams.tell(f"overlapscope: error: {sentence}")
    return WRONG_INPUT


def _run(arguments: list[str]) -> int:
    if any("\0" in argument for argument in arguments):
        raise UsageError("an argument contains a NUL character; remove it.")
    if not arguments:
        for line in _FIRST.splitlines():
            streams.tell(line)
        return WRONG_INPUT
    name, *rest = arguments
    try:
        if name.startswith("-"):
            front_parser(everything="--help-all" in arguments).parse_args(arguments)
        if place_of(name) is None:
            raise UsageError(_no_such_command(name, arguments))
        command = subcommand(name)
        parser = _parser(name, command)
        if "--help-all" not in rest:
            shorten(parser)
        parsed, unknown = parser.parse_known_args(rest)
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_suggestion(parser, unknown)}")
    except SystemExit as stop:
        return int(stop.code or 0)
    return command.run(parsed)


def _no_such_command(name: str, arguments: Sequence[str]) -> str:
    if os.path.isfile(name) or name.endswith(".py"):
        return f"there is no command {name!r}; to run it, use `{shlex.join(['overlapscope', 'run', *arguments])}`."
    return f"there is no command {name!r}{did_you_mean(name, commands())}; commands: {', '.join(commands())}."


def _suggestion(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """Return a suggestion of the option that the user may have meant."""
    option = next((argument.partition("=")[0] for argument in unknown if argument.startswith("--")), "")
    options = [spelling for action in parser._actions for spelling in action.option_strings]
    return did_you_mean(option, options) if option else ""


def subcommand(name: str) -> Subcommand:
    """Import the module of one of `commands`, and return an instance of its class. Raises KeyError for other names."""
    place = place_of(name)
    if place is None:
        raise KeyError(name)
    command: Subcommand = load(place)()
    return command


def place_of(name: str) -> str | None:
    """Return the place of a command's class; None if there is no such command."""
    if name in _OF_CORE:
        return f"{__name__}.{name}:{name.capitalize()}Command"
    return next((each.place for plugin in plugins() for each in plugin.commands if each.name == name), None)


def front_parser(*, everything: bool = False) -> argparse.ArgumentParser:
    """Return the parser of options before any command, whose help lists the commands.

    Args:
        everything: Whether the help lists rarely needed commands, too.
    """
    parser = argparse.ArgumentParser(
        prog="overlapscope",
        usage="overlapscope COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"overlapscope {__version__}")
    for title, of_group in groups().items():
        group = parser.add_argument_group(title) if title else less_common(parser, "list all commands")
        for name, summary in of_group.items():
            group.add_argument(name, nargs="?", metavar=name, help=summary)
    if not everything:
        shorten(parser)
    return parser


def _parser(name: str, command: Subcommand) -> argparse.ArgumentParser:
    """Return the parser of a command's arguments."""
    import inspect

    parser = argparse.ArgumentParser(
        prog=f"overlapscope {name}",
        description=inspect.cleandoc(type(command).__doc__ or ""),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    command.prepare_parser(parser)
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Layout of help as of Python 3.13, with capital letters in titles."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, width=streams.columns() - 2, **settings)

    def start_section(self, heading: str | None) -> None:
        super().start_section(capital(heading or ""))

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        # Python before 3.13 repeats the argument after each spelling of an option.
        argument = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {argument}"
