"""Calling a function of ours in every Python process that a program consists of or starts.

The function is called when the process has imported torch: earlier, modules that we import would hide the program's.
Python imports a module `sitecustomize` at its start; PYTHONPATH has such processes find ours, in `site`.
"""

from __future__ import annotations

import os
from pathlib import Path

_SITE = Path(__file__).parent / "site"
_ROOT = Path(__file__).parents[2]


def environment(place: str) -> dict[str, str]:
    """Return additional variables for such processes, which call `place`, a `package.module:function`."""
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    return {"OVERLAPSCOPE_AT_START": place, "OVERLAPSCOPE_ROOT": str(_ROOT), "PYTHONPATH": path}
