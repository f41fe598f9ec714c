"""The options that commands share: one name, one help sentence and one way to be read for each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from overlapscope.base import words

if TYPE_CHECKING:
    from overlapscope.report.model import Report

FORMATS = ("text", "json", "markdown", "html")


def add_traces(parser: argparse.ArgumentParser, *, reports: bool = False) -> None:
    """What is to be analysed, as `args.traces`."""
    kinds = (
        "trace, directory of traces, glob pattern, report"
        if reports
        else "trace file, directory of traces, glob pattern"
    )
    parser.add_argument("traces", nargs="+", metavar="TRACE", help=f"{kinds}, or - for stdin")


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """`--format`."""
    parser.add_argument(
        "--format", type=format_name, choices=formats, default="text", help="output format (default: text)"
    )


def format_name(text: str) -> str:
    """The name of a format: what is printed to a terminal is `text`."""
    return "text" if text == "terminal" else text


def add_output(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """`--output` and `--force`."""
    where = "write to FILE" if required else "write to FILE instead of stdout"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=required, help=where)
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")


def add_verbose(parser: argparse.ArgumentParser, what: str) -> None:
    """`--verbose`: `what` is shown as well."""
    parser.add_argument("-v", "--verbose", action="store_true", help=what)


def add_plain_step(parser: argparse.ArgumentParser, *, sides: tuple[str, ...] = ()) -> None:
    """`--plain-step` as `args.plain_step`, in ns, None where it is not given; of several sides, one for each."""
    several: dict[str, Any] = {"nargs": len(sides), "default": (None,) * len(sides)} if sides else {}
    each = f", {words.listed(side.lower() for side in sides)}" if sides else ""
    parser.add_argument(
        "--plain-step",
        metavar=sides or "TIME",
        type=parse_step,
        help=f"step time without the profiler, such as 31.8ms{each} (default: as the recorder timed it)",
        **several,
    )


def add_allow_predicted(parser: argparse.ArgumentParser) -> None:
    """`--allow-predicted`."""
    parser.add_argument(
        "--allow-predicted",
        action="store_true",
        help="treat timelines predicted by `overlapscope whatif` as recordings",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """`--max-size`, for `size_limit`, and `--no-cache` as `args.cache`."""
    add_max_size(parser)
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="do not read or write the cache (see `overlapscope cache`)",
    )


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """`--max-size` as `args.max_size`, None where it is not given: what it is then is known to what reads."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=parse_size,
        help="largest unpacked size of one file, such as 20GB (default: 8GiB)",
    )


def size_limit(args: argparse.Namespace) -> int:
    """How much may be read of one file, in bytes."""
    from overlapscope.reading import LIMIT_BYTES

    return LIMIT_BYTES if args.max_size is None else int(args.max_size)


def add_steps_by(parser: argparse.ArgumentParser) -> None:
    """`--steps-by` as `args.steps_by`, for `load`."""
    parser.add_argument(
        "--steps-by",
        metavar="PATTERN",
        help="take the ranges of this name for steps; * and ? stand for any characters, as in 'iteration*'",
    )


def add_analysis(parser: argparse.ArgumentParser, *, sides: tuple[str, ...] = ()) -> None:
    """How traces are read and their steps known, for `report_of`: `add_plain_step`, `add_steps_by`, `add_reading`."""
    add_plain_step(parser, sides=sides)
    add_steps_by(parser)
    add_reading(parser)


def report_of(sources: Sequence[str], args: argparse.Namespace, **otherwise: Any) -> Report:
    """The report over what is named, as `inputs.read_report` reads it with these options. Raises as it does."""
    from overlapscope.inputs import read_report

    told = {"plain_step_ns": args.plain_step} | otherwise
    return read_report(sources, limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by, **told)


class AddAction(Protocol):
    """Adds an action by its name, its help as a phrase, and what its description says besides that."""

    def __call__(self, name: str, phrase: str, more: str = "") -> argparse.ArgumentParser: ...


def add_actions(parser: argparse.ArgumentParser, *, required: bool = True) -> AddAction:
    """What a command is to do, as `args.action`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=required)

    def add(name: str, phrase: str, more: str = "") -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=phrase,
            description=f"{phrase[:1].upper()}{phrase[1:]}.{more and f' {more}'}",
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )

    return add


def parse_size(text: str) -> int:
    """Bytes of a size such as `20GB`, `1.5 GiB` or `4096`; raises ArgumentTypeError."""
    try:
        size = words.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; write it like 20GB or 512MiB")
    return size


def parse_step(text: str) -> int:
    """Nanoseconds of a step's length such as `31.8ms`; raises ArgumentTypeError."""
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
    """Reads a number of a range, which is said to be no `what` otherwise; raises ArgumentTypeError."""

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{words.shorten(text, 40)!r} is not {what}")
        return number

    return parse
