"""The hazard checker without a GPU: its books against brute force and against torch's own sanitizer, what it tells,
and that it leaves the program as it is. `test_hazards_gpu.py` runs real hazards."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from overlapscope.errors import UsageError
from overlapscope.recorder.hazards import Hazard, HazardChecker, Place, describe
from overlapscope.recorder.hazards import checker as checker_module
from overlapscope.recorder.hazards.bookkeeping import Bookkeeping
from overlapscope.recorder.hazards.findings import Findings
from overlapscope.recorder.hazards.host_memory import HostMemory
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.launches import HazardMode
from overlapscope.recorder.hazards.lines import UNKNOWN, Line, UserCode
from overlapscope.recorder.hazards.memory import Region, Touch, covers, interval, overlap, strided
from overlapscope.recorder.hazards.operators import arguments, touch
from overlapscope.recorder.hazards.sync_events import SyncEvents, new_clock
from tests.support import forked

# Memory ------------------------------------------------------------------------------------------------------------

_FEW = st.integers(1, 4)


def bytes_of(start: int, sizes: list[int], strides: list[int], item: int) -> set[int]:
    """Every byte that a strided tensor's elements lie in."""
    indices = itertools.product(*map(range, sizes))
    offsets = [sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in indices]
    return {start + offset * item + byte for offset in offsets for byte in range(item)}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    dims = draw(st.integers(0, 3))
    sizes = draw(st.lists(_FEW, min_size=dims, max_size=dims))
    strides = draw(st.lists(st.integers(0, 12), min_size=dims, max_size=dims))
    return draw(st.integers(0, 30)), sizes, strides, draw(st.sampled_from([1, 2, 4]))


@given(layouts(), st.integers(0, 60), st.integers(1, 40))
def test_a_strided_tensor_meets_an_interval_just_where_they_share_a_byte(
    layout: tuple[int, list[int], list[int], int], start: int, size: int
) -> None:
    shares = not bytes_of(*layout).isdisjoint(range(start, start + size))
    assert overlap(strided(*layout), interval(start, size)) == shares
    assert overlap(interval(start, size), strided(*layout)) == shares


@given(layouts(), layouts())
def test_two_strided_tensors_are_said_to_meet_only_where_they_do(
    a: tuple[int, list[int], list[int], int], b: tuple[int, list[int], list[int], int]
) -> None:
    if overlap(strided(*a), strided(*b)):
        assert bytes_of(*a) & bytes_of(*b)


@given(layouts(), st.integers(0, 60), st.integers(1, 200))
def test_an_interval_covers_a_tensor_just_where_it_holds_all_its_bytes(
    layout: tuple[int, list[int], list[int], int], start: int, size: int
) -> None:
    assert covers(interval(start, size), strided(*layout)) == (bytes_of(*layout) <= set(range(start, start + size)))


def test_a_transposed_matrix_is_one_interval_and_a_column_is_not() -> None:
    matrix = torch.zeros(3, 5)
    whole, transposed, column = touch(matrix), touch(matrix.t()), touch(matrix[:, 1])
    assert whole is not None and transposed is not None and column is not None
    assert whole.region == transposed.region == interval(matrix.data_ptr(), 60)
    assert column.region == Region(matrix.data_ptr() + 4, matrix.data_ptr() + 48, 4, ((3, 20),))
    assert column.base == whole.base
    assert touch(matrix[:0]) is None


# The books against brute force ---------------------------------------------------------------------------------------

STREAMS, EVENTS, SLOTS = (0, 7, 8), (100, 101), (0, 4, 8)
DEVICE, HOST = 1000, 5000
HOST_KINDS = ("read-while-copied", "overwritten-while-copied", "freed-while-copied")
COPIES, FREES = ("d2h", "h2d"), ("free", "unpin")


class Step(Struct, frozen=True):
    """One thing that a made-up program does."""

    what: str
    stream: int = 0
    event: int = 0
    start: int = 0
    size: int = 4
    write: bool = False


_WHAT = ("use", "use", "use", *COPIES, "host", "host", *FREES, "record", "wait", "event_sync", "stream_sync", "sync")
_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(_WHAT),
        st.sampled_from(STREAMS),
        st.sampled_from(EVENTS),
        st.sampled_from(SLOTS),
        st.sampled_from([4, 6]),
        st.booleans(),
    ),
    max_size=40,
)


