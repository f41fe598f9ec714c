"""Host activity: the op, call and Python line around an instant of a thread."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import I32, Columns, mask_of, pick, quantile
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import EMPTY, I64, Bool, Intervals, Nesting, expand, outermost, union
from overlapscope.base.kept import kept
from overlapscope.base.marks import is_step_name
from overlapscope.trace import calls as call_kinds
from overlapscope.trace import op_names
from overlapscope.trace.model import HostEvents, Kind, Memory, RuntimeCalls, Trace

_PYTHON_LINE = r"(?s)(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)"
_SHOWN_LINE = r"(?P<file>.{1,2000}?)(:(?P<line>\d{1,7}) in |\((?P<frame_line>\d{1,7})\): )"
"""Place as `line_text` returns it: either its own form or a frame that is not in a file `*.py`."""
_LINE_IN_FUNCTION = r"(?s)(?P<file>.+):(?P<line>\d+) in (?P<function>.+)"
_LIBRARY = (
    r"(^|/)(torch|triton|jax|jaxlib|overlapscope/(recorder|commands)|importlib|threading\.py|contextlib\.py|functools\.py"
    r"|runpy\.py)(/|\(|$)|site-packages|dist-packages|/lib(64)?/python\d|^<"
)
MODULE = "nn.Module: "
"""Beginning of the names of frames that are calls of PyTorch's modules."""
_SLOW_FIRST = 10
_SHORTEST_FIRST_NS = 1_000_000
"""Minimum length of a first call: as a multiple of almost every later launch of the recording, and at least."""
_SHORTEST_FIRST_OP_NS = 10_000_000
"""Minimum length of an op that sets a library up. The profiler makes the first op of a thread take up to 3 ms."""
_SINGLE_PROCESS_LOADER = "SingleProcessDataLoaderIter"
"""Part of the names that PyTorch and torchdata give loaders that make batches on the thread that asks for them."""
_NO_ROWS = np.empty(0, np.int32)


class Blocking(Struct, frozen=True, eq=False):
    """Runtime calls in which the host waits, one row each, sorted by start."""

    row: I64
    allocation: Bool
    staging: Bool
    """True if the call is an upload from pageable memory or page-locking, in which the driver works on host memory."""

    @property
    def waits(self) -> I64:
        """Rows of the calls that wait for the GPU, rather than for memory."""
        return self.row[~self.allocation & ~self.staging]


