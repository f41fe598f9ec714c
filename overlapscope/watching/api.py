"""`overlapscope.watch`: this process can be asked for recordings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.errors import UsageError
from overlapscope.watching.listen import listen
from overlapscope.watching.watcher import Watcher

if TYPE_CHECKING:
    from overlapscope.watching.continuous import Continuous, Settings

_watchers: dict[int, Watcher] = {}
"""At most one of this process, by its id; others are of processes that it was forked from."""
_continuous: dict[int, Continuous] = {}
"""At most one of this process, too."""


def watch(
    every: str | None = None,
    *,
    steps: int = 3,
    keep: str = "200 MB",
    job: str | None = None,
    history: str | os.PathLike[str] | None = None,
    log: object = (),
) -> None:
    """Have this process watched: `overlapscope ps` lists it, and `overlapscope record PID` records it while it goes on
    (`docs/guides/watch.md`).

    With `every`, such as `"10 min"`, so many steps of rank 0 are recorded that often and analysed in a process of its
    own. Figures are added to the file `history` (by default the user's own) under the name `job` (by default the
    script's), and sent to what `log` names: a SummaryWriter of TensorBoard, a run of Weights & Biases or `"wandb"`,
    `"mlflow"`, `"prometheus:FILE.prom"`, `"prometheus:PORT"`, or a list of them. No more than `keep` of reports and
    traces stays on the disk.

    May be called again, and before torch is imported. Raises UsageError for arguments that make no sense. What goes
    wrong later is told on stderr, once, and never raised.
    """
    if every is not None:
        from overlapscope.watching.continuous import settings

        watch_continuously(settings(every, steps=steps, keep=keep, job=job, history=history, log=log))
        return
    if log != ():
        raise UsageError('log needs recordings to tell of; pass every, such as every="10 min".')
    watcher_of_this_process()


def watch_as_told(told: str) -> None:
    """`watch`, by the variable OVERLAPSCOPE_WATCH: `1`, or how often the program is recorded: `10min`."""
    try:
        watch(None if told == "1" else told)
    except UsageError as error:
        tell(f"overlapscope: OVERLAPSCOPE_WATCH is not heeded: {error}")


def watch_continuously(asked: Settings) -> Continuous:
    """In the place of what was asked for before."""
    from overlapscope.watching.continuous import Continuous

    watcher, process = watcher_of_this_process(), os.getpid()
    if process in _continuous:
        _continuous[process].stop()
    _continuous[process] = Continuous(watcher, asked)
    return _continuous[process]


def watcher_of_this_process() -> Watcher:
    """The one watcher, started when first asked for."""
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