class Model:
    """Happens-before as a graph: what is reachable is ordered. Slow and plain."""

    def __init__(self, program: list[Step]) -> None:
        self.program = program
        self.before: list[set[int]] = []
        """For each step the steps that are certain to be over when it begins."""
        last: dict[int, set[int]] = {stream: set() for stream in STREAMS}
        recorded: dict[int, set[int]] = {event: set() for event in EVENTS}
        host: set[int] = set()
        for index, step in enumerate(program):
            self.before.append(set(host))
            if step.what in ("use", *COPIES):
                self.before[-1] = host | last[step.stream]
                last[step.stream] = self.before[-1] | {index}
            elif step.what == "record":
                recorded[step.event] = host | last[step.stream]
            elif step.what == "wait":
                last[step.stream] = last[step.stream] | recorded[step.event]
            elif step.what == "event_sync":
                host = host | recorded[step.event]
            elif step.what == "stream_sync":
                host = host | last[step.stream]
            elif step.what == "sync":
                host = host.union(*last.values())

    def host_races(self) -> set[tuple[int, int]]:
        """Copies and host accesses of which nothing orders the second behind the first."""
        return {
            (early, late)
            for late, access in enumerate(self.program)
            for early in self._copies_under_way(late)
            if access.what in ("host", "unpin")
            and meet(self.program[early], access)
            and (access.write or access.what == "unpin" or self.program[early].what == "d2h")
        }

    def _copies_under_way(self, now: int) -> Iterator[int]:
        """Of equal copies the latest, which stands for those before it."""
        seen = set()
        freed: list[Step] = []
        for early in reversed(range(now)):
            step = self.program[early]
            key = (step.what, step.stream, step.start, step.size)
            if step.what in FREES:
                freed.append(step)
            if step.what in COPIES and key not in seen:
                seen.add(key)
                if early not in self.before[now] and not any(meet(step, gone) for gone in freed):
                    yield early

    def first_race_on_device(self) -> int | None:
        """The first launch that is not ordered behind one before it that it must not meet."""
        for late, b in enumerate(self.program):
            for early, a in enumerate(self.program[:late]):
                must_wait = a.what == b.what == "use" and meet(a, b) and (a.write or b.write)
                if must_wait and early not in self.before[late]:
                    return late
        return None


def meet(a: Step, b: Step) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size


class Books:
    """The real books, fed with a made-up program; a step's number is its line."""

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock or new_clock()
        self.findings = Findings(code=lambda file, line: f"step {line}")
        self.books = Bookkeeping(self.clock, self.findings)

    def run(self, program: list[Step]) -> Books:
        for number, step in enumerate(program):
            self.do(step, number)
        return self

    def do(self, step: Step, number: int) -> None:
        line = Line("program.py", number)
        on_device = Touch(DEVICE, interval(DEVICE + step.start, step.size), "float32[1]")
        on_host = Touch(HOST, interval(HOST + step.start, step.size), "float32[1]")
        if step.what == "use":
            touched = ([], [on_device]) if step.write else ([on_device], [])
            self.books.launched(step.stream, touched[0], touched[1], line)
        elif step.what == "d2h":
            self.books.copy_issued("d2h", self.books.launched(step.stream, (), (), line), on_host)
        elif step.what == "h2d":
            self.books.copy_issued("h2d", self.books.launched(step.stream, (), (), line), on_host)
        elif step.what == "host":
            self.books.host_accessed_now(on_host.region, line, write=step.write)
        elif step.what == "free":
            self.books.host_freed(on_host.region)
        elif step.what == "unpin":
            self.books.host_unpinned(on_host.region, line)
        elif step.what == "record":
            self.clock.record_state(step.event, step.stream)
        elif step.what == "wait":
            self.clock.stream_wait_for_event(step.stream, step.event)
        elif step.what == "event_sync":
            self.clock.all_streams_wait_for_event(step.event)
        elif step.what == "stream_sync":
            self.clock.all_streams_wait_for_stream(step.stream)
        elif step.what == "sync":
            self.clock.sync_all_streams()

    def races(self, *kinds: str) -> set[tuple[int, int]]:
        return {(h.first.line, h.second.line) for h in self.findings.hazards if h.kind in kinds}