@kept()
def find_blocking(trace: Trace) -> Blocking:
    """Return every blocking call of the program, without the profiler's own last synchronize.

    A copy call blocks by contract (`cudaMemcpy`) or because its host side is pageable (CUDA Runtime API, "API
    synchronization behavior"). If the memory kind is not recorded, it blocked if it returned only after its copy had
    ended.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    sync = call_kinds.synchronises(calls)
    profilers = _profilers_own_sync(trace, sync)
    if profilers >= 0:
        sync[profilers] = False
    allocation = call_kinds.allocates(calls)
    blocking_copy = call_kinds.copies_blocking(calls)
    copies = np.flatnonzero((ops.launch >= 0) & ops.is_copy)
    launch, host_side = ops.launch[copies], ops.host_memory[copies]
    waited = (host_side == Memory.UNKNOWN) & (calls.end_ns[launch] >= ops.end_ns[copies])
    pageable = np.zeros(len(calls), np.bool_)
    upload = ops.kind[copies] == Kind.H2D
    pageable[launch[(host_side == Memory.PAGEABLE) & upload]] = True
    # A download into pageable memory returns when the GPU has finished everything before it, like any wait.
    blocking_copy[launch[waited | (host_side == Memory.PAGEABLE) & ~upload]] = True
    pageable &= blocking_copy | call_kinds.copies_async(calls)
    pins = call_kinds.pins(calls)
    rows = np.flatnonzero(sync | allocation | blocking_copy | pageable)
    staging = (pageable | pins)[rows]
    return Blocking(rows.astype(np.int64), allocation[rows] & ~staging, staging)


def _profilers_own_sync(trace: Trace, sync: Bool) -> int:
    """Return the row of the device synchronize with which the profiler stops; -1 if there is none.

    It is the last call of all, and lies outside every step, CPU op and Python frame of the program.
    """
    calls = trace.runtime_calls
    if not sync.any():
        return -1
    row = int(np.flatnonzero(sync)[-1])
    if "DeviceSynchronize" not in calls.name(row) or row != int(np.argmax(calls.end_ns)):
        return -1
    at, thread = calls.start_ns[row : row + 1], calls.thread[row : row + 1]
    inside = [trace.cpu_ops, trace.annotations.take(trace.annotations.named(is_step_name))]
    if any(around(table, thread, at)[0] >= 0 for table in inside):
        return -1
    frame = around(trace.python_frames, thread, at)[0]
    return -1 if frame >= 0 and "synchronize" in trace.python_frames.name(int(frame)) else row


@kept()
def pinning(trace: Trace) -> HostEvents:
    """Return the CPU ops that page-lock memory: `pin_memory` allocates it and copies into it."""
    return trace.cpu_ops.take(trace.cpu_ops.named(lambda name: name in ("aten::pin_memory", "aten::_pin_memory")))


@kept()
def staging(trace: Trace) -> HostEvents:
    """Return the times in which XLA copied arrays from or to pinned memory on the host, or a launch waited for that.

    Such a launch went on when the copying ended.
    """
    ops = trace.cpu_ops
    stages = ops.take(ops.named(op_names.XLA_STAGES.__contains__))
    launches = ops.take(ops.named(op_names.XLA_LAUNCH.fullmatch))
    stages = stages.take(np.argsort(stages.end_ns, kind="stable"))
    last = np.searchsorted(stages.end_ns, launches.end_ns, side="right") - 1
    waited = np.flatnonzero(pick(stages.end_ns, last, 0) > launches.start_ns)
    last, launches = last[waited], launches.take(waited)
    begin = np.maximum(launches.start_ns, stages.start_ns[last])
    return HostEvents.joined([stages, replace(launches, start_ns=begin, end_ns=stages.end_ns[last])])


@kept()
def _kernel_launches(trace: Trace) -> tuple[I64, Bool]:
    """Return the calls that launched each kernel, by call, and a mask of those that launched one for the first time."""
    calls, ops = trace.runtime_calls, trace.gpu_ops
    launched = np.flatnonzero(ops.launch >= 0)
    launched = launched[call_kinds.launches_kernel(calls)[ops.launch[launched]]]
    launched = launched[np.argsort(ops.launch[launched], kind="stable")]
    of_kernel = ops.device[launched].astype(np.int64) * len(trace.names) + ops.name_id[launched]
    return ops.launch[launched], mask_of(np.unique(of_kernel, return_index=True)[1], len(launched))


@kept()
def first_calls(trace: Trace) -> RuntimeCalls:
    """Return the calls that took far longer than the recording's launches because a kernel was used for the first time.

    The first use loads the kernel's code, and may compile it. Other long calls of the same op belong to it: libraries
    set themselves up, or try which algorithm is fastest.
    """
    calls, (launch, first) = trace.runtime_calls, _kernel_launches(trace)
    length = calls.end_ns - calls.start_ns
    long = np.flatnonzero(length >= _long_first_ns(length[launch[~first]]))
    loads = (call_kinds.loads_code(calls) | mask_of(launch[first], len(calls)))[long]
    op = op_of(trace, long)
    return calls.take(long[loads | (op >= 0) & among(op, op[loads])])


@kept()
def first_ops(trace: Trace) -> HostEvents:
    """Return the CPU ops that used a kernel for the first time, and took far longer than others and later such ops.

    Libraries set themselves up there, in part without any call of the runtime.
    """
    ops, (launch, first) = trace.cpu_ops, _kernel_launches(trace)

    def of_launches(launch: I64) -> I64:
        op = op_of(trace, launch)
        return distinct(op[op >= 0])

    length, rows = ops.end_ns - ops.start_ns, of_launches(launch[first])
    rows = rows[length[rows] >= _SHORTEST_FIRST_OP_NS]
    if not len(rows):
        return ops.take(rows)
    later = of_launches(launch[~first])
    rows = rows[length[rows] >= _long_first_ns(length[later])]
    alike = (length[later[(ops.name_id[later] == ops.name_id[row]) & (later > row)]] for row in rows.tolist())
    is_first = [length[row] >= _long_first_ns(others) for row, others in zip(rows.tolist(), alike, strict=True)]
    return ops.take(rows[np.array(is_first, np.bool_)])


def _long_first_ns(later_ns: I64) -> float:
    """Return the minimum length of a first use, given lengths of later ones."""
    return max(_SLOW_FIRST * quantile(later_ns, 0.9) if len(later_ns) else 0, _SHORTEST_FIRST_NS)


@kept()
def loading(trace: Trace) -> HostEvents:
    """Return the annotations of a DataLoader's next by PyTorch (torch/utils/data/dataloader.py)."""
    notes = trace.annotations
    return notes.take(notes.named(lambda name: name.startswith("enumerate(DataLoader)#") and "__next__" in name))


