"""`overlapscope.watch`: letting users ask this process for recordings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.errors import UsageError
from overlapscope.plugins.watch.listen import listen
from overlapscope.plugins.watch.watcher import Watcher
from overlapscope.recorder.destination import rank_by_launcher

if TYPE_CHECKING:
    from overlapscope.plugins.watch.continuous import Continuous, WatchSettings

_watchers: dict[int, Watcher] = {}
"""Watchers by process id: at most one of this process, and those of processes that it was forked from."""
_continuous: dict[int, Continuous] = {}
"""Continuous recordings by process id, as in `_watchers`."""


def watch(
    every: str | None = None,
    *,
    steps: int = 3,
    keep: str = "200 MB",
    job: str | None = None,
    history: str | os.PathLike[str] | None = None,
    log: object = (),
) -> None:
    """Watch this process, so that `overlapscope record PID` can record it while it goes on.

    With `every`, some steps of rank 0 are also recorded at regular intervals, and analyzed in another process
    (`docs/guides/watch.md`). This function may be called again, and before torch is imported. Later failures are
    reported on stderr, each once, and never raised.

    Args:
        every: Interval between recordings, such as `"10 min"`.
        steps: Number of steps to record each time.
        keep: Maximum size of reports and traces on the disk.
        job: Name of the figures in the history, by default that of the script.
        history: File that figures are added to, by default the user's.
        log: Tools that figures are sent to: a SummaryWriter of TensorBoard, a run of Weights & Biases or `"wandb"`,
            `"mlflow"`, `"prometheus:FILE.prom"`, `"prometheus:PORT"`, or a list of these.

    Raises:
        UsageError: The arguments make no sense.
    """
    if every is not None:
        from overlapscope.plugins.watch.continuous import settings

        watch_continuously(settings(every, steps=steps, keep=keep, job=job, history=history, log=log))
        return
    if log != ():
        raise UsageError('log needs recordings to tell of; pass every, such as every="10 min".')
    watcher_of_this_process()


def watch_on_demand() -> None:
    """Watch this process, which runs a program of the user, and print how to record it."""
    place = rank_by_launcher(os.environ)
    if place is None or not place.number:
        tell(f"overlapscope: `overlapscope record {os.getpid()}` records this program while it goes on.")
    watch()


def watch_by_variable(value: str) -> None:
    """Call `watch` for the value of OVERLAPSCOPE_WATCH: `1`, or an interval such as `10min`."""
    try:
        watch(None if value == "1" else value)
    except UsageError as error:
        tell(f"overlapscope: OVERLAPSCOPE_WATCH is ignored: {error}")


def watch_continuously(settings: WatchSettings) -> Continuous:
    """Record at regular intervals, in place of earlier settings."""
    from overlapscope.plugins.watch.continuous import Continuous

    watcher, process = watcher_of_this_process(), os.getpid()
    if process in _continuous:
        _continuous[process].stop()
    _continuous[process] = Continuous(watcher, settings)
    return _continuous[process]


def watcher_of_this_process() -> Watcher:
    """Return the watcher of this process, which the first call starts."""
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
