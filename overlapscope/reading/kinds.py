"""Kinds of files that overlapscope itself writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from overlapscope.plugin import plugins
from overlapscope.reading.files import LIMIT_BYTES
from overlapscope.reading.pipes import place

_OF_CORE: Final = ("report", "diff", "whatif", "check", "baseline", "ranks", "calibration", "doctor")
"""Kinds of the core's files."""
_HEAD_BYTES: Final = 256
_FIRST_MEMBER: Final = re.compile(rb'\s*\{\s*"(\w+)"\s*:\s*(?:"(\w+)")?')


def kind_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> str | None:
    """Return the kind of a file that overlapscope wrote; None for other files and where the file cannot be opened.

    The kind comes first in the file. Older files without it are recognized by their shape: reports, reports of ranks,
    and baselines.
    """
    try:
        with place(path, limit_bytes).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        # Reading the file as a trace reports the error.
        return None
    first = _FIRST_MEMBER.match(head)
    if first is None:
        return None
    match first[1]:
        case b"kind":
            named = (first[2] or b"").decode()
            is_ours = named in _OF_CORE or any(named in plugin.kinds for plugin in plugins())
            return named if is_ours else None
        case b"schema_version":
            return "ranks" if b'"world_size"' in head.partition(b"[")[0] else "report"
        case b"devices":
            return "baseline"
    return None
