"""Has a function of ours called in every Python process that a program is made of, and that it starts.

It is called when the process has imported torch: before, what we import would keep the program from modules of its own.
Python imports a module `sitecustomize` at its start. Ours, in `site`, is put on the path of all such processes through
PYTHONPATH.
"""

from __future__ import annotations

import os
from pathlib import Path

_SITE = Path(__file__).parent / "site"
_ROOT = Path(__file__).parents[2]


def environment(place: str) -> dict[str, str]:
    """Variables of such processes, beside those of this one: they call `package.module:function` without arguments."""
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    return {"OVERLAPSCOPE_AT_START": place, "OVERLAPSCOPE_ROOT": str(_ROOT), "PYTHONPATH": path}