def without_workers(loads: HostEvents) -> HostEvents:
    """Return those of loaders without workers; none if loaders with workers take most of the time."""
    alone, length_ns = loads.named(lambda name: _SINGLE_PROCESS_LOADER in name), loads.end_ns - loads.start_ns
    return loads.take(alone & bool(2 * length_ns[alone].sum() >= length_ns.sum()))


def around(table: HostEvents, thread: I64, at: I64) -> I64:
    """Return the row of the innermost event of each thread around each instant; -1 if there is none."""
    return _on_each_thread(
        table, thread, at, lambda id, at: pick(rows_of(table, id), _nesting(table, id).innermost(at))
    )


@kept()
def _op_of_each_call(trace: Trace) -> I64:
    return around(trace.cpu_ops, trace.runtime_calls.thread, trace.runtime_calls.start_ns)


def op_of(trace: Trace, call: I64) -> I64:
    """Return the row of the innermost CPU op around each of some runtime calls; -1 if there is none."""
    return pick(_op_of_each_call(trace), call)


def outermost_around(table: HostEvents, thread: I64, at: I64) -> I64:
    """Return the row of the outermost event of each thread around each instant; -1 if there is none."""

    def find(id: int, at: I64) -> I64:
        rows = rows_of(table, id)
        return pick(rows, outermost(table.start_ns[rows], table.end_ns[rows], at))

    return _on_each_thread(table, thread, at, find)


def _on_each_thread(table: HostEvents, thread: I64, at: I64, find: Callable[[int, I64], I64]) -> I64:
    """Return what a function finds in a table at the instants of each thread, given its id and the instants."""
    result = np.full(len(at), -1, np.int64)
    for id, of_thread in rows_by(thread) if len(table) else ():
        result[of_thread] = find(id, at[of_thread])
    return result


def last_before(calls: RuntimeCalls, rows: I64, thread: I64, at: I64) -> I64:
    """Return the last of some calls that begins before each instant, on its thread or else on any; -1 if none does."""
    last = pick(rows, np.searchsorted(calls.start_ns[rows], at) - 1)
    for id, which in rows_by(thread):
        of_thread = rows[calls.thread[rows] == id]
        on_thread = pick(of_thread, np.searchsorted(calls.start_ns[of_thread], at[which]) - 1)
        last[which] = np.where(on_thread >= 0, on_thread, last[which])
    return last


@kept()
def rows_by_thread(table: HostEvents) -> dict[int, I32]:
    """Return the rows of each thread, both in ascending order."""
    # The rows are kept as long as the table, and half the width saves half the memory.
    return {thread: rows.astype(np.int32) for thread, rows in rows_by(table.thread)}


