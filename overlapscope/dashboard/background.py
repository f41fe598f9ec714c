"""Slow computations, run one after another in the background, and a cache for their results."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from msgspec import Struct

from overlapscope.base.memory import release_free_memory
from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """A thread-safe cache that drops the least recently used values if their weight is too high, but keeps two."""

    def __init__(self, most: int) -> None:
        """`most` is the maximum total weight. Values without weight stay."""
        self._most = most
        self._values: dict[K, tuple[V, int]] = {}
        """Values with their weights; the most recently used is last."""
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, which counts as a use."""
        with self._lock:
            if key not in self._values:
                return None
            self._values[key] = self._values.pop(key)
            return self._values[key][0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value, dropping others if necessary."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value, weight
            heavy = {key: weight for key, (_, weight) in self._values.items() if weight}
            while len(heavy) > 2 and sum(heavy.values()) > self._most:
                oldest = next(iter(heavy))
                del heavy[oldest], self._values[oldest]

    def remember(self, key: K, make: Callable[[], V], weight: int = 1) -> V:
        """Return the value, computed if it is missing."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value, weight)
        return value

    def forget(self, is_old: Callable[[K], bool]) -> None:
        """Drop the values whose keys are old."""
        with self._lock:
            self._values = {key: kept for key, kept in self._values.items() if not is_old(key)}


class TaskProgress(Struct, frozen=True):
    """Progress of a task."""

    stage: str
    part: float | None = None
    """Completed fraction; None if unknown."""


ProgressCallback = Callable[[TaskProgress], None]


class Background(Generic[K, V]):
    """A thread-safe queue with a thread that takes the latest request first, and ends when no request is left."""

    def __init__(
        self,
        name: str,
        compute: Callable[[K, ProgressCallback], V],
        cache: WeightedCache[K, V],
        weigh: Callable[[V], int],
        *,
        given_up_s: float = math.inf,
    ) -> None:
        """`compute` must not raise (`attempt`). Requests not repeated within `given_up_s` are dropped."""
        self._name = name
        self._compute = compute
        self._cache = cache
        self._weigh = weigh
        self._given_up_s = given_up_s
        self._wanted: dict[K, tuple[tuple[bool, int], float]] = {}
        """Priority of each request, and the time of its latest repetition."""
        self._requests = 0
        self._at_work: tuple[K, TaskProgress] | None = None
        self._working = False
        self._change = threading.Condition()

    def put(self, key: K, value: V) -> None:
        """Keep a value that resulted from another request."""
        self._cache.put(key, value, self._weigh(value))

    def request(self, key: K, *, urgent: bool = True) -> None:
        """Request a value: before all earlier requests or, if not urgent, after them."""
        with self._change:
            now = time.monotonic()
            if self._cache.get(key) is not None or (self._at_work is not None and self._at_work[0] == key):
                return
            self._requests += 1
            priority = (urgent, self._requests if urgent else -self._requests)
            before = self._wanted.get(key, (priority, now))[0]
            self._wanted[key] = (max(priority, before), now)
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name=f"overlapscope-{self._name}", daemon=True).start()

    def get(self, key: K, wait_s: float = math.inf) -> V | None:
        """Return the value; None if it isn't ready after `wait_s`, so the caller has to ask again."""
        deadline = time.monotonic() + wait_s
        with self._change:
            while (value := self._cache.get(key)) is None:
                self.request(key)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._change.wait(None if math.isinf(remaining) else remaining)
            return value

    @property
    def at_work(self) -> tuple[K, TaskProgress] | None:
        """The request that is being computed, with its progress."""
        with self._change:
            return self._at_work

    def _work(self) -> None:
        while True:
            with self._change:
                late = time.monotonic() - self._given_up_s
                self._wanted = {key: wanted for key, wanted in self._wanted.items() if wanted[1] >= late}
                if not self._wanted:
                    self._working = False
                    return
                key = max(self._wanted, key=lambda key: self._wanted[key][0])
                del self._wanted[key]
                self._at_work = key, TaskProgress("beginning")
            value = self._compute(key, functools.partial(self._tell, key))
            with self._change:
                self._at_work = None
                self.put(key, value)
                self._change.notify_all()
            del value
            release_free_memory()

    def _tell(self, key: K, progress: TaskProgress) -> None:
        with self._change:
            self._at_work = key, progress


def attempt(subject: str, make: Callable[[], V]) -> V | OverlapscopeError:
    """Return the result, or the reason why there is none.

    The thread must survive any failure: the page shows the reason, and the log has the traceback.
    """
    try:
        return make()
    except OverlapscopeError as error:
        return error
    except MemoryError:
        return OverlapscopeError(f"{subject}: there is not enough memory for this trace.")
    except Exception as error:
        logging.getLogger(__name__).exception("%s", subject)
        return OverlapscopeError(f"{subject}: {type(error).__name__}: {clean(str(error), 500)}; please report this.")


def or_raise(value: V | OverlapscopeError) -> V:
    """Return the value, or raise it if it is an error."""
    if isinstance(value, OverlapscopeError):
        # Its traceback would otherwise grow with each raise.
        raise value.with_traceback(None)
    return value
