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
_KIND: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"(\w+)"')


def kind_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> str | None:
    """Return the kind of a file that overlapscope wrote; None for other files and where the file cannot be opened.

    The kind comes first in the file.
    """
    try:
        with place(path, limit_bytes).open("rb") as file:
            match = _KIND.match(file.read(_HEAD_BYTES))
    except OSError:
        # Reading the file as a trace reports the error.
        return None
    kind = match[1].decode() if match else ""
    return kind if kind in _OF_CORE or any(kind in plugin.kinds for plugin in plugins()) else None