def rows_of(table: HostEvents, thread: int) -> I32:
    """Return the rows of a thread in ascending order."""
    return rows_by_thread(table).get(thread, _NO_ROWS)


@kept()
def _nesting(table: HostEvents, thread: int) -> Nesting:
    """Return the events of a thread, prepared for look-up."""
    rows = rows_of(table, thread)
    if len(rows) == len(table):
        # All rows are of this thread, so no copy of the columns is needed.
        return Nesting(table.start_ns, table.end_ns)
    return Nesting(table.start_ns[rows], table.end_ns[rows])


def on_thread(table: HostEvents, thread: int) -> Intervals:
    """Return the times in which a thread was inside any of the given events."""
    rows = rows_of(table, thread)
    return union(table.start_ns[rows], table.end_ns[rows]) if len(rows) else EMPTY


def inside_named(trace: Trace, name: str, thread: I64, at: I64) -> Bool:
    """Return whether each instant of a thread lies inside a CPU op or range of that name, at any depth."""
    named = (table.take(table.named(lambda other: other == name)) for table in (trace.cpu_ops, trace.annotations))
    in_op, in_range = (outermost_around(table, thread, at) >= 0 for table in named)
    return in_op | in_range


class ShownLine(Struct, frozen=True):
    """Parts of a line such as `train.py:12 in step`, as text."""

    file: str
    line: str
    function: str


class Where(Struct, frozen=True, kw_only=True):
    """A place in the program. Fields are None where the trace doesn't state them."""

    op: str | None = None
    """Innermost CPU op."""
    call: str | None = None
    """Runtime call."""
    line: str | None = None
    """Python line."""


class Sites(Columns, frozen=True):
    """Places in the program as rows of `Trace.names`; -1 where the trace doesn't state them."""

    op: I64
    call: I64
    line: I64
    """Frame of the user's own code rather than a library's, if there is one."""

    def site_at(self, trace: Trace, row: int) -> Where:
        """Return one of them as text."""
        op, call, line = (int(column[row]) for column in (self.op, self.call, self.line))
        return Where(op=name_text(trace, op), call=name_text(trace, call), line=line_text(trace, line))


def sites(trace: Trace, call: I64, thread: I64, at: I64) -> Sites:
    """Return the sites of instants on threads. `call` has rows of `Trace.runtime_calls`, -1 for none."""
    return Sites(
        op_ids_around(trace, thread, at), pick(trace.runtime_calls.name_id, call), line_ids_around(trace, thread, at)
    )


def sites_of_calls(trace: Trace, call: I64) -> Sites:
    """Return the sites of runtime calls; an empty site for -1."""
    calls = trace.runtime_calls
    line = line_ids_around(trace, pick(calls.thread, call), pick(calls.start_ns, call))
    return Sites(pick(trace.cpu_ops.name_id, op_of(trace, call)), pick(calls.name_id, call), line)


@kept()
def launches_graphs(trace: Trace) -> bool:
    """Return whether a recording has launches of graphs."""
    return bool(call_kinds.launches_graph(trace.runtime_calls).any())


@kept()
def modules_called(trace: Trace) -> HostEvents:
    """Return the calls of PyTorch's modules."""
    return trace.python_frames.take(trace.python_frames.named(lambda name: name.startswith(MODULE)))


def op_ids_around(trace: Trace, thread: I64, at: I64) -> I64:
    """Return the name of the innermost CPU op around each instant, as a row of `Trace.names`; -1 if none."""
    return pick(trace.cpu_ops.name_id, around(trace.cpu_ops, thread, at))


