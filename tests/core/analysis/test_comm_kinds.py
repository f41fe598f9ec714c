"""Kinds of communication kernels, by their metadata, by the range that launched them, or by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.analysis.collectives import CommKind, comm_kinds
from overlapscope.ranks.join import report_on
from overlapscope.ranks.messages import point_to_point
from overlapscope.ranks.reduced import reduce
from overlapscope.trace.model import Kind
from tests.support.kineto_files import call, host, kernel, write

SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"


def kinds(path: Path, name: str, *ranges: str, launched: bool = True, **args: object) -> tuple[CommKind, ...]:
    """Return the kinds of a kernel that was launched inside ranges on the host."""
    events = [kernel(100, 50, name=name, stream=20, correlation=5 if launched else 99, **args)]
    events += [call(20, 5, 5), *(host("user_annotation", each, 10, 30) for each in ranges)]
    # Another thread's range does not count.
    events += [host("user_annotation", "nccl:broadcast", 0, 200, tid=2)]
    trace = ov.load(write(path / "rank0.json", events), progress=False, cache=False)
    return comm_kinds(trace, trace.gpu_ops.take(trace.gpu_ops.kind == Kind.COMM)).kinds


@pytest.mark.parametrize(
    ("ranges", "collective"),
    [
        (("nccl:all_to_all",), "all_to_all"),
        (("## loss ##", "nccl:_all_gather_base"), "_all_gather_base"),
        (("nccl:send 0->1",), "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
        (("nccl:coalesced",), "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
        (("## all_to_all ##",), "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
        ((), "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
    ],
)
def test_the_range_that_launched_a_kernel_names_its_collective(
    tmp_path: Path, ranges: tuple[str, ...], collective: str
) -> None:
    assert kinds(tmp_path, SEND_RECV, *ranges) == (CommKind(collective, recorded=False),)


def test_a_kernel_launched_before_the_recording_has_no_range(tmp_path: Path) -> None:
    (kind,) = kinds(tmp_path, SEND_RECV, "nccl:all_to_all", launched=False)
    assert point_to_point(kind)


def test_metadata_counts_more_than_a_range(tmp_path: Path) -> None:
    recorded: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 2}
    (kind,) = kinds(tmp_path, SEND_RECV, "nccl:all_to_all", **recorded)
    assert (kind.collective, kind.group, kind.recorded) == ("allreduce", "7", True)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>(float*)", "multimem_all_reduce_kernel"),
        ("void dpsk::ep::internode::dispatch<false, 8>(int4*)", "dpsk::ep::internode::dispatch"),
    ],
)
def test_a_kernel_is_named_without_types_and_parameters(tmp_path: Path, name: str, collective: str) -> None:
    assert kinds(tmp_path, name) == (CommKind(collective, recorded=False),)


def test_an_all_to_all_of_older_pytorch_is_matched_but_not_judged(tmp_path: Path) -> None:
    joined = []
    for rank in (0, 1):
        events = [host("user_annotation", "ProfilerStep#1", 0, 1000)]
        for number, name in enumerate(("nccl:all_to_all", "nccl:all_reduce")):
            at = 100 + 200 * number
            events += [host("user_annotation", name, at, 20), call(at + 5, 5, number + 1)]
            kernel_name = SEND_RECV if number == 0 else "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
            events += [kernel(at + 30 + 10 * rank, 60 - 10 * rank, name=kernel_name, correlation=number + 1)]
        path = write(tmp_path / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
        joined.append(reduce(ov.load(path, progress=False, cache=False))[0])
    report = report_on(joined)
    assert (report.matching.matched, report.matching.not_collective, report.matching.judged) == (4, 0, 1)
    assert {row.collective for row in report.communication.rows} == {"all_to_all", "all_reduce"}
    assert any(note.startswith("1 collective in which not every rank waits") for note in report.notes)
