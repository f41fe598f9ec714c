"""A function that torch calls at the end of its import, as for device backends (entry points `torch.backends`).

This module imports almost nothing, since it runs in every program that has torch and overlapscope installed.
"""

import os


def start() -> None:
    """Watch this process if OVERLAPSCOPE_WATCH asks for it: `1`, or an interval of recordings. Never raises."""
    value = os.environ.get("OVERLAPSCOPE_WATCH", "0")
    if value in ("", "0"):
        return
    try:
        from overlapscope.watching.api import watch_by_variable

        watch_by_variable(value)
    except Exception:
        # An exception would make the import of torch fail.
        pass
