"""A journal of actions, in order, until they are written into the books.

Actions come on several threads and during others: torch reports an event that the garbage collector deletes while the
books are being written. So an observer only appends an action, which is atomic in Python, and never waits for a lock.
The thread that holds the lock writes what the others have appended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MANY = 1000
"""Number of calls at which `note` writes them itself, in case no operator runs that would."""


class Journal:
    """A queue of calls that are made in the order in which they were noted, until it is closed."""

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        """Open the journal. `failed(error)` is called if an error closes it; no exception reaches the program."""
        self.is_open = True
        self._failed = failed
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def note(self, call: Callable[[], object]) -> None:
        """Append a call."""
        if self.is_open:
            self._calls.append(call)
            if len(self._calls) > _MANY:
                self.write_up()

    def write_up(self) -> None:
        """Make the calls noted so far, unless another thread is making them."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._calls:
                self._calls.popleft()()
        except Exception as error:
            self._fail(error)
        finally:
            self._lock.release()

    def attempt(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Make a call now, and return its result, or None if it fails."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self._fail(error)
            return None

    def close(self) -> None:
        """Ignore later calls."""
        self.is_open = False
        self._calls.clear()

    def _fail(self, error: Exception) -> None:
        self.close()
        self._failed(error)
