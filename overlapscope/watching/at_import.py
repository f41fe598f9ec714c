"""What torch calls at the end of its import, as it does for device backends (entry points `torch.backends`).

Nothing is imported here: every program that has torch and overlapscope installed comes by.
"""

import os


def start() -> None:
    """Watch this process where OVERLAPSCOPE_WATCH asks for it: `1`, or how often it is recorded. Never raises."""
    told = os.environ.get("OVERLAPSCOPE_WATCH", "0")
    if told in ("", "0"):
        return
    try:
        from overlapscope.watching.api import watch_as_told

        watch_as_told(told)
    except Exception:
        # torch would refuse to be imported.
        pass
