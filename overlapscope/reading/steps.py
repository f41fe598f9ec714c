"""Steps from named ranges, for programs that do not mark steps as torch.profiler does."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from msgspec.structs import asdict, replace

from overlapscope.base.grouping import distinct
from overlapscope.base.marks import STEP, is_step_name
from overlapscope.errors import NotInTrace
from overlapscope.trace.model import I64, Trace, TraceTable

_NUMBERED: Final = re.compile(r"(.*?)[\s#:_=\[(-]*(\d{1,18})?[\])]?")
_LEAST_STEPS: Final = 3
_LEAST_SHARE: Final = 0.5
"""Minimum share of the launches that ranges must enclose to be taken for steps without being named."""


def named_steps(trace: Trace, pattern: str) -> Trace:
    """Return the trace with the ranges whose names match `pattern` as its steps, instead of its previous steps.

    `*` and `?` stand for any characters.

    Raises:
        NotInTrace: No range matches.
    """
    notes = trace.annotations
    rows = np.flatnonzero(notes.named(lambda name: fnmatchcase(name, pattern)))
    if not len(rows):
        raise NotInTrace(f"{trace.source}: no range is named {pattern!r}; --steps-by takes a name or a pattern.")
    return _as_steps(trace, rows, pattern)


def found_steps(trace: Trace) -> Trace:
    """Return the trace with steps from ranges that repeat and enclose the launches, if it has such ranges and no steps.

    Ranges of a thread belong together if their names differ only in a number. They qualify if at least three follow one
    another without overlap, and enclose half of that thread's launches. The group that encloses most launches is
    chosen; among equals the smallest group, which is the outermost.
    """
    notes = trace.annotations
    if notes.named(is_step_name).any():
        return trace
    calls, launches = trace.runtime_calls, distinct(trace.gpu_ops.launch[trace.gpu_ops.launch >= 0])
    best: tuple[int, int] = (0, 0)
    chosen: tuple[I64, str] | None = None
    for (thread, name), rows in _alike(trace).items():
        start, end = notes.start_ns[rows], notes.end_ns[rows]
        if len(rows) < _LEAST_STEPS or (start[1:] < end[:-1]).any():
            continue
        launched = calls.start_ns[launches[calls.thread[launches] == thread]]
        inside = int((np.searchsorted(launched, end) - np.searchsorted(launched, start)).sum())
        if inside and inside >= _LEAST_SHARE * len(launched) and (inside, -len(rows)) > best:
            best, chosen = (inside, -len(rows)), (rows, name)
    return trace if chosen is None else _as_steps(trace, *chosen)


def _alike(trace: Trace) -> dict[tuple[int, str], I64]:
    """Return the rows of the ranges of each thread, by their names without the number at the end."""
    notes = trace.annotations
    base = {name_id: _base(notes.names[name_id]) for name_id in distinct(notes.name_id).tolist()}
    rows: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row, (thread, name_id) in enumerate(zip(notes.thread.tolist(), notes.name_id.tolist(), strict=True)):
        rows[thread, base[name_id]].append(row)
    return {key: np.array(rows_alike, np.int64) for key, rows_alike in rows.items()}


def _base(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered is not None and numbered[1] else name


def _as_steps(trace: Trace, rows: I64, named: str) -> Trace:
    """Return the trace with some ranges as its steps. They keep the numbers in their names if these are distinct."""
    notes = trace.annotations
    stated = [_NUMBERED.fullmatch(notes.name(row)) for row in rows.tolist()]
    numbers = [int(match[2]) for match in stated if match is not None and match[2]]
    if len({*numbers}) < len(rows):
        numbers = list(range(len(rows)))
    steps = [f"{STEP}{number}" for number in numbers]
    names = (*trace.names, *steps)
    name_id = notes.name_id.copy()
    name_id[rows] = np.arange(len(trace.names), len(names))
    was_step = notes.named(is_step_name)
    was_step[rows] = False
    notes = replace(notes, names=names, name_id=name_id).take(~was_step)
    return replace(with_names(trace, names), warm_up_steps=0, step_source="", steps_by=named, annotations=notes)


def with_names(trace: Trace, names: tuple[str, ...]) -> Trace:
    """Return the trace with a longer table of names."""
    tables: dict[str, Any] = {
        name: replace(part, names=names) for name, part in asdict(trace).items() if isinstance(part, TraceTable)
    }
    return replace(trace, names=names, **tables)
