"""Recordings of captures of graphs beside the recording of a program that launches these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I32
from overlapscope.trace.model import HostEvents, Trace

_Events = TypeVar("_Events", bound=HostEvents)


def with_captures(trace: Trace, captures: Sequence[Trace]) -> Trace:
    """Return the trace with further recordings of captures, whose names are numbered as its own.

    Those of other ranks are left out, since ranks may launch different graphs.
    """
    captures = [each for each in captures if each.rank == trace.rank or None in (each.rank, trace.rank)]
    numbers = {name: number for number, name in enumerate(trace.names)}
    renumbered = [
        np.array([numbers.setdefault(name, len(numbers)) for name in capture.names], np.int32) for capture in captures
    ]
    names = tuple(numbers)

    def renamed(events: _Events, number: I32) -> _Events:
        return replace(events, names=names, name_id=number[events.name_id])

    further = [
        replace(
            capture,
            names=names,
            runtime_calls=renamed(capture.runtime_calls, number),
            cpu_ops=renamed(capture.cpu_ops, number),
            python_frames=renamed(capture.python_frames, number),
        )
        for capture, number in zip(captures, renumbered, strict=True)
    ]
    return replace(trace, names=names, captures=(*trace.captures, *further))
