"""Options of a recording, as `overlapscope.record` and `overlapscope run` take them, and the schedule that they make.

With plain steps, a program is recorded twice: a **rehearsal** at its start, and the **recording** after the program has
settled. Steps are timed without the profiler right before the recording, and right after it:

    rehearsal | settle | plain steps | warm-up, active steps | settle | plain steps | nothing

The rehearsal includes whatever is slow the first time, and is the result for a program that ends early. Without plain
steps, it records the steps to wait for.

A window opens and closes by steps, as above, or by a clock (`driver`). To find a slow step, windows follow each
other, and those without a slow step are thrown away. The latter two kinds have no rehearsal.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from overlapscope.base.words import did_you_mean, listed
from overlapscope.errors import UsageError
from overlapscope.plugin import observers

P = ParamSpec("P")
Made = TypeVar("Made")

DEFAULT_MAX_SIZE_BYTES = 1 << 30
DEFAULT_PLAIN_STEPS = 10
_REHEARSED_WAIT = 3
_REHEARSED_ACTIVE = 5
"""Number of judged steps of a rehearsal if the recording has no end."""
_MIN_REHEARSED = 2
"""Minimum steps of a rehearsal: only the second shows which ranges stay open around several (`OpenRanges`)."""
SETTLING_STEPS = 2
"""Minimum number of steps between a session and the first step that is timed."""
_WATCHED_STEPS = 20
"""Number of steps of a window that waits for a slow step.

