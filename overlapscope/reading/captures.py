"""Recordings of captures of graphs beside the recording of a program that launches these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I32
from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import HostEvents, Trace

_Events = TypeVar("_Events", bound=HostEvents)


def read_each(paths: Sequence[Path], read: Callable[[Path], Trace]) -> list[Trace]:
    """Return the recordings in files, of which some may be none, such as the list of them by TraceLens.

    Raises:
        UnreadableTrace: All are none.
    """
    captures, failures = list[Trace](), list[UnreadableTrace]()
    for path in paths:
        try:
            captures.append(read(path))
        except UnreadableTrace as failure:
            failures.append(failure)
    if failures and not captures:
        raise failures[0]
    return captures


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
