"""A function that torch calls at the end of its import, as for device backends (entry points `torch.backends`).

This module imports almost nothing, since it runs in every program that has torch and overlapscope installed.
"""

import os


def start() -> None:
    """Call what plugins do after the import of torch, if variables ask for it. Never raises."""
    if not any(name.startswith("OVERLAPSCOPE_") for name in os.environ):
        return
    try:
        from overlapscope.base.registry import load
        from overlapscope.plugin import built_in

        for plugin in built_in():
            for variable, place in plugin.after_torch.items():
                if (value := os.environ.get(variable, "0")) not in ("", "0"):
                    load(place)(value)
    except Exception:
        # An exception would make the import of torch fail.
        pass
