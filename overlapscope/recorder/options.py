"""Options of a recording, as `overlapscope.record` and `overlapscope run` take them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from overlapscope.base.words import did_you_mean, listed
from overlapscope.errors import UsageError
from overlapscope.plugin import observers
from overlapscope.recorder.schedule import Schedule

P = ParamSpec("P")
Made = TypeVar("Made")

DEFAULT_MAX_SIZE_BYTES = 1 << 30
DEFAULT_PLAIN_STEPS = 10


@dataclass(frozen=True)
class Options(Schedule):
    """A schedule, and the contents of its windows."""

    plain_steps: int = DEFAULT_PLAIN_STEPS
    """Number of steps to time without the profiler right before the recording, and again right after it.

    It is 0 with `observers`, which slow every step, and with `slow_step`, since steps around a slow one say nothing
    about it.
    """
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
    ignore_own_profiler: bool = False
    """True if profilers that the program starts record nothing, instead of taking the recording's place."""
    steps_by: str | None = None
    """The calls that end steps: `marks`, `optimizer`, `backward`, `forward`, `loader`, `graph`, or the name of a call.

    By default, these are marks of the program, or else the first of the others that repeats.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
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


def with_keywords(
    make: Callable[[str | os.PathLike[str], Options], Made], options: Callable[P, Options]
) -> Callable[Concatenate[str | os.PathLike[str], P], Made]:
    """Return `make` with the fields of `Options` as its keyword arguments, in place of a record of them."""
    path_parameter = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fields = (field.replace(kind=field.KEYWORD_ONLY) for field in inspect.signature(options).parameters.values())
    signature = inspect.Signature([path_parameter, *fields])

    def record(*args: Any, **kwargs: Any) -> Made:
        given = signature.bind(*args, **kwargs).arguments
        return make(given.pop("path"), options(**given))  # type: ignore[call-arg]  # `signature` has checked them.

    record.__dict__["__signature__"] = signature
    record.__doc__ = make.__doc__
    # By these, it can be pickled.
    record.__qualname__, record.__module__ = "record", make.__module__
    return record
