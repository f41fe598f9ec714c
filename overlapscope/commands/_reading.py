"""Options of the commands that read traces."""

from __future__ import annotations

import argparse

from overlapscope.base import words


def parse_size(text: str) -> int:
    """Bytes of a size such as `20GB`, `1.5 GiB` or `4096`; raises ArgumentTypeError."""
    try:
        size = words.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size to work with; write it like 20GB or 512MiB")
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
        raise argparse.ArgumentTypeError(f"{text!r} is no length of a step; write it like 31.8ms")
    return step_ns


def add_plain_step(parser: argparse.ArgumentParser) -> None:
    """`--plain-step` as `args.plain_step`, in ns; None where it is not given."""
    parser.add_argument(
        "--plain-step",
        metavar="TIME",
        type=parse_step,
        help="what a step takes while nothing is recorded, such as 31.8ms (default: what the recorder timed)",
    )


def add_allow_predicted(parser: argparse.ArgumentParser) -> None:
    """`--allow-predicted`."""
    parser.add_argument(
        "--allow-predicted",
        action="store_true",
        help="take timelines that `overlapscope whatif` predicted as if they had been recorded",
    )


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """`--max-size` as `args.max_size`, None where it is not given, and `--no-cache` as `args.cache`."""
    add_max_size(parser)
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="read the traces themselves, and keep nothing of them in the cache (see `overlapscope cache`)",
    )


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """`--max-size` of whatever reads traces; None where it is not given."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=parse_size,
        help="largest unpacked size to read of one file, such as 20GB (default: 8GiB)",
    )
