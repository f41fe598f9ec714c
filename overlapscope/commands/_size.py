"""Sizes on the command line."""

from __future__ import annotations

import argparse
import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as `20GB`, `1.5 GiB` or `4096`; raises ArgumentTypeError."""
    match = _SIZE.fullmatch(text)
    size = 0
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it like 20GB or 512MiB")
    return size


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """`--max-size` of whatever reads traces; None where it is not given."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=parse_size,
        help="largest unpacked size to read of one file, such as 20GB (default: 4GiB)",
    )
