"""Clock that times steps and trials, opens and closes windows, and schedules recordings of a watched program.

Modules call `clock.now_ns()`, so that tests can replace the clock by a clock that they move themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NS_PER_S: Final = 1_000_000_000
now_ns: Callable[[], int] = time.perf_counter_ns
"""Return the time in nanoseconds since an arbitrary moment."""