Throwing away a window takes about as long as the window lasted, and some 100 ms more. Compared with twenty steps, the
latter is short, and twenty steps fit into memory.
"""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """A range of steps to record without a break: warm-up from `first`, and judged steps from `judged` to `end`.

    Without an `end`, it extends to the end of the program.
    """

    first: int
    judged: int
    end: int | None

    def begun(self, first: int) -> Self:
        """Return the same window if it begins late, with the step `first`."""
        return replace(self, first=first, judged=max(first, self.judged))

    def over(self, finished: int) -> bool:
        """Return whether all its steps are finished."""
        return self.end is not None and finished >= self.end

    def judged_steps(self, finished: int) -> int:
        """Return the number of its judged steps that are finished."""
        return max(0, (finished if self.end is None else min(finished, self.end)) - self.judged)

    def warm_up_steps(self, finished: int) -> int:
        """Return the number of steps of its trace that must not be judged.

        It is 0 if the trace has only warm-up steps, which are judged then.
        """
        return self.judged - self.first if self.judged_steps(finished) else 0


@dataclass(frozen=True)
class Options:
    """When a window opens and closes, by steps counted from 0, by time or a slow step; and its contents."""

    wait: int = 0
    """Number of steps to skip at the start."""
    warmup: int = 1
    """Number of steps to record next, but not to judge."""
    active: int | None = None
    """Number of steps to record and judge; None for all that follow."""
    plain_steps: int = DEFAULT_PLAIN_STEPS
    """Number of steps to time without the profiler right before the recording, and again right after it.

    It is 0 with `observers`, which slow every step, and with `slow_step`, since steps around a slow one say nothing
    about it.
    """
    delay_s: float | None = None
    """Time from the start until the window opens, in seconds, instead of `wait`."""
    duration_s: float | None = None
    """Length of the window in seconds, instead of `active`; None for the rest of the program."""
    slow_step: float | None = None
    """Record all the time, and keep a window only if one of its steps takes more than this many times the median."""

    stacks: bool = False
    """True to record the Python stack of each op, except in a rehearsal that waits for steps."""
    shapes: bool = False
    """True to record the shapes of inputs."""
    memory: bool = False
    """True to record each allocation."""
    light: bool = False
    """True to leave out PyTorch's ops, which slows the program less."""
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES
    """Maximum memory that events may take while they are recorded, in bytes; beyond it the recording ends early."""
    observers: tuple[str, ...] = ()
    """Names of plugins that watch the program, such as `hazards`, until the active steps are over, or else until
    `Recording.end`."""
    steps_by: str | None = None
    """The calls that end steps: `marks`, `optimizer`, `backward`, `forward`, `loader`, `graph`, or the name of a call.

    By default, these are marks of the program, or else the first of the others that repeats.
    """

    def __post_init__(self) -> None:
        least = {"wait": 0, "warmup": 0, "active": 1, "plain_steps": 0, "delay_s": 0}
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int if name != "delay_s" else isinstance(value, str)):
                raise UsageError(f"{name} is {value!r}; it must be a whole number.")
            if value is not None and not value >= limit:
                raise UsageError(f"{name} is {value}; it must be {limit} or more.")
        for name, limit in {"duration_s": 0, "slow_step": 1}.items():
            value = getattr(self, name)
            if value is not None and not value > limit:
                raise UsageError(f"{name} is {value}; it must be more than {limit}.")
        ways = {
            "slow_step": self.slow_step is not None,
            "delay_s or duration_s": self.by_clock,
            "wait": self.wait > 0 and self.slow_step is None,
            "active": self.active is not None and self.slow_step is None,
        }
        chosen = [way for way, taken in ways.items() if taken]
        if len(chosen) > 1 and chosen != ["wait", "active"]:
            raise UsageError(f"{chosen[0]} and {chosen[1]} both choose what is recorded; use only one of them.")
        if self.slow_step is not None and not self.warmup:
            raise UsageError("slow_step needs a warmup of 1 or more: the first step of a window is never judged.")
        if self.max_size_bytes <= 0:
            raise UsageError(f"max_size_bytes is {self.max_size_bytes}; it must be more than 0.")
        op_options = [name for name in ("stacks", "shapes", "memory") if getattr(self, name)]
        if self.light and op_options:
            raise UsageError(
                f"a light recording has no PyTorch ops, so {listed(op_options)} cannot be recorded; leave out "
                f"light or {listed(op_options)}."
            )
        known = observers() if self.observers else {}
        for name in self.observers:
            if name not in known:
                raise UsageError(
                    f"no plugin {name!r} observes programs{did_you_mean(name, known)}; known: {listed(known)}."
                )
        if self.observers or self.slow_step is not None:
            object.__setattr__(self, "plain_steps", 0)

    @property
    def by_clock(self) -> bool:
        """True if a clock opens the window."""
        return self.delay_s is not None or self.duration_s is not None

    @property
    def at_once(self) -> bool:
        """True if the recording starts with the program."""
        return not self.by_clock and self.slow_step is None

    @property
    def rehearsal(self) -> StepWindow | None:
        """First window; None if that is the recording already."""
        judged = min(self.wait, _REHEARSED_WAIT) + self.warmup
        end = judged + (self.active or _REHEARSED_ACTIVE)
        if self.plain_steps:
            return StepWindow(0, judged, max(_MIN_REHEARSED, end))
        # The profiler is off for a step between the two (`OpenRanges`).
        return StepWindow(0, judged, min(end, self.wait - 1)) if self.wait > 1 else None

    @property
    def whole(self) -> StepWindow:
        """The recording if no rehearsal comes before it."""
        return replace(self.recording(self.wait), first=0)

    def recording(self, opens: int) -> StepWindow:
        """Return the recording if it opens with the step `opens`, which is `wait` or later."""
        judged = opens + self.warmup
        active = _WATCHED_STEPS if self.active is None and self.slow_step is not None else self.active
        return StepWindow(opens, judged, None if active is None else judged + active)

    def why_short(self, finished: int, judged_steps: int) -> str | None:
        """Return a sentence on a program that ended before its recording counted; None if that is as expected.

        It finished that many steps, and another take with so many judged steps counts instead.
        """
        if not self.at_once:
            return None
        if finished == 0:
            return None if self.wait == 0 else "The program marked no step, so all of it was recorded."
        instead = "its first steps were recorded instead" if judged_steps else "the recording is used as it is"
        if finished >= self.needed_steps:
            return f"The program ended before its recording was complete; {instead}."
        sentence = f"The program made only {finished} of the {self.needed_steps} steps needed; {instead}."
        fewer = replace(self, plain_steps=0).needed_steps
        return f"{sentence} --plain-steps 0 needs {fewer}." if self.plain_steps else sentence

    def why_none(self) -> str:
        """Return a sentence on a program that ended before its first window opened."""
        if self.by_clock:
            when = f"{self.delay_s or 0:g} s after the start (not on the main thread: with the next step)"
            return f"There is no trace: the program ended before the recording started, {when}."
        return "There is no trace: the program ended before the recording started."

    @property
    def needed_steps(self) -> int:
        """Number of steps that a complete recording takes, including the steps timed before and after it."""
        rehearsal, timed = self.rehearsal, SETTLING_STEPS + self.plain_steps if self.plain_steps else 0
        begins = 0 if rehearsal is None or rehearsal.end is None else rehearsal.end + timed
        window = self.recording(max(self.wait, begins) if timed else self.wait)
        return (window.judged + 1 if window.end is None else window.end) + timed


def with_keywords(
    make: Callable[[str | os.PathLike[str], Options], Made], options: Callable[P, Options]
) -> Callable[Concatenate[str | os.PathLike[str], P], Made]:
    """Return `make` with the fields of `Options` as its keyword arguments, in place of a record of them."""
    path_parameter = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fields = (field.replace(kind=field.KEYWORD_ONLY) for field in inspect.signature(options).parameters.values())
    signature = inspect.Signature([path_parameter, *fields])

    def record(*args: Any, **kwargs: Any) -> Made:
        arguments = signature.bind(*args, **kwargs).arguments
        return make(arguments.pop("path"), options(**arguments))  # type: ignore[call-arg]  # `signature` has checked them.

    record.__dict__["__signature__"] = signature
    record.__doc__ = make.__doc__
    # By these, it can be pickled.
    record.__qualname__, record.__module__ = "record", make.__module__
    return record
