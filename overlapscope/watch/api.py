"""`overlapscope.watch`: this process can be asked for recordings."""

from __future__ import annotations

import os

from overlapscope.base.output import tell
from overlapscope.watch.listen import listen
from overlapscope.watch.watcher import Watcher

_watchers: dict[int, Watcher] = {}
"""At most one of this process, by its id; others are of processes that it was forked from."""


def watch() -> Watcher:
    """Have this process watched: `overlapscope ps` lists it, and `overlapscope record PID` records it while it goes on
    (`docs/guides/watch.md`).

    May be called again, and before torch is imported. What goes wrong is told on stderr, and never raised.
    """
    process = os.getpid()
    if process in _watchers:
        return _watchers[process]
    watcher = _watchers[process] = Watcher()
    watcher.start()
    try:
        listen(watcher)
    except OSError as error:
        tell(f"overlapscope: this process cannot be asked for recordings: {error}.")
    return watcher
