"""A Trace's tables from the collected columns."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.columns import dtypes, locate, pick
from overlapscope.base.grouping import among, numbered
from overlapscope.base.marks import GC_PAUSE, STEP
from overlapscope.reading._columns import COLLECTIVE_TEXTS, FURTHER, EventColumns, Part, Values
from overlapscope.reading._events import EventTable
from overlapscope.trace import lost, op_names
from overlapscope.trace.model import I8, I64, Collectives, GpuOps, Index, Kind, RuntimeCalls, TraceTable
from overlapscope.trace.op_names import OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD

_Table = TypeVar("_Table", bound=TraceTable)
_QUEUE_FULL = "Command Buffer Full"
"""CUPTI's overhead for a full launch queue (CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL). The host is ahead of the
device and waits, with or without a profiler."""
LARGEST_BYTES = 1 << 50
"""Maximum size of a GPU op in bytes and of a collective in elements: a pebibyte."""
_FASTEST_BYTES_PER_NS = {Kind.H2D: 1_000, Kind.D2H: 1_000, Kind.P2P: 10_000}
"""1 TB/s, faster than any link between a host and a device; 10 TB/s, faster than any between devices."""
_US_NS = 1_000
_LARGEST_SUM = 1 << 62
_NO_ROWS: Part = (
    *(np.empty(0, dtype=np.int32),) * 2,
    *(np.empty(0, dtype=np.int64),) * 3,
    np.empty(0, dtype=np.int32),
)
_MAX_INT64 = np.iinfo(np.int64).max
_VALID_RANGES = {
    **dict.fromkeys(("correlation", "record_correlation", "graph_node"), (1, _MAX_INT64)),
    **dict.fromkeys(("bytes", "event", "sequence"), (0, _MAX_INT64)),
    **dict.fromkeys(("elements_in", "elements_out"), (0, LARGEST_BYTES)),
    "group_size": (0, np.iinfo(np.int32).max),
}
"""Least and largest value of some columns. Others stand for "none"."""
_ANNOTATIONS = (STEP, "enumerate(DataLoader)#", OPTIMIZER_STEP, OPTIMIZER_ZERO_GRAD, GC_PAUSE)


_PARTS: dict[EventTable, lost.Part] = {
    EventTable.RUNTIME: "calls",
    EventTable.CPU: "ops",
    EventTable.ANNOTATION: "ranges",
    EventTable.SYNC: "syncs",
    EventTable.OVERHEAD: "overheads",
    EventTable.PYTHON: "frames",
}


class Finished:
    """All columns, with a row for each complete event. The tables of the Trace have `base_ns` added to their times."""

    def __init__(self, columns: EventColumns, base_ns: int) -> None:
        self._base_ns = base_ns
        text_ids = np.array([columns.names[text] for text in columns.texts], dtype=np.int64)
        self.names = tuple(columns.names)
        parts = columns.parts
        joined = (np.concatenate(column) for column in zip(*(parts or [_NO_ROWS]), strict=True))
        self._category, self._name, self.start_ns, self.dur_ns, self._thread, self._place = joined
        parts.clear()
        self._table = columns.tables()[self._category] if len(self._category) else self._category
        self._categories = list(columns.categories)
        self._values = {table: _joined(columns.values.pop(table, []), names) for table, names in FURTHER.items()}
        stated = self._values[EventTable.COLLECTIVE][1]
        stated |= {name: pick(text_ids, stated[name]) for name in COLLECTIVE_TEXTS}
        self._annotations()
        self._overheads()
        self._signals()

    def _signals(self) -> None:
        """Drop waits and signals of streams that were recorded as GPU ops."""
        if op_names.SIGNALS.isdisjoint(self.names):
            return
        rows = self.rows(EventTable.GPU)
        distinct, back = self._distinct(rows)
        works = np.array([op_names.is_work(category, name) for category, name in distinct], np.bool_)
        self.drop(rows[~works[back]])

    def _overheads(self) -> None:
        """Drop overhead that the profiler did not cause."""
        if _QUEUE_FULL in self.names:
            queue_full = self._name == self.names.index(_QUEUE_FULL)
            self._table[(self._table == EventTable.OVERHEAD) & queue_full] = EventTable.IGNORED

    def _annotations(self) -> None:
        """Move ranges that were recorded as operators to the annotations.

        These are PyTorch's own before torch 1.11, and the recorder's marks of the garbage collector.
        """
        is_range = np.array([name.startswith(_ANNOTATIONS) for name in self.names], dtype=np.bool_)
        if is_range.any():
            named_so = np.flatnonzero(is_range[self._name])
            self._table[named_so[self._table[named_so] == EventTable.CPU]] = EventTable.ANNOTATION

    def mtias(self) -> set[int]:
        """Return the devices that are Meta's MTIAs."""
        of_mtia = np.array([category.lower() == op_names.MTIA for category in self._categories], np.bool_)
        rows = self.rows(EventTable.GPU)
        rows = rows[of_mtia[self._category[rows]]] if of_mtia.any() else rows[:0]
        return set(self._aligned(EventTable.GPU, rows)["device"].tolist())

    def name(self, row: int) -> str:
        return str(self.names[self._name[row]])

    def work(self) -> Index:
        """Return the rows of all tables, except the device's copies of annotations."""
        works = np.ones(len(EventTable), dtype=np.bool_)
        works[[EventTable.IGNORED, EventTable.SPAN, EventTable.DEVICE_ANNOTATION]] = False
        return np.flatnonzero(works[self._table])

    def rows(self, table: EventTable) -> Index:
        """Return a table's rows, in the order of the file."""
        return np.flatnonzero(self._table == table)

    def forget_impossible_sizes(self) -> dict[str, int]:
        """Forget sizes that no GPU op can have moved, or whose sum exceeds 64 bits; return how many, by part."""
        rows = self.rows(EventTable.GPU)
        at, values = self._values[EventTable.GPU]
        place = np.searchsorted(at, rows)
        size, dur = values["bytes"][place], self.dur_ns[rows]
        # In a file with whole microseconds only, shorter ops have no duration.
        coarse = not ((self.start_ns[rows] % _US_NS).any() or (dur % _US_NS).any())
        longest_ns = dur + (_US_NS if coarse else 1)
        fast = np.flatnonzero(size // min(_FASTEST_BYTES_PER_NS.values()) > longest_ns)
        wrong = size > LARGEST_BYTES
        if len(fast):
            kind = self._kind(rows[fast], self._launch(rows[fast]))
            for limited, fastest in _FASTEST_BYTES_PER_NS.items():
                # Divide, because the product of a duration and a speed may overflow.
                wrong[fast] |= (kind == limited) & (size[fast] // fastest > longest_ns[fast])
        if np.maximum(size, 0)[~wrong].sum(dtype=np.float64) > _LARGEST_SUM:
            wrong = size >= 0
        values["bytes"][place[wrong]] = -1
        return self.parts(rows[wrong])

    def parts(self, rows: Index) -> dict[str, int]:
        """Return how many of some rows belong to each part of the recording (`overlapscope.trace.lost`)."""
        tables = self._table[rows]
        kinds = self._judged(rows[tables == EventTable.GPU])[:, 0]
        counts: Counter[str] = Counter()
        for kind, count in enumerate(np.bincount(kinds, minlength=len(Kind)).tolist()):
            counts[lost.PART_OF_KIND[Kind(kind)]] += count
        for table, count in enumerate(np.bincount(tables, minlength=len(EventTable)).tolist()):
            if table in _PARTS:
                counts[_PARTS[EventTable(table)]] += count
        return {part: count for part, count in counts.items() if count}

    def drop(self, rows: Index) -> None:
        """Remove rows from every table."""
        self._table[rows] = EventTable.IGNORED

    def table(self, kind: type[_Table], table: EventTable) -> _Table:
        """Return a table of a Trace whose columns are those that were collected."""
        return kind(names=self.names, **self._columns(kind, table, self._sorted(table)))

    @cached_property
    def calls(self) -> RuntimeCalls:
        """The calls, as soon as impossible ones have been dropped."""
        return self.table(RuntimeCalls, EventTable.RUNTIME)

    def gpu_ops(self) -> GpuOps:
        rows = self._sorted(EventTable.GPU)
        judged, launch = self._judged(rows), self._launch(rows)
        return GpuOps(
            names=self.names,
            **self._columns(GpuOps, EventTable.GPU, rows),
            kind=self._kind(rows, launch),
            launch=launch,
            source_kind=judged[:, 1].copy(),
            target_kind=judged[:, 2].copy(),
        )

    def _launch(self, rows: Index) -> I64:
        """Return the row in `calls` of the launch of GPU ops; -1 where not recorded."""
        correlation = self._aligned(EventTable.GPU, rows)["correlation"]
        return np.where(correlation > 0, locate(self.calls.correlation, correlation), -1)

    def _kind(self, rows: Index, launch: I64) -> I8:
        """Return the kinds of GPU ops, corrected by the devices that copies state and by the calls that launched them.

        A copy is a peer copy exactly if it states two different devices. If it does not state both, its name decides,
        or the call that launched it: ROCm names all copies between devices as it names those within a device.
        """
        kind, stated = self._judged(rows)[:, 0], self._aligned(EventTable.GPU, rows)
        source, target = stated["source_device"], stated["target_device"]
        called = pick(self.calls.named(op_names.states_peer_copy), launch, False)
        peers = np.where((source >= 0) & (target >= 0), source != target, called | (kind == Kind.P2P))
        within = among(kind, (Kind.OTHER, Kind.P2P))
        return np.where(within, np.where(peers, Kind.P2P, Kind.OTHER), kind).astype(np.int8)

    def collectives(self) -> Collectives:
        """Return the collectives that the remaining GPU ops state."""
        rows = self._sorted(EventTable.GPU)
        rows = rows[among(rows, self._values[EventTable.COLLECTIVE][0])]
        stated = self._columns(Collectives, EventTable.COLLECTIVE, rows)
        name_id = self._aligned(EventTable.COLLECTIVE, rows)["collective"].astype(np.int32)
        columns = self._columns(Collectives, EventTable.GPU, rows) | stated | {"name_id": name_id}
        return Collectives(names=self.names, **columns)

    def _columns(self, kind: type[TraceTable], table: EventTable, rows: Index) -> dict[str, Any]:
        """Return the columns of a table of a Trace, as far as they are known by its name for them."""
        start_ns = self.start_ns[rows] + self._base_ns
        columns = {
            "start_ns": start_ns,
            "end_ns": start_ns + self.dur_ns[rows],
            "name_id": self._name[rows],
            "place": self._place[rows],
            "thread": self._thread[rows],
            **self._aligned(table, rows),
        }
        return {
            name: columns[name].astype(dtype, copy=False) for name, dtype in dtypes(kind).items() if name in columns
        }

    def _judged(self, rows: Index) -> I8:
        """Return kind, source and target memory of GPU ops; each distinct (category, name) is judged once."""
        distinct, back = self._distinct(rows)
        judged = [(op_names.kind(*op), *op_names.memory_kinds(*op)) for op in distinct]
        return np.array(judged, np.int8).reshape(-1, 3)[back]

    def _distinct(self, rows: Index) -> tuple[list[tuple[str, str]], Index]:
        """Return the distinct (category, name) of some rows, and the place of each row's among them."""
        names = len(self.names)
        key = self._category[rows].astype(np.int64) * names + self._name[rows]
        distinct, back = numbered(key)
        return [(self._categories[each // names], self.names[each % names]) for each in distinct.tolist()], back

    def _sorted(self, table: EventTable) -> Index:
        """Return the table's rows by start, then longest first, then by content, whatever their order in the file."""
        rows = self.rows(table)
        start = self.start_ns[rows]
        # Files are nearly sorted by thread, which a stable sort exploits. Only ties need the other keys.
        order = np.argsort(start, kind="stable")
        rows, start = rows[order], start[order]
        tie = start[1:] == start[:-1]
        if tie.any():
            tied = np.flatnonzero(np.append(tie, False) | np.append(False, tie))
            equal = rows[tied]
            values = [value.view(np.int64) for value in self._aligned(table, equal).values()][::-1]
            # A Trace holds unsigned 32-bit streams, as some recorders write them, as signed numbers.
            held = [value.astype(np.int32) for value in values]
            keys = (self._rank_of_names(equal), *values, self._thread[equal], *held, -self.dur_ns[equal], start[tied])
            rows[tied] = equal[np.lexsort(keys)]
        return rows

    def _rank_of_names(self, rows: Index) -> Index:
        """Return the rank of each row's name by text, because the numbers of names depend on the file's order."""
        distinct, back = np.unique(self._name[rows], return_inverse=True)
        return np.argsort(np.argsort(np.array([self.names[number] for number in distinct.tolist()], np.object_)))[back]

    def _aligned(self, table: EventTable, rows: Index) -> dict[str, NDArray[Any]]:
        """Return the further columns of some of a table's rows, by name; none for other tables."""
        if table not in self._values:
            return {}
        at, values = self._values[table]
        place = np.searchsorted(at, rows)
        return {name: column[place] for name, column in values.items()}


def _joined(parts: list[Values], names: tuple[str, ...]) -> tuple[Index, dict[str, NDArray[Any]]]:
    """Return rows and further columns of all parts, with -1 for values that are not possible."""
    if not parts:
        return np.empty(0, np.intp), {name: np.empty(0, np.int64) for name in names}
    columns = {name: np.concatenate([values[name] for _, values in parts]) for name in names}
    for name in _VALID_RANGES.keys() & columns.keys():
        least, largest = _VALID_RANGES[name]
        columns[name][(columns[name] < least) | (columns[name] > largest)] = -1
    return np.concatenate([at for at, _ in parts]), columns
