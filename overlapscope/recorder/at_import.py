"""A function that torch calls at the end of its import, as for device backends (entry points `torch.backends`).

This module imports almost nothing, since it runs in every program that has torch and overlapscope installed.
"""

import os
import sys

CALL = "OVERLAPSCOPE_AT_IMPORT"
"""Variable with a call to make in processes that import torch: `package.module:function`, a blank, and its argument."""


def start() -> None:
    """Call what variables ask for after the import of torch: `CALL`, and those of plugins. Never raises."""
    if not any(name.startswith("OVERLAPSCOPE_") for name in os.environ):
        return
    try:
        from overlapscope.recorder.imports import keep_apart

        if not sys.flags.safe_path:
            keep_apart(sys.path[0])
        from overlapscope.base.registry import load
        from overlapscope.plugin import built_in

        place, _, text = os.environ.get(CALL, "").partition(" ")
        if place:
            load(place)(text)
        for plugin in built_in():
            for variable, place in plugin.after_torch.items():
                if (value := os.environ.get(variable, "0")) not in ("", "0"):
                    load(place)(value)
    except Exception:
        # An exception would make the import of torch fail.
        pass
