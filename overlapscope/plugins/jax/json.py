"""The Chrome trace that XLA's profiler writes beside its protocol buffer (`*.trace.json.gz`), decoded."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any, Final

import msgspec
from msgspec import Struct

from overlapscope.plugins.jax.lines import MOST_EVENTS, NO_STATS, Stats, XlaEvent, XlaLine, XlaRecording
from overlapscope.reading._times import UNREADABLE

_LARGEST_US: Final = 4e15
_TRIES: Final = 8
"""Maximum places to try as the end of the last whole event of a truncated file."""
_BETWEEN_EVENTS: Final = re.compile(rb"\}(?=\s*,\s*\{)")
_CUT_SIGHT: Final = 1 << 16


class _XlaArgs(Stats, gc=False, frozen=True):
    name: str = ""
    """Name of a process or thread, in events that give it one."""


class _JsonEvent(Struct, gc=False):
    ph: str = ""
    pid: int = -1
    tid: int = -1
    ts: float = math.nan
    dur: float = 0.0
    name: str = ""
    args: _XlaArgs | None = None


class _XlaFile(Struct):
    traceEvents: list[_JsonEvent]  # noqa: N815


_file = msgspec.json.Decoder(_XlaFile, strict=False)
"""Not strict, because the numbers among the arguments are written as texts."""


def read_json(text: bytes) -> XlaRecording:
    """Return all lines; those of the whole events if the file was truncated.

    Raises:
        msgspec.DecodeError: The file is damaged otherwise.
        UnicodeDecodeError: The file is damaged otherwise.
    """
    # Most events have arguments, so they have two opening braces each.
    if text.count(b"{") > 2 * MOST_EVENTS:
        raise msgspec.DecodeError("more events than any profiler records")
    try:
        return _recording(_file.decode(text).traceEvents)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if text.rstrip().endswith(b"]}"):
            raise
    recording = _recording(_whole_events(text))
    recording.truncated = True
    return recording


def _whole_events(text: bytes) -> list[_JsonEvent]:
    """Return the events of a truncated file."""
    ends = [match.end() for match in _BETWEEN_EVENTS.finditer(text, max(0, len(text) - _CUT_SIGHT))]
    for end in reversed(ends[-_TRIES:]):
        try:
            return _file.decode(text[:end] + b"]}").traceEvents
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # The place lay within an event.
            continue
    raise msgspec.DecodeError("no whole event")


def _recording(events: list[_JsonEvent]) -> XlaRecording:
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    of_line: dict[tuple[int, int], list[XlaEvent]] = defaultdict(list)
    for event in events:
        if event.ph == "X":
            stats: Any = event.args or NO_STATS
            start_ns, dur_ns = _ns(event.ts), _ns(event.dur)
            of_line[event.pid, event.tid].append(XlaEvent(event.name, start_ns, dur_ns, stats))
        elif event.ph == "M" and event.args is not None:
            if event.name == "process_name":
                processes[event.pid] = event.args.name
            elif event.name == "thread_name":
                threads[event.pid, event.tid] = event.args.name
    lines = [
        XlaLine(plane=processes.get(pid, ""), name=threads.get((pid, tid), ""), id=tid, events=events)
        for (pid, tid), events in of_line.items()
    ]
    return XlaRecording(lines=lines)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000) if abs(microseconds) <= _LARGEST_US else int(UNREADABLE)
