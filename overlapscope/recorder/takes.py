"""What a recorder is about: the stages of its schedule, the runs of the profiler, and the marks of steps in them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from overlapscope.recorder.schedule import Window
from overlapscope.recorder.session import Session

_STEP = "ProfilerStep#"
"""How torch.profiler names a step, and what every reader looks for."""


class Stage(enum.Enum):
    """Where a recorder is in its schedule. They follow in this order, though some may be left out."""

    PUT_OFF = "put off"
    REHEARSAL = "rehearsal"
    BETWEEN = "between"
    """Nothing is recorded: the program settles, steps are timed, and a window will open."""
    RECORDING = "recording"
    BEHIND = "behind"
    """The trace is written, and steps are timed."""
    DONE = "done"


@dataclass(slots=True)
class Take:
    """One run of the profiler, the rehearsal or the recording."""

    window: Window
    session: Session | None
    """None once it is written, or where it could not be stopped."""
    judged_ns: list[int] = field(default_factory=list)
    """The lengths of its judged steps, by the host's clock."""
    notes: list[str] = field(default_factory=list)
    wanted: bool = True
    """Whether it is to be kept."""


class StepAnnotation:
    """The open `record_function` of the present step, if there is one."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._range: Any = None

    def open(self, step: int) -> None:
        """Enter it, unless one is open."""
        if self._range is None:
            from torch.profiler import record_function

            self.name = f"{_STEP}{step}"
            self._range = record_function(self.name)
            self._range.__enter__()

    def close(self) -> None:
        """Leave it."""
        left, self._range, self.name = self._range, None, None
        if left is not None:
            left.__exit__(None, None, None)