@settings(max_examples=500, deadline=None)
@given(_STEPS)
def test_host_races_are_those_of_a_graph_of_what_happens_before_what(program: list[Step]) -> None:
    assert Books().run(program).races(*HOST_KINDS) == Model(program).host_races()


@settings(max_examples=500, deadline=None)
@given(_STEPS)
def test_the_first_race_between_streams_is_that_of_the_graph(program: list[Step]) -> None:
    found = Books().run(program).races("stream-without-wait")
    assert min((late for _, late in found), default=None) == Model(program).first_race_on_device()


@settings(max_examples=500, deadline=None)
@given(_STEPS)
def test_launches_race_with_the_streams_that_torchs_sanitizer_names(program: list[Step]) -> None:
    """On whole tensors: it cannot tell whether views meet."""
    # Imported here: it makes a sanitizer that has to do with every GPU program of this process from then on.
    from torch.cuda import _sanitizer

    theirs = _sanitizer.EventHandler()
    ours = Books(theirs.syncs)
    for number, step in enumerate(replace(step, size=4) for step in program):
        if step.what in ("host", *COPIES, *FREES):
            continue
        errors: list[Any] = []
        if step.what == "use":
            slot = {step.start}
            reads, writes = (set(), slot) if step.write else (slot, set())
            errors = theirs._handle_kernel_launch(step.stream, reads, writes, set(), "", {step.start: []})
        before = ours.races("stream-without-wait")
        ours.do(step, number)
        named = {program[early].stream for early, _ in ours.races("stream-without-wait") - before}
        assert named == {error.previous_access.stream for error in errors}


def test_thousands_of_copies_that_nobody_waits_for_are_all_remembered_and_finished_ones_are_not() -> None:
    books = Books()
    for number in range(3000):
        books.do(Step("d2h", 7, start=8 * number), number)
    books.do(Step("host", start=8 * 1234), 5000)
    assert books.races(*HOST_KINDS) == {(1234, 5000)}
    books.do(Step("sync"), 0)
    for number in range(5000):
        books.do(Step("d2h", 7, start=8 * number), number)
        books.do(Step("stream_sync", 7), 0)
    assert len(books.books.copies._copies) < 200


def test_a_use_of_one_chunk_does_not_race_with_another_chunks_but_with_the_whole() -> None:
    program = [Step("use", 7, start=0, write=True), Step("use", 8, start=4, write=True), Step("use", 0, size=8)]
    assert Books().run(program).races("stream-without-wait") == {(0, 2), (1, 2)}


def test_what_a_write_leaves_of_an_earlier_one_is_still_watched() -> None:
    program = [
        Step("use", 7, start=0, size=6, write=True),
        Step("record", 7),
        Step("wait", 8),
        Step("use", 8, start=4, write=True),
        Step("use", 0, start=0),
    ]
    assert Books().run(program).races("stream-without-wait") == {(0, 4)}


def test_memory_that_was_freed_has_no_past() -> None:
    books = Books().run([Step("use", 7, write=True)])
    books.books.uses.forget(DEVICE)
    books.do(Step("use", 8, write=True), 1)
    assert books.findings.hazards == ()


# What is told ---------------------------------------------------------------------------------------------------------


def test_a_pair_of_lines_is_told_once_with_a_count() -> None:
    books = Books()
    for _ in range(3):
        books.do(Step("d2h", 7), 1)
        books.do(Step("host"), 2)
    (hazard,) = books.findings.hazards
    assert hazard == Hazard(
        kind="read-while-copied",
        first=Place("program.py", 1, "step 1", "copies into it"),
        second=Place("program.py", 2, "step 2", "reads it"),
        tensor="float32[1]",
        streams=("stream 0x7",),
        missing="synchronize() of the stream of program.py:1, or of an event recorded behind the copy, "
        "before program.py:2",
        count=3,
    )


