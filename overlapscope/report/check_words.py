"""What each trust check puts in doubt where it warned or failed. `docs/trust.md` has the whole table."""

from __future__ import annotations

from typing import Final

AFFECTS: Final[dict[str, str]] = {
    "file-complete": "What came after the cut is missing.",
    "events-readable": "Lost events are missing everywhere.",
    "durations": "The GPU may look idle where the events that were left out ran.",
    "copy-sizes": "Bytes and bandwidths leave these ops out.",
    "gpu-activity": "Everything is unknown.",
    "clock-skew": "Causes found on the host are inexact, or unknown where the check failed.",
    "dropped-ops": "The GPU looks idle where the missing ops ran.",
    "launches": "Causes of idle time are inexact; lead-in, steps and those causes are unknown where the check failed.",
    "lead-in": "That part is in the buckets, but no cause, finding or step covers it.",
    "missing-ops": "What the GPU did then is unknown: it counts neither as idle nor as work.",
    "stream-order": "Some durations are wrong.",
    "sync-events": "Which stream waited for which was rebuilt; evidence that rests on it says so.",
    "steps": "Those steps are missing from everything told by step.",
    "warm-up": "Leave that step out when you compare.",
    "steady-state": "Figures of steps hold for the recording; the program's usual step may differ.",
    "step-skew": "A step's figures do not contain the copies made early for it.",
    "profiler-overhead": "Idle time in it goes to cause profiler-overhead and is gone when nothing is recorded.",
}
