"""Steps from named ranges: those that servers mark, those that the user names, and those that repeat."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from msgspec.structs import asdict, replace

from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import begins_after_all, contains, union
from overlapscope.base.marks import STEP, is_step_name
from overlapscope.errors import NotInTrace
from overlapscope.trace.model import I64, Index, PlainSteps, Trace, TraceTable
from overlapscope.trace.servers import StepBatch, combined, is_draft, server_of, step_name

_NUMBERED: Final = re.compile(r"(.*?)[\s#:_=\[(-]*(\d{1,18})?[\])]?")
_MIN_STEPS: Final = 3
_MIN_SHARE: Final = 0.5
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
    return replace(_as_steps(trace, rows, _numbered(trace, rows)), steps_by=pattern)


def server_steps(trace: Trace, stated: Mapping[str, StepBatch]) -> Trace:
    """Return the trace with the steps that an inference server marks.

    The outermost of nested marks counts, and none within a draft. If it doesn't state the batch, those within it do.
    Marks on threads that launch nothing count only if no thread with marks launches. Steps are numbered by order,
    because a number in a mark counts requests or tokens, or begins anew.

    Args:
        trace: The trace.
        stated: Its marks (`trace.servers.marks_in`), of which there is at least one.
    """
    notes = trace.annotations
    drafts = notes.take(notes.named(is_draft))
    guesses = union(drafts.start_ns, drafts.end_ns)
    in_draft = contains(guesses, notes.start_ns) & contains(guesses, notes.end_ns - 1)
    rows = _on_launching_threads(trace, np.flatnonzero(notes.named(stated.__contains__) & ~in_draft))
    if not len(rows):
        return trace
    outermost = begins_after_all(notes.start_ns[rows], notes.end_ns[rows])
    within = np.split(rows, np.flatnonzero(outermost))[1:]
    each = [_batch_of([stated[notes.name(row)] for row in nested.tolist()]) for nested in within]
    rows = rows[outermost]
    marked = _as_steps(trace, rows, [step_name(number, batch) for number, batch in enumerate(each)])
    # The recorder timed and left out steps that the program marked.
    warm_up_ns = notes.end_ns[np.flatnonzero(notes.named(is_step_name))[: trace.warm_up_steps]].max(initial=0)
    return replace(
        marked,
        warm_up_steps=int(np.searchsorted(notes.start_ns[rows], warm_up_ns)),
        plain_steps=PlainSteps(),
        # A patched server may mark a step in another's form, around its own mark.
        step_source=f"marks of {server_of(notes.name(int(within[0][-1])))}",
    )


def _on_launching_threads(trace: Trace, rows: Index) -> Index:
    """Return the rows of the ranges on threads where any encloses a launch; all of them if there is no such thread."""
    notes, calls = trace.annotations, trace.runtime_calls
    launches = np.flatnonzero(mask_of(trace.gpu_ops.launch[trace.gpu_ops.launch >= 0], len(calls)))
    kept = np.zeros(len(rows), np.bool_)
    for thread in distinct(notes.thread[rows]).tolist():
        launched = calls.start_ns[launches[calls.thread[launches] == thread]]
        of_thread = notes.thread[rows] == thread
        begin, end = (np.searchsorted(launched, side[rows[of_thread]]) for side in (notes.start_ns, notes.end_ns))
        kept |= of_thread & bool((end > begin).any())
    return rows[kept] if kept.any() else rows


def _batch_of(marks: list[StepBatch]) -> StepBatch:
    """Return the batch of a step, given those of its mark and of the marks within it."""
    if marks[0].phase != "unclear":
        return marks[0]
    clear = [mark for mark in marks if mark.phase != "unclear"]
    return combined(clear) if clear else marks[0]


def range_steps(trace: Trace) -> Trace:
    """Return the trace with steps from ranges that repeat and enclose the launches, if it has such ranges and no steps.

    Ranges of a thread belong together if their names differ only in a number. They qualify if at least three follow one
    another without overlap, and enclose half of that thread's launches. The group that encloses most launches is
    chosen; among equals the smallest group, which is the outermost.
    """
    if trace.has_steps:
        return trace
    notes = trace.annotations
    calls, launches = trace.runtime_calls, distinct(trace.gpu_ops.launch[trace.gpu_ops.launch >= 0])
    best: tuple[int, int] = (0, 0)
    chosen: tuple[I64, str] | None = None
    for (thread, name), rows in _alike(trace).items():
        start, end = notes.start_ns[rows], notes.end_ns[rows]
        if len(rows) < _MIN_STEPS or (start[1:] < end[:-1]).any():
            continue
        launched = calls.start_ns[launches[calls.thread[launches] == thread]]
        inside = int((np.searchsorted(launched, end) - np.searchsorted(launched, start)).sum())
        if inside and inside >= _MIN_SHARE * len(launched) and (inside, -len(rows)) > best:
            best, chosen = (inside, -len(rows)), (rows, name)
    if chosen is None:
        return trace
    rows, name = chosen
    return replace(_as_steps(trace, rows, _numbered(trace, rows)), steps_by=name)


def _alike(trace: Trace) -> dict[tuple[int, str], I64]:
    """Return the rows of the ranges of each thread, by their names without the number at the end."""
    notes = trace.annotations
    numbered = {name_id: _NUMBERED.fullmatch(notes.names[name_id]) for name_id in distinct(notes.name_id).tolist()}
    base = {name_id: (match and match[1]) or notes.names[name_id] for name_id, match in numbered.items()}
    rows: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row, (thread, name_id) in enumerate(zip(notes.thread.tolist(), notes.name_id.tolist(), strict=True)):
        rows[thread, base[name_id]].append(row)
    return {key: np.array(rows_alike, np.int64) for key, rows_alike in rows.items()}


def _numbered(trace: Trace, rows: I64) -> list[str]:
    """Return names of steps with the numbers in the names of some ranges, if these are distinct; else by order."""
    stated = [_NUMBERED.fullmatch(trace.annotations.name(row)) for row in rows.tolist()]
    numbers = [int(match[2]) for match in stated if match is not None and match[2]]
    if len({*numbers}) < len(rows):
        numbers = list(range(len(rows)))
    return [f"{STEP}{number}" for number in numbers]


def _as_steps(trace: Trace, rows: I64, steps: list[str]) -> Trace:
    """Return the trace with some ranges as its only steps, under new names."""
    notes = trace.annotations
    names = (*trace.names, *steps)
    name_id = notes.name_id.copy()
    name_id[rows] = np.arange(len(trace.names), len(names))
    was_step = notes.named(is_step_name)
    was_step[rows] = False
    notes = replace(notes, names=names, name_id=name_id).take(~was_step)
    return replace(with_names(trace, names), warm_up_steps=0, step_source="", annotations=notes)


def with_names(trace: Trace, names: tuple[str, ...]) -> Trace:
    """Return the trace with a longer table of names."""
    tables: dict[str, Any] = {
        name: replace(part, names=names) for name, part in asdict(trace).items() if isinstance(part, TraceTable)
    }
    return replace(trace, names=names, **tables)
