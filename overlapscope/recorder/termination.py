"""SIGTERM ends a program at once, and with it the recording; here it gets to say its last words first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Has `last_words()` called on the main thread before SIGTERM does what it does.

    Only where the program has no handler of its own. Like every handler in Python it waits for the C function
    that the main thread is in; a second SIGTERM waits for nothing.
    """

    def __init__(self, last_words: Callable[[], None]) -> None:
        self._last_words = last_words
        self._held = 0
        self._came = False
        self._forking = threading.local()

    def watch(self) -> None:
        """Take the signal, in this process and not in those forked from it."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
            # In a child the signal must not come before it has been given back there: it would be lost.
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forked)

    def unwatch(self) -> None:
        """Give the signal back, unless the program has taken it meanwhile."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Puts a signal off that comes inside, lest the last words cut in on what they are about."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._came and not self._held:
                self._came = False
                os.kill(os.getpid(), signal.SIGTERM)

    def _block(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _forked(self) -> None:
        self.unwatch()
        self._unblock()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._came = True
            return
        self.unwatch()
        try:
            self._last_words()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
