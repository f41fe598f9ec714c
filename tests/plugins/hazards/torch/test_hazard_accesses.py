"""Tests of the hazard checker's sources in torch: operators, events, and the host's memory."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.cuda import _gpu_trace

from overlapscope.plugins.hazards.bookkeeping import Journal
from overlapscope.plugins.hazards.checker import HazardChecker
from overlapscope.plugins.hazards.host_memory import HostMemory
from overlapscope.plugins.hazards.operators import arguments, touch
from overlapscope.plugins.hazards.sync_events import SyncEvents, new_clock
from overlapscope.recorder.program_lines import UNKNOWN, line
from tests.plugins.hazards.books import Books, fail
from tests.support import forked

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
    result = arguments(operator)
    assert [(name, write) for _, name, write in result.used] == used and result.writes_output == writes_output


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
from overlapscope.plugins.hazards.checker import HazardChecker
checker = HazardChecker()
checker.start()
from torch.cuda._sanitizer import EventHandler
for name, registry in vars(_gpu_trace).items():
    for callback in getattr(registry, "callback_list", ()):
        assert not isinstance(getattr(callback, "__self__", None), EventHandler), name
"""
    done = forked.run(["-c", code], tmp_path, unloads=False)
    assert done.returncode == 0, done.stderr


class HostBooks:
    """Notes what `HostMemory` tells the books."""

    def __init__(self) -> None:
        self.real = Books()
        self.journal = Journal(fail)
        self.memory = HostMemory(self.real.books, self.journal, lambda frame: line(frame, waiting=-1))

    def copy_to(self, tensor: torch.Tensor) -> None:
        """As if a copy were on its way into it."""
        memory = touch(tensor)
        assert memory is not None
        books = self.real.books
        books.copy_issued("d2h", books.launched(7, (), (), UNKNOWN), memory._replace(tensor=""))
        self.memory.watch(tensor)

    def kinds(self) -> list[str]:
        self.journal.write_up()
        return [hazard.kind for hazard in self.real.books.hazards]


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