def line_ids_around(trace: Trace, thread: I64, at: I64) -> I64:
    """Return the name of the Python frame around each instant, as a row of `Trace.names`; -1 if none."""
    frames = trace.python_frames
    frames_of_program = _own_frames(frames)
    line = pick(frames_of_program.name_id, around(frames_of_program, thread, at))
    rest = np.flatnonzero(line < 0)
    if len(rest) and len(frames):
        line[rest] = pick(frames.name_id, around(frames, thread[rest], at[rest]))
    return line


def place_edges(trace: Trace, thread: int, windows: Intervals) -> I64:
    """Return the instants in some windows, ascending, at which a thread's op, call or line (`sites`) may change."""
    frames = _own_frames(trace.python_frames)
    if not len(rows_of(frames, thread)):
        frames = trace.python_frames
    tables = [(table, rows_of(table, thread)) for table in (trace.cpu_ops, trace.runtime_calls, frames)]
    edges = [np.empty(0, np.int64)]
    for table, rows in tables:
        start, end = table.start_ns[rows], table.end_ns[rows]
        # Starts are in order, so that each window is looked up among them; each end is looked up among the windows.
        begun = pick(windows.starts, np.searchsorted(windows.ends, end, side="right"), np.iinfo(np.int64).max) <= end
        edges += [start[expand(*np.searchsorted(start, windows))[1]], end[begun]]
    return distinct(np.concatenate(edges))


def name_text(trace: Trace, name_id: int) -> str | None:
    """Return a name for a report; None for -1."""
    return trace.names[name_id] if name_id >= 0 else None


def line_text(trace: Trace, name_id: int) -> str | None:
    """Return a frame's name for a report; None for -1.

    A frame in Kineto's form becomes `file.py:12 in function`.
    """
    name = name_text(trace, name_id)
    match = re.fullmatch(_PYTHON_LINE, name) if name is not None else None
    return f"{match['file']}:{match['line']} in {match['function']}" if match else name


def file_and_line(where: str) -> tuple[str, int]:
    """Return the file and the line of a place that `line_text` returned; an empty name if it has none."""
    match = re.match(_SHOWN_LINE, where)
    return (match["file"], max(1, int(match["line"] or match["frame_line"]))) if match else ("", 1)


def shown_line(where: str) -> ShownLine | None:
    """Return the parts of a line as `line_text` returns it; None for a name in another form."""
    match = re.fullmatch(_LINE_IN_FUNCTION, where)
    return ShownLine(**match.groupdict()) if match else None


def own_pieces(trace: Trace, thread: int) -> tuple[I64, I64, I64]:
    """Return when a thread was in the user's code, cut where its innermost frame changes.

    Returns:
        Starts and ends of the pieces, ascending, and the row of `Trace.python_frames` of each.
    """
    frames = trace.python_frames
    rows = np.flatnonzero(frames.named(_is_own) & (frames.thread == thread))
    starts, ends, innermost = innermost_pieces(frames.start_ns[rows], frames.end_ns[rows])
    return starts, ends, rows[innermost]


def innermost_pieces(starts: I64, ends: I64) -> tuple[I64, I64, I64]:
    """Return start, end and row of the pieces in which an interval is the innermost, of those sorted for `Nesting`."""
    edges = distinct(np.concatenate([starts, ends]))
    innermost = Nesting(starts, ends).innermost(edges)[:-1]
    inside = innermost >= 0
    return edges[:-1][inside], edges[1:][inside], innermost[inside]


@kept()
def _own_frames(frames: HostEvents) -> HostEvents:
    """Return the frames of the user's own code, neither PyTorch's nor another library's."""
    return frames.take(frames.named(_is_own))


def _is_own(frame: str) -> bool:
    match = re.fullmatch(_PYTHON_LINE, frame)
    return match is not None and not is_library(match["file"])


def is_library(file: str) -> bool:
    """Return whether a file of Python is PyTorch's, another library's or generated, rather than the user's own.

    Kineto states paths from an entry of `sys.path`, so those of the standard library begin with a module's name.
    """
    return re.search(_LIBRARY, file) is not None or re.split(r"[./]", file)[0] in sys.stdlib_module_names
