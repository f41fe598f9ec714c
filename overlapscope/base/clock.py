"""Clock by which steps are timed, windows open and close, and recordings of a watched program are due.

Modules call `clock.now_ns()`, so that tests can put a clock in its place that they move themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

now_ns: Callable[[], int] = time.perf_counter_ns
"""Return the time in nanoseconds since an arbitrary moment."""
