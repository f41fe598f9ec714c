"""What happened, in order, until somebody writes it into the books.

Things happen on several threads and in the middle of others: torch reports an event that the garbage collector deletes
while the books are being kept. So whoever sees something only appends it, which Python does in one piece, and nobody
waits for a lock: whoever holds it writes up what the others have appended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MANY = 1000
"""So many are written up even where no operator runs that would."""


class Journal:
    """A queue of calls that are made in the order in which they were noted, until it is closed."""

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        """`failed(error)` is told why the journal closed by itself: no exception reaches the program."""
        self.is_open = True
        self._failed = failed
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def note(self, call: Callable[[], object]) -> None:
        """Have `call` made in its turn."""
        if self.is_open:
            self._calls.append(call)
            if len(self._calls) > _MANY:
                self.write_up()

    def write_up(self) -> None:
        """Make the calls noted so far, unless that is being done."""
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
        """Make a call now that must not fail the program; None where it did fail."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self._fail(error)
            return None

    def close(self) -> None:
        """Take no more."""
        self.is_open = False
        self._calls.clear()

    def _fail(self, error: Exception) -> None:
        self.close()
        self._failed(error)
