"""Options that commands share, so that their names, help texts and types are the same everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from overlapscope.base import words

if TYPE_CHECKING:
    from pathlib import Path

    from overlapscope.report.model import Report

FORMATS = ("text", "json", "markdown", "html")
_RARE = "rarely needed"
"""Title of the arguments that only `--help-all` shows."""


def less_common(parser: argparse.ArgumentParser, what: str = "show all options") -> argparse._ArgumentGroup:
    """Return a new group for arguments that only `--help-all` shows, and add that option. `what` is its help text."""
    parser.add_argument("--help-all", action="help", help=what)
    return parser.add_argument_group(_RARE)


def shorten(parser: argparse.ArgumentParser) -> None:
    """Leave the arguments of `less_common` out of the help."""
    for group in parser._action_groups:
        if group.title == _RARE:
            for action in group._group_actions:
                action.help = argparse.SUPPRESS


def add_traces(parser: argparse.ArgumentParser, *, reports: bool = False, required: bool = True) -> None:
    """Add `TRACE...` as `args.traces`. `reports` says whether it may be a report."""
    kinds = (
        "trace, directory of traces, glob pattern, report"
        if reports
        else "trace file, directory of traces, glob pattern"
    )
    parser.add_argument("traces", nargs="+" if required else "*", metavar="TRACE", help=f"{kinds}, or - for stdin")


def add_format(parser: argparse._ActionsContainer, formats: Sequence[str] = FORMATS) -> None:
    """Add `--format`."""
    parser.add_argument("--format", choices=formats, default="text", help="output format (default: text)")


def add_output(parser: argparse._ActionsContainer) -> None:
    """Add `--output` and `--force`."""
    from pathlib import Path

    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of stdout")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")


def add_verbose(parser: argparse._ActionsContainer, what: str) -> None:
    """Add `--verbose`. `what` is its help text."""
    parser.add_argument("-v", "--verbose", action="store_true", help=what)


def add_plain_step(parser: argparse._ActionsContainer, *, sides: tuple[str, ...] = ()) -> None:
    """Add `--plain-step` as `args.plain_step`, in nanoseconds or None; with `sides`, a tuple with a value for each."""
    several: dict[str, Any] = {"nargs": len(sides), "default": (None,) * len(sides)} if sides else {}
    each = f", {words.listed(side.lower() for side in sides)}" if sides else ""
    parser.add_argument(
        "--plain-step",
        metavar=sides or "TIME",
        type=parse_step,
        help=f"step time without the profiler, such as 31.8ms{each} (default: as the recorder timed it)",
        **several,
    )


def add_reading(parser: argparse._ActionsContainer) -> None:
    """Add `--max-size`, for `size_limit`, and `--no-cache` as `args.cache`."""
    add_max_size(parser)
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="do not read or write the cache (see `overlapscope cache`)",
    )


def add_max_size(parser: argparse._ActionsContainer) -> None:
    """Add `--max-size` as `args.max_size`; None means the reader's default."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=parse_size,
        help="largest unpacked size of one file, such as 20GB (default: 8GiB, and 100 times its packed size)",
    )


def size_limit(args: argparse.Namespace) -> int:
    """Return the maximum unpacked size of a file, in bytes."""
    from overlapscope.reading import LIMIT_BYTES

    return LIMIT_BYTES if args.max_size is None else int(args.max_size)


def add_steps_by(parser: argparse._ActionsContainer) -> None:
    """Add `--steps-by` as `args.steps_by`, for `load`."""
    parser.add_argument(
        "--steps-by",
        metavar="PATTERN",
        help="use ranges with this name as steps; * and ? stand for any characters, as in 'iteration*'",
    )


def add_captures(parser: argparse._ActionsContainer) -> None:
    """Add `--capture` as `args.capture`, for `load`."""
    parser.add_argument(
        "--capture",
        metavar="DIR",
        action="append",
        default=[],
        help="recordings of the captures of the CUDA graphs that the program launches: a directory or a file",
    )


def capture_options(captures: Iterable[str | Path]) -> list[str]:
    """Return the arguments that `add_captures` parses."""
    return [part for path in captures for part in ("--capture", str(path))]


def add_analysis(parser: argparse._ActionsContainer, *, sides: tuple[str, ...] = ()) -> None:
    """Add the options of `report_of`: `add_plain_step`, `add_steps_by` and `add_reading`."""
    add_plain_step(parser, sides=sides)
    add_steps_by(parser)
    add_reading(parser)


def report_of(sources: Sequence[str], args: argparse.Namespace, **otherwise: Any) -> Report:
    """Return the report that `inputs.read_report` makes with these options. Raises like it."""
    from overlapscope.inputs import read_report

    options = {"plain_step_ns": args.plain_step} | otherwise
    return read_report(sources, limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by, **options)


class AddAction(Protocol):
    """Function that adds an action from its name, its help as a phrase, and further sentences of its description."""

    def __call__(self, name: str, phrase: str, more: str = "") -> argparse.ArgumentParser: ...


def add_actions(parser: argparse.ArgumentParser, *, required: bool = True) -> AddAction:
    """Add `ACTION` as `args.action`, and return a function that adds actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=required)

    def add(name: str, phrase: str, more: str = "") -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=phrase,
            description=f"{words.capital(phrase)}.{more and f' {more}'}",
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )

    return add


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `20GB`, `1.5 GiB` or `4096`. Raises ArgumentTypeError."""
    try:
        size = words.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; write it like 20GB or 512MiB")
    return size


def parse_step(text: str) -> int:
    """Return the nanoseconds of a step time such as `31.8ms`. Raises ArgumentTypeError."""
    from overlapscope.budgets.quantity import parse
    from overlapscope.errors import ConfigError

    try:
        step_ns = round(parse(text, "ns"))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if step_ns <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid step time; write it like 31.8ms")
    return step_ns


def whole_number(what: str, least: int, most: int) -> Callable[[str], int]:
    """Return a parser of numbers in a range, whose ArgumentTypeError states that a text is not `what`."""

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{words.shorten(text, 40)!r} is not {what}")
        return number

    return parse


# -- Many traces, read at once ---------------------------------------------------------------------


def add_workers(parser: argparse._ActionsContainer) -> None:
    """Add `--workers` and `--scheduler`, of which one can be given."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=positive, metavar="N", help="number of processes (default: one per core)")
    where.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler to use, such as tcp://host:8786")


def positive(text: str) -> int:
    """Return a number of ranks or processes. Raises ArgumentTypeError."""
    from overlapscope.ranks.reduced import MAX_RANKS

    return whole_number(f"a number from 1 to {MAX_RANKS:,}", 1, MAX_RANKS)(text)
