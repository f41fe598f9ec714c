"""Scheduling of test files for pytest-xdist: tests that mostly wait get more workers than there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

WAITING = frozenset({"browser", "exhaustive", "gpu", "package", "process", "torch"})
"""Rooms whose tests mostly wait, for the processes that they start or for a page."""
IDLE = frozenset({"process", "torch"})
"""Those of them whose tests take a core for less than half of their time."""
APART = frozenset({"exhaustive"})
"""Rooms with files of a hundred long tests that share nothing: each is given to a worker by itself."""
BROWSER = "browser"
"""Room whose tests share a browser and a server."""


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(paths: Iterable[str]) -> int:
    """Return the number of workers for the tests under some paths: more than there are cores if some of them wait.

    A few files, as of `make quick`, are over before further workers have begun.
    """
    rooms = {PurePosixPath(path).name for path in paths}
    of_files = {_room(path) for path in paths}
    more = cores() + 2 if rooms & (IDLE | {"tests"}) else cores() if (rooms | of_files) & WAITING else 0
    return cores() + min(more, 8)


def is_waiting(file: str) -> bool:
    """Return whether the tests of a file, named as in node ids, mostly wait."""
    return _room(file) in WAITING


@cache
def _room(test: str) -> str:
    return PurePosixPath(test.partition("::")[0]).parent.name


class RoomScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each worker whole files, or single tests of rooms whose tests are apart: to as many workers as there are
    cores those of rooms that compute first, to the others only those that wait. As many workers start a browser, which
    takes more memory and time than most of its tests do."""

    def __init__(self, config: object, log: object) -> None:
        super().__init__(config, log)
        self._with_browser: set[WorkerController] = set()

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return nodeid if _room(file) in APART else file

    def _next_file(self, node: WorkerController) -> str | None:
        running = [node for node in self.nodes if not node.shutting_down]
        with_browser = self._with_browser.intersection(running)
        browses = node in with_browser or len(with_browser) < cores()
        mine = (file for file in self.workqueue if browses or _room(file) != BROWSER)
        waiting = next(filter(is_waiting, mine), None)
        if node not in running[: cores()]:
            return waiting
        return next((file for file in self.workqueue if not is_waiting(file)), waiting)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if file := self._next_file(node):
            if _room(file) == BROWSER:
                self._with_browser.add(node)
            self.workqueue.move_to_end(file, last=False)
            # A worker that has just died can't be told. `remove_node`, which comes next, gives its files to others.
            with suppress(OSError):
                super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that has ended, and return the test in which it died, which isn't run again."""
        work = self.assigned_work.pop(node)
        unfinished = [(file, test) for file, tests in work.items() for test, done in tests.items() if not done]
        if not unfinished:
            return None
        file: str
        crashed: str
        file, crashed = unfinished[0]
        work[file][crashed] = True
        self.workqueue.update({file: work[file] for file, _ in unfinished if not all(work[file].values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            # It replaces a worker that died, and gets files once it has collected the tests.
            return
        if self.workqueue and self._next_file(node) is None:
            # The rest is for fewer workers.
            node.shutdown()
        else:
            super()._reschedule(node)