def test_a_hazard_on_the_default_stream_names_the_call_that_is_missing() -> None:
    (hazard,) = Books().run([Step("h2d"), Step("host", write=True)]).findings.hazards
    assert hazard.kind == "overwritten-while-copied" and hazard.streams == ("the default stream",)
    assert hazard.missing.startswith("torch.cuda.default_stream().synchronize(), or ")


def test_a_race_between_streams_names_the_wait_that_is_missing() -> None:
    first, second = Books().run([Step("use", 0, write=True), Step("use", 7)]), Books()
    second.run([Step("use", 7), Step("use", 0, write=True)])
    (from_default,), (from_side,) = first.findings.hazards, second.findings.hazards
    assert from_default.missing == (
        "torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()) before program.py:1"
    )
    assert from_side.missing == (
        "torch.cuda.current_stream().wait_stream(side) before program.py:1, where side is the stream of program.py:0"
    )
    assert from_side.first.does == "reads it on stream 0x7"
    assert from_side.second.does == "writes it on the default stream"


def test_a_description_is_a_few_lines_and_harmless() -> None:
    hazard = Hazard(
        kind="read-while-copied",
        first=Place("a\x1b[31m.py", 3, "host = x.to('cpu',\u202e non_blocking=True)", "copies into it"),
        second=Place("", 0, "", "reads it"),
        tensor="float32[2]\r",
        streams=("stream 0x7",),
        missing="synchronize()",
        count=2,
    )
    assert describe(hazard).split("\n") == [
        "read-while-copied, 2 times: a host tensor is read while a copy may still be writing it",
        "  a\\x1b[31m.py:3  copies into it",
        "      host = x.to('cpu',\\u202e non_blocking=True)",
        "  code outside Python  reads it",
        "    tensor: float32[2]\\r, on stream 0x7",
        "    missing: synchronize()",
    ]


def test_the_line_is_the_innermost_that_is_not_a_librarys(tmp_path: Path) -> None:
    library, program = tmp_path / "lib" / "library.py", tmp_path / "library_user.py"
    for path, source in (
        (library, "def call(f):\n    return f()\n"),
        (program, "def run(call, f):\n    return call(f)\n"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    names: dict[str, Any] = {}
    for path in (library, program):
        exec(compile(path.read_text(), str(path), "exec"), names)
    user_code = UserCode([str(tmp_path / "lib"), str(Path(__file__).parent)])
    look = lambda: user_code.line(sys._getframe())  # noqa: E731
    assert names["run"](names["call"], look) == Line(str(program), 2)


def test_a_thread_without_a_line_of_its_own_gets_that_of_the_one_that_waits_for_it() -> None:
    user_code, lines = UserCode([]), []
    thread = threading.Thread(target=lambda: lines.append(user_code.line(None)))
    thread.start()
    thread.join()
    (line,) = lines
    assert line.file == __file__


def fail(error: Exception) -> None:
    raise AssertionError from error


# The journal ----------------------------------------------------------------------------------------------------------


def test_a_journal_makes_its_calls_in_order_even_those_noted_meanwhile() -> None:
    journal, done = Journal(fail), []

    def first() -> None:
        journal.note(lambda: done.append("third"))
        journal.write_up()
        done.append("first")

    journal.note(first)
    journal.note(lambda: done.append("second"))
    journal.write_up()
    assert done == ["first", "second", "third"]


def test_a_journal_that_fails_says_so_and_takes_no_more() -> None:
    errors: list[Exception] = []
    journal = Journal(errors.append)
    journal.note(lambda: 1 / 0)
    journal.note(lambda: pytest.fail("it is closed"))
    journal.write_up()
    journal.note(lambda: pytest.fail("it is closed"))
    journal.write_up()
    assert [type(error) for error in errors] == [ZeroDivisionError] and not journal.is_open


def test_a_journal_is_written_up_even_where_no_operator_runs() -> None:
    journal, done = Journal(fail), []
    for number in range(5000):
        journal.note(lambda number=number: done.append(number))  # type: ignore[misc]
    assert len(done) > 3000 and done == list(range(len(done)))


# What torch tells -----------------------------------------------------------------------------------------------------

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "used", "writes_output"),
    [
        (aten.add.Tensor, [("self", False), ("other", False)], True),
        (aten.add_.Tensor, [("self", True), ("other", False)], False),
        (aten.add.out, [("self", False), ("other", False), ("out", True)], False),
        (aten.copy_.default, [("self", True), ("src", False)], False),
        (aten._foreach_copy_.default, [("self", True), ("src", False)], False),
        (aten._to_copy.default, [("self", False)], True),
        (aten._local_scalar_dense.default, [("self", False)], True),
        (aten.cat.default, [("tensors", False)], True),
        (aten.index.Tensor, [("self", False), ("indices", False)], True),
        (aten.view.default, [], False),
        (aten.split.Tensor, [], False),
        (aten._unsafe_view.default, [], False),
        (aten.transpose_.default, [], False),
        (aten.resize_.default, [], False),
        (aten.record_stream.default, [], False),
        (aten.empty.memory_format, [], False),
        (aten.new_empty.default, [], False),
        (aten.empty_like.default, [], False),
        (aten.zeros_like.default, [], True),
        (aten.new_zeros.default, [], True),
        (aten.zeros.default, [], True),
    ],
)
def test_an_operators_schema_tells_what_it_reads_and_writes(
    operator: Any, used: list[tuple[str, bool]], writes_output: bool
) -> None:
    found = arguments(operator)
    assert [(name, write) for _, name, write in found.used] == used and found.writes_output == writes_output


