"""What torch calls at the end of its import, as it does for device backends (entry points `torch.backends`).

Nothing is imported here: every program that has torch and overlapscope installed comes by.
"""

import os


def start() -> None:
    """Watch this process where OVERLAPSCOPE_WATCH asks for it. Never raises."""
    if os.environ.get("OVERLAPSCOPE_WATCH", "0") in ("", "0"):
        return
    try:
        from overlapscope.watch.api import watch

        watch()
    except Exception:
        # torch would refuse to be imported.
        pass
