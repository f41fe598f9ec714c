"""Callbacks for Python's garbage collector that run no Python function.

Python handles signals when a function begins, and drops what a callback of the collector raises. So a Python function
there would swallow the exception of the program's signal handler: Ctrl-C, or the end of a time limit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import methodcaller
from typing import Any


def gc_callback(at_start: Callable[[], object], at_stop: Callable[[], object]) -> Callable[[str, dict[str, int]], Any]:
    """Return a callback for `gc.callbacks` that calls one function as a collection starts, and one as it stops.

    Args:
        at_start: A function that is written in C, as `at_stop` is.
        at_stop: It is also called alone, if the callback is registered during a collection.
    """
    # Called as getattr(phases, "start", information).
    return functools.partial(getattr, _Phases(at_start, at_stop))


class _Phases:
    """Reading an attribute that is named as a phase calls its function."""

    __slots__ = ("at_start", "at_stop")

    def __init__(self, at_start: Callable[[], object], at_stop: Callable[[], object]) -> None:
        self.at_start, self.at_stop = at_start, at_stop

    start = property(methodcaller("at_start"))
    stop = property(methodcaller("at_stop"))