def test_torchs_reports_of_events_reach_the_clock_in_their_order() -> None:
    clock, journal = new_clock(), Journal(fail)
    renewed: list[int] = []
    events = SyncEvents(journal, clock, renewed.append)
    events.start()
    try:
        clock.update_seq_num(7, 1)
        _gpu_trace.EventRecordCallbacks.fire_callbacks(100, 7)
        _gpu_trace.EventWaitCallbacks.fire_callbacks(100, 8)
        _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(4096)
        journal.write_up()
        assert clock.is_ordered_after(8, 1, 7) and not clock.is_ordered_after(0, 1, 7)
        _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(100)
        journal.write_up()
        assert clock.host_sync_state[7] == 1 and clock.is_ordered_after(0, 1, 7)
    finally:
        events.stop()
    _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(8192)
    journal.write_up()
    assert renewed == [4096]


def test_the_sanitizer_that_torch_makes_on_import_is_not_left_behind(tmp_path: Path) -> None:
    code = """
import torch
from torch.cuda import _gpu_trace
from overlapscope.recorder.hazards import HazardChecker
checker = HazardChecker()
checker.start()
from torch.cuda._sanitizer import EventHandler
for name, registry in vars(_gpu_trace).items():
    for callback in getattr(registry, "callback_list", ()):
        assert not isinstance(getattr(callback, "__self__", None), EventHandler), name
"""
    done = forked.run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


class HostBooks:
    """Notes what `HostMemory` tells the books."""

    def __init__(self) -> None:
        self.real = Books()
        self.journal = Journal(fail)
        self.memory = HostMemory(self.real.books, self.journal, UserCode([]))

    def copy_to(self, tensor: torch.Tensor) -> None:
        """As if a copy were on its way into it."""
        memory = touch(tensor)
        assert memory is not None
        books = self.real.books
        books.copy_issued("d2h", books.launched(7, (), (), UNKNOWN), memory._replace(tensor=""))
        self.memory.watch(tensor)

    def kinds(self) -> list[str]:
        self.journal.write_up()
        return [hazard.kind for hazard in self.real.findings.hazards]


def test_memory_that_torch_pinned_may_be_freed_under_a_copy() -> None:
    books, tensor = HostBooks(), torch.zeros(4)
    books.copy_to(tensor)
    view = tensor[1:]
    del tensor
    books.journal.write_up()
    assert books.real.books.copies
    del view
    assert books.kinds() == [] and not books.real.books.copies


def test_memory_that_was_registered_must_not_be_freed_under_a_copy() -> None:
    books, tensor = HostBooks(), torch.zeros(4)
    books.memory.registered(tensor.data_ptr(), 16)
    books.copy_to(tensor)
    del tensor
    assert books.kinds() == ["freed-while-copied"]


def test_memory_must_not_be_unregistered_under_a_copy() -> None:
    books, tensor = HostBooks(), torch.zeros(4)
    books.memory.registered(tensor.data_ptr(), 16)
    books.copy_to(tensor)
    books.memory.unregistered(tensor.data_ptr())
    assert books.kinds() == ["freed-while-copied"]


