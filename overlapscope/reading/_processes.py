"""The processes in a Chrome trace that was merged from the traces of several processes.

A process counts if it launched GPU work: a caller. Workers that load data have ids of their own, and launch nothing.
GPU ops have the id of a device instead. They belong to the process with the same label (`[TP00] 0`), or to the one
whose events surround them in the file. Files without labels whose events were sorted by time are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from overlapscope.base.grouping import among, distinct
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._events import NOTHING, UNDECODABLE, EventTable, Numbered, table_of
from overlapscope.reading.file_names import natural
from overlapscope.reading.files import SourceFile
from overlapscope.reading.raw_events import RawEvents, decoded
from overlapscope.trace.model import I32, Bool

_UNKNOWN: Final = -1
"""Number of an unknown process."""
MAX_PROCESSES: Final = 256
"""Maximum number of processes in a file. Reading each of them takes as long as reading the file."""
_HOST: Final = frozenset({EventTable.RUNTIME, EventTable.CPU, EventTable.ANNOTATION, EventTable.PYTHON})
_DEVICE: Final = frozenset({EventTable.GPU, EventTable.SYNC, EventTable.DEVICE_ANNOTATION})
_LAUNCH: Final = re.compile(r"Launch|Memcpy|Memset|Enqueue|Append")


class _Args(Struct, gc=False):
    correlation: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1


class _Event(Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    ts: float = 0.0
    args: Raw = NOTHING


_ROW: Final = np.dtype("i4, i4, ?, f8, i8")
"""Columns of an event: number of its written process id, table, whether it launches work, start in us, correlation."""
_args = msgspec.json.Decoder(_Args)


def processes(path: Path, file: Path, limit_bytes: int) -> I32:
    """Return the number of the process of each event in a file, in the file's order; -1 where unknown.

    Processes are numbered by their devices if each used its own, and otherwise in the order of their names.

    Args:
        path: The file as the user named it, for messages.
        file: The file to read.
        limit_bytes: Maximum unpacked size.

    Raises:
        UnreadableTrace: Several processes may have launched the same GPU op.
    """
    status = os.stat(file)
    found = _processes(file, limit_bytes, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    if isinstance(found, str):
        raise UnreadableTrace(path, f"holds events of {found}; name the traces that it was made of.")
    return found


@lru_cache(1)
def _processes(file: Path, limit_bytes: int, _state: tuple[int, ...]) -> I32 | str:
    """Return the process of each event, or a description of processes whose GPU ops can't be distinguished."""
    numbers = Numbered()
    rows = [
        np.array([_row(event or _Event(), numbers) for event in decoded(batch.raw, _Event)], _ROW)
        for batch in RawEvents(SourceFile(file, limit_bytes=limit_bytes)).batches()
    ]
    events, written = np.concatenate([np.empty(0, _ROW), *rows]), list(numbers)
    id_number, table, launches, start_us, correlation = (events[name] for name in _ROW.names or ())
    ops, host = table == EventTable.GPU, among(table, [*_HOST])
    launched = correlation[ops]
    callers = distinct(id_number[launches & among(correlation, launched[launched > 0])]).tolist()
    if len(callers) < 2:
        return np.zeros(len(id_number), np.int32)
    if len(callers) > MAX_PROCESSES:
        return f"{len(callers):,} processes that launched GPU ops, more than {MAX_PROCESSES}"
    process: I32 = np.array([_caller(number, callers, written) for number in range(len(written))], np.int32)[id_number]
    if not all(is_label(written[caller]) for caller in callers):
        # Numbers of processes may equal numbers of devices.
        process[~host] = _UNKNOWN
    start_us = start_us[host | among(table, [*_DEVICE])]
    # Sorted by time, the last ops of a process may stand after the first calls of the next.
    if not (start_us[1:] >= start_us[:-1]).all():
        _assign_by_position(process, host, len(callers))
    if distinct(process[ops]).tolist() != list(range(len(callers))):
        return "several processes, mixed so that it can't be told which of them launched a GPU op"
    devices = [distinct(id_number[ops & (process == number)]).tolist() for number in range(len(callers))]
    is_disjoint = len(set().union(*devices)) == sum(map(len, devices))
    named_by = [used[0] for used in devices] if is_disjoint else callers
    final = np.empty(len(callers) + 1, np.int32)
    final[sorted(range(len(callers)), key=lambda number: natural(written[named_by[number]]))] = np.arange(len(callers))
    final[_UNKNOWN] = _UNKNOWN
    return final[process]


def _row(event: _Event, written: Numbered) -> tuple[int, int, bool, float, int]:
    """Return the columns of `_ROW`."""
    table = table_of[event.cat] if event.ph == "X" else EventTable.IGNORED
    correlation = -1
    if table == EventTable.RUNTIME or table in _DEVICE:
        with suppress(*UNDECODABLE):
            correlation = _args.decode(event.args).correlation
    launches = table == EventTable.RUNTIME and _LAUNCH.search(event.name) is not None
    return written[event.pid], table, launches, event.ts, correlation


def _caller(id_number: int, callers: list[int], ids: Sequence[int | str]) -> int:
    """Return the place in `callers` of a process id, or of the caller with the same label; -1 if unknown.

    Labels are the same if they have the longest common beginning. Ids are given by their numbers in `ids`.
    """
    if id_number in callers:
        return callers.index(id_number)
    if not is_label(ids[id_number]):
        return _UNKNOWN
    alike = [_common_length(str(ids[id_number]), str(ids[caller])) for caller in callers]
    return alike.index(max(alike)) if alike.count(max(alike)) == 1 else _UNKNOWN


def _common_length(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))


def is_label(written: int | str) -> bool:
    """Return whether a process has a name besides its number, as tools write that merge traces."""
    return isinstance(written, str) and not written.isdecimal()


def _assign_by_position(process: I32, host: Bool, count: int) -> None:
    """Assign events of unknown processes to the process whose events surround them, if processes follow one another."""
    bounds = [np.flatnonzero(host & (process == number))[[0, -1]] for number in range(count)]
    order = sorted(range(count), key=lambda number: int(bounds[number][0]))
    if any(bounds[left][1] > bounds[right][0] for left, right in pairwise(order)):
        return
    begins = np.array([bounds[number][0] for number in order])
    unknown = np.flatnonzero(process == _UNKNOWN)
    process[unknown] = np.array(order)[np.maximum(np.searchsorted(begins, unknown, side="right") - 1, 0)]
