"""Lines of code that a trace names, from the files of this machine.

A trace may come from anywhere, and its files may have changed since. So a line is shown only to the user of this
machine, from a regular file of Python that is older than the recording, and if it is inside the function that the
trace names.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from pathlib import Path

from overlapscope.base.words import clean

_MAX_BYTES = 1 << 20
_MAX_LINE_LENGTH = 160
_SINCE_2001_NS = 10**18
"""Smaller times in a trace are those of a clock that began when the machine did."""
_DEF = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")


def is_private(host: str, base: str) -> bool:
    """Return whether a server is for the user of this machine alone, without a network or a proxy."""
    return host in ("127.0.0.1", "::1", "localhost") and base == "/"


def line_of(file: str, line: int, function: str, trace: Path, start_ns: int) -> str:
    """Return a line of a file, without its indentation; empty if it may not be the line that the trace names.

    Args:
        file: The file.
        line: Number of the line, counted from 1.
        function: Function that the trace names.
        trace: File of the trace.
        start_ns: Start of the recording, which a copied file is younger than.
    """
    try:
        written_ns = trace.stat().st_mtime_ns
        lines = _lines(file, min(written_ns, start_ns) if start_ns > _SINCE_2001_NS else written_ns)
    except (OSError, ValueError):
        return ""
    if not 0 < line <= len(lines) or _function(lines, line - 1) != function.rpartition(".")[2]:
        return ""
    return clean(lines[line - 1].strip(), _MAX_LINE_LENGTH)


@lru_cache(maxsize=32)
def _lines(file: str, before_ns: int) -> tuple[str, ...]:
    """Return the lines of a small, regular file of Python last changed before an instant; none for other files."""
    if not file.endswith(".py") or not os.path.isabs(file):
        return ()
    # A pipe or a device must neither be waited for nor be read.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8", errors="replace") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES or status.st_mtime_ns > before_ns:
            return ()
        # `splitlines` would also split at a form feed, which ends no line of Python.
        return tuple(opened.read(_MAX_BYTES).split("\n"))


def _function(lines: tuple[str, ...], at: int) -> str:
    """Return the name of the function that a line is in, `<module>` outside of functions."""
    margin = _indent(lines[at])
    for text in reversed(lines[:at]):
        if text.strip() and not text.lstrip().startswith("#") and _indent(text) < margin:
            margin = _indent(text)
            if match := _DEF.match(text):
                return match[1]
    return "<module>"


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
