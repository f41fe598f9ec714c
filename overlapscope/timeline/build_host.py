"""The lanes of the host: what each thread was inside, a row for each depth."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.host import find_blocking
from overlapscope.analysis.periods import is_step
from overlapscope.base.intervals import I64
from overlapscope.timeline.categories import ID, U8
from overlapscope.timeline.lane import Lane, prepared
from overlapscope.timeline.rows import by_start, depths, groups
from overlapscope.trace.model import HostEvents, Trace


def host_lanes(trace: Trace, origin_ns: int) -> list[Lane]:
    """Annotations, CPU ops, runtime calls and the profiler's own time, nested as they ran.

    The thread of the steps comes first, then those that launch, the busiest of them first.
    """
    tables = (trace.annotations, trace.cpu_ops, trace.runtime_calls, trace.overheads)
    found = [list(groups(table.thread)) if len(table) else [] for table in tables]
    by_thread: dict[int, list[I64]] = {}
    for number, parts in enumerate(found):
        for thread, rows in parts:
            by_thread.setdefault(thread, [rows[:0]] * len(tables))[number] = rows
    categories = _categories(trace)
    return [
        lane
        for thread, label in _threads(trace, list(by_thread))
        for lane in _thread_lanes(thread, label, tables, categories, by_thread[thread], origin_ns)
    ]


def _categories(trace: Trace) -> tuple[U8, ...]:
    """The category of every event of each table."""
    calls = np.full(len(trace.runtime_calls), ID["runtime-call"], np.uint8)
    calls[find_blocking(trace).row] = ID["blocking-call"]
    return (
        np.where(is_step(trace.annotations), ID["step"], ID["range"]).astype(np.uint8),
        np.full(len(trace.cpu_ops), ID["cpu-op"], np.uint8),
        calls,
        np.full(len(trace.overheads), ID["profiler"], np.uint8),
    )


def _threads(trace: Trace, threads: list[int]) -> list[tuple[int, str]]:
    """The threads in the order in which they are drawn, with what they are called."""
    launch = trace.gpu_ops.launch
    launching = _counted(trace.runtime_calls.thread[launch[launch >= 0]])
    stepping = _counted(trace.annotations.thread[is_step(trace.annotations)])
    calling = _counted(trace.runtime_calls.thread)
    order = sorted(
        threads,
        key=lambda one: (-stepping.get(one, 0), -launching.get(one, 0), -calling.get(one, 0), one),
    )
    labels = []
    for place, thread in enumerate(order):
        main = place == 0 and (thread in stepping or thread in launching)
        label = "unknown thread" if thread == -1 else f"thread {thread}"
        labels.append((thread, f"{label} (main)" if main else label))
    return labels


def _counted(threads: I64) -> dict[int, int]:
    values, counts = np.unique(threads, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _thread_lanes(
    thread: int,
    group: str,
    tables: tuple[HostEvents, ...],
    categories: tuple[U8, ...],
    rows: list[I64],
    origin_ns: int,
) -> list[Lane]:
    parts = list(zip(tables, categories, rows, strict=True))
    start = np.concatenate([table.start_ns[mine] for table, _, mine in parts])
    end = np.concatenate([table.end_ns[mine] for table, _, mine in parts])
    order = by_start(start, end)
    start, end = start[order] - origin_ns, end[order] - origin_ns
    category = np.concatenate([category[mine] for _, category, mine in parts])[order]
    name_id = np.concatenate([table.name_id[mine] for table, _, mine in parts])[order]
    source = np.concatenate([mine.astype(np.int32) for mine in rows])[order]
    return [
        prepared(
            group=group,
            label="",
            kind="host",
            depth=level,
            thread=thread,
            start_ns=start[mine],
            end_ns=end[mine],
            category=category[mine],
            source=source[mine],
            names=tables[0].names,
            name_id=name_id[mine],
        )
        for level, mine in groups(depths(start, end))
    ]