def test_an_array_must_not_be_freed_under_a_copy_but_a_tensor_that_borrows_its_memory_may() -> None:
    books, array = HostBooks(), np.zeros((4, 4), np.float32)
    books.memory.registered(array.ctypes.data, array.nbytes)
    part = array[1:3]
    tensor = torch.from_numpy(part)
    books.memory.watch_array(part)
    books.copy_to(tensor)
    del tensor, part
    assert books.kinds() == [] and books.real.books.copies
    del array
    assert books.kinds() == ["freed-while-copied"]


ACCESSES: list[tuple[Callable[[torch.Tensor], object], str | None]] = [
    (lambda host: host.sum(), "read-while-copied"),
    (lambda host: host[2].item(), "read-while-copied"),
    (lambda host: torch.cat([torch.ones(1), host]), "read-while-copied"),
    (lambda host: torch.ones(4).copy_(host), "read-while-copied"),
    (lambda host: host.numpy(), "read-while-copied"),
    (np.asarray, "read-while-copied"),
    (np.from_dlpack, "read-while-copied"),
    (lambda host: host.tolist(), "read-while-copied"),
    (pickle.dumps, "read-while-copied"),
    (lambda host: torch.save(host, io.BytesIO()), "read-while-copied"),
    (copy.deepcopy, "read-while-copied"),
    (lambda host: host.add_(1), "overwritten-while-copied"),
    (lambda host: host.fill_(1), "overwritten-while-copied"),
    (lambda host: host.copy_(torch.ones(4)), "overwritten-while-copied"),
    (lambda host: torch.add(torch.ones(4), 1, out=host), "overwritten-while-copied"),
    (lambda host: host.__setitem__(slice(1, 3), 2), "overwritten-while-copied"),
    (lambda host: host.view(2, 2).t()[1:].shape, None),
    (torch.empty_like, None),
    (lambda host: host.new_zeros(3), None),
    (lambda host: host.data_ptr(), None),
    (lambda host: torch.ones(4).sum(), None),
]


@pytest.mark.parametrize(("access", "kind"), ACCESSES)
def test_an_access_of_the_hosts_is_noticed_while_a_copy_is_under_way(
    access: Callable[[torch.Tensor], object], kind: str | None
) -> None:
    host = torch.zeros(4)
    memory = touch(host)
    checker = HazardChecker()
    checker.start()
    assert memory is not None
    books = checker.books
    books.copy_issued("d2h", books.launched(7, (), (), UNKNOWN), memory)
    access(host)
    checker.stop()
    assert [hazard.kind for hazard in checker.hazards] == ([kind] if kind else [])
    for hazard in checker.hazards:
        assert hazard.second.file == __file__ and "host" in hazard.second.code


# The program is left as it is -----------------------------------------------------------------------------------------


@pytest.fixture
def checker() -> Iterator[HazardChecker]:
    checker = HazardChecker()
    checker.start()
    yield checker
    checker.stop()
    assert checker.hazards == () and checker.notes == ()


def train(steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 3, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item(), loss.tolist(), copy.deepcopy(model), pickle.dumps(loss.detach())
    return [parameter.detach() for parameter in model.parameters()]


def test_training_computes_the_same(checker: HazardChecker) -> None:
    watched = train()
    checker.stop()
    assert all(torch.equal(a, b) for a, b in zip(watched, train(), strict=True))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: torch.zeros(2) @ torch.zeros(3),
        lambda: torch.zeros(2).view(3),
        lambda: torch.zeros(2, requires_grad=True).numpy(),
        lambda: torch.zeros(2, device="meta").tolist(),
        lambda: torch.from_numpy(3),
        lambda: torch.zeros(2).item(),
    ],
)
def test_what_the_program_does_wrong_raises_as_ever(wrong: Callable[[], object]) -> None:
    errors = []
    for watched in (False, True):
        checker = HazardChecker()
        if watched:
            checker.start()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is, it must be the same
            wrong()
        checker.stop()
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_tensors_without_memory_of_their_own_pass(checker: HazardChecker) -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal((sparse @ torch.ones(3, 1)).flatten(), torch.ones(3))
    assert (torch.zeros(3, device="meta") + 1).shape == (3,)
    with torch._subclasses.FakeTensorMode():
        assert (torch.zeros(3) + 1).shape == (3,)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert torch.equal((nested + 1).values(), torch.full((5,), 2.0))
    assert torch.vmap(torch.sin)(torch.zeros(2, 2)).sum() == 0
    checker.stop()


