"""The command line: one module per subcommand, and `main`, where exceptions become exit codes.

A subcommand's module has a class `Command` with the methods of `Subcommand`; its docstring is the help text.
It is imported only when it is asked for, so `--help` costs nothing that a subcommand needs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from overlapscope import __version__
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.words import clean, did_you_mean

COMMANDS = {
    "run": "run a script, record it, and say whether data moves while the GPU computes",
    "analyze": "say whether data moves while the GPU computes, and if not why",
    "diff": "say what changed between two recordings, and whether it is more than noise",
    "whatif": "say what a step would take with copies pinned, on side streams, in a graph...",
    "ranks": "say how the ranks of a job differ, and who makes whom wait",
    "check": "hold traces to budgets, for CI: fail where overlap was lost",
    "baseline": "write or show what relative budgets compare with",
    "dashboard": "show traces in a browser, with a timeline",
    "cache": "say what is kept of large traces read before, or remove it",
    "rules": "list the rules that findings come from",
    "explain": "explain one rule, with an example",
    "schema": "print the JSON schema of a report, diff, whatif, check, baseline or ranks",
    "hta": "run an analysis of HolisticTraceAnalysis on traces",
    "samples": "print where the sample traces are",
    "scenarios": "run experiments whose outcome is known, and compare",
}
"""One line for each subcommand: the name of its module in this package, and its help."""

DONE, WRONG_INPUT, INTERRUPTED = 0, 2, 130
BROKEN_PIPE = 128 + 13

_DESCRIPTION = """Does data move while the GPU computes? If not, why, and what would fixing it bring?

overlapscope reads traces of torch.profiler (export_chrome_trace)."""

_EPILOG = """Exit codes: 0 done, 1 a budget of `check` failed or `whatif` can predict nothing, 2 the
input, the configuration or the usage is wrong, 3 `check` could not judge, 130 interrupted.
`overlapscope COMMAND --help` explains a command."""


class ProgramInterrupted(BaseException):
    """Ctrl-C ended the program that was run, so it has to end this process as well."""


class Subcommand(Protocol):
    """What a subcommand's `Command` must have."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit code. Raises OverlapscopeError with a sentence for the user."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OverlapscopeError as error:
        _complain(str(error))
        return WRONG_INPUT
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing must be flushed into the closed pipe at exit.
        _silence_stdout()
        return BROKEN_PIPE
    except ProgramInterrupted:
        # Left to Python, which dies by SIGINT then, as whoever started it expects. The traceback has been shown.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def console() -> int:
    """`main` for a process that ends with it."""
    code = main()
    # The interpreter's last collection would walk over all that the process takes along anyway.
    gc.freeze()
    return code


def _run(arguments: list[str]) -> int:
    asked = next(iter(arguments), "")
    if asked and not asked.startswith("-") and asked not in COMMANDS:
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
    option = next((one.partition("=")[0] for one in unknown if one.startswith("--")), "")
    known = [spelled for action in parser._actions for spelled in action.option_strings]
    return did_you_mean(option, known) if option else ""


def _parser(asked: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, Subcommand | None]:
    """The parser, that of the one command that is asked for, else the same again, and the command."""
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
        loaded: Subcommand = importlib.import_module(f"{__name__}.{name}").Command()
        command = loaded
        own = parsers.add_parser(
            name,
            help=summary,
            description=_dedent(type(loaded).__doc__),
            formatter_class=formatter,
            allow_abbrev=False,
        )
        loaded.prepare_parser(own)
    return parser, own, command


def _formatter() -> type[argparse.HelpFormatter]:
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        # Help texts contain brackets that are not markup.
        text_markup = False
        help_markup = False

    return Formatter


def _dedent(doc: str | None) -> str:
    import inspect

    return inspect.cleandoc(doc or "")


def _complain(sentence: str) -> None:
    message = f"overlapscope: error: {clean(sentence)}"
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _silence_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
