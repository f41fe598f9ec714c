"""Whose turn it is: the profiler belongs to one thread of one process, which does one thing at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """Belongs to nobody until it is taken."""

    def __init__(self) -> None:
        self._process = self._thread = -1
        self._busy = False

    def take(self) -> None:
        """It belongs to the calling thread from now on."""
        self._process, self._thread = os.getpid(), threading.get_ident()

    @property
    def is_taken(self) -> bool:
        return self._process != -1

    @property
    def on_this_thread(self) -> bool:
        """Whether the calling thread has taken it; a forked child has threads of the same names."""
        return threading.get_ident() == self._thread

    @property
    def in_this_process(self) -> bool:
        return os.getpid() == self._process

    @property
    def on_main_thread(self) -> bool:
        return self._thread == threading.main_thread().ident

    @property
    def is_free(self) -> bool:
        """Whether the calling thread may do something now; what comes unasked else waits for the next step."""
        return self.on_this_thread and self.in_this_process and not self._busy

    @contextmanager
    def working(self) -> Iterator[None]:
        """In the middle of something."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