def test_a_subclass_that_dispatches_is_asked_first_and_its_operators_are_seen(
    checker: HazardChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    seen: list[tuple[Any, type]] = []
    begin = HazardMode.begin

    def noted(self: HazardMode, operator: Any, args: Any, kwargs: Any) -> Any:
        seen.append((operator, type(args[0])))
        return begin(self, operator, args, kwargs)

    pair = TwoTensor(torch.ones(2), torch.zeros(2))
    monkeypatch.setattr(HazardMode, "begin", noted)
    assert isinstance(pair + 1, TwoTensor)
    assert seen == [(aten.add.Tensor, torch.Tensor)] * 2


def test_compiled_functions_stay_compiled(checker: HazardChecker) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: torch.relu(x) * 2, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_higher_order_operators_pass(checker: HazardChecker) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value = (torch.ones(1, 1, 16, 16) for _ in range(3))
    assert torch.allclose(torch.as_tensor(flex_attention(query, key, value)), value)


class Checkers(torch.utils.data.Dataset[int]):
    """How many checkers there are in the process that asks."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return len(checker_module._running)


def test_workers_of_a_data_loader_run_unwatched(checker: HazardChecker) -> None:
    loader = torch.utils.data.DataLoader(Checkers(), num_workers=1, multiprocessing_context="fork")
    assert [int(count) for count in loader] == [0, 0, 0, 0] and Checkers()[0] == 1


WRAPPED = [
    (torch.Tensor, "numpy"),
    (torch.Tensor, "tolist"),
    (torch.Tensor, "__reduce_ex__"),
    (torch.cuda.Event, "query"),
    (torch.cuda.Stream, "query"),
    (torch, "from_numpy"),
]


def test_everything_is_as_before_when_it_has_stopped() -> None:
    before = [(getattr(owner, name), name in vars(owner)) for owner, name in WRAPPED]
    for _ in range(2):
        checker = HazardChecker()
        checker.start()
        assert torch.Tensor.numpy is not before[0][0]
        checker.stop()
        checker.stop()
        assert [(getattr(owner, name), name in vars(owner)) for owner, name in WRAPPED] == before
        assert _get_current_dispatch_mode_stack() == []
    assert len(_gpu_trace.EventRecordCallbacks.callback_list) <= 2


def test_a_mode_that_the_program_entered_meanwhile_is_not_taken_off_with_ours() -> None:
    class Theirs(TorchDispatchMode):
        calls = 0

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Theirs.calls += 1
            return func(*args, **(kwargs or {}))

    checker = HazardChecker()
    checker.start()
    (ours,) = _get_current_dispatch_mode_stack()
    with Theirs():
        checker.stop()
        torch.ones(2)
        assert Theirs.calls
    assert _get_current_dispatch_mode_stack() == [ours]
    torch.ones(2)
    ours.__exit__(None, None, None)


def test_there_is_one_checker_at_a_time(checker: HazardChecker) -> None:
    with pytest.raises(UsageError, match="already"):
        HazardChecker().start()


def test_an_error_of_the_checkers_own_ends_the_search_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlapscope.recorder.hazards import launches

    checker = HazardChecker()
    checker.start()
    monkeypatch.setattr(launches, "arguments", lambda operator: 1 / 0)
    assert torch.ones(2).sum() == 2
    checker.stop()
    (note,) = checker.notes
    assert "ended early" in note and "ZeroDivisionError" in note


def test_starting_initialises_no_cuda(tmp_path: Path) -> None:
    code = """
import torch
from overlapscope.recorder.hazards import HazardChecker
checker = HazardChecker()
checker.start()
torch.ones(2).sum()
assert not torch.cuda.is_initialized()
checker.stop()
assert not torch.cuda.is_initialized()
"""
    done = forked.run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
