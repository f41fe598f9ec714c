"""Tests of ranks that were recorded without a GPU: their collectives are ranges on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overlapscope import load
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.clocks import TIMESTAMP_ERROR_NS
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.result import RanksReport, rows_of
from overlapscope.ranks.verdict import judge
from overlapscope.reading import load as load_any

STEP, LATE, TRANSFER = 10_000, 6_000, 500
"""Microseconds of a step, of the sleep of rank 1, and of a transfer."""


def range_of(category: str, name: str, start: int, length: int, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


def written(folder: Path, rank: int, *, collective: str = "gloo:all_reduce", warm_up: int = 0, steps: int = 4) -> Path:
    """Write a rank that computes for 1 ms, starts an all-reduce and waits for it; rank 1 sleeps first.

    The first step takes longer by `warm_up`.
    """
    events = []
    for step in range(steps):
        begin = step * STEP - (0 if step else warm_up)
        arrives = begin + 1_000 + (LATE if rank == 1 else 0)
        ends = begin + 1_000 + LATE + TRANSFER
        events += [
            range_of("user_annotation", f"ProfilerStep#{step}", begin, STEP + (0 if step else warm_up)),
            range_of("cpu_op", "aten::mm", arrives - 1_000, 1_000),
            range_of("cpu_op", "c10d::allreduce_", arrives, 200),
            range_of("user_annotation", collective, arrives, ends - arrives, thread=2),
        ]
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}))
    return path


def report(folder: Path, **options: Any) -> RanksReport:
    return report_on(
        reduced for rank in range(2) for reduced in reduce_any(load(str(written(folder, rank, **options))))
    )


def test_a_rank_that_comes_late_to_collectives_on_the_host_is_named(tmp_path: Path) -> None:
    result = report(tmp_path)
    late = result.straggler
    assert late is not None
    # The early rank starts the collective for some time before it waits.
    assert (late.rank, late.last_in, late.lost_per_step_ns) == (1, 4, 1000 * LATE - 200_000)
    assert judge(result).lead.startswith("Rank 1 delays the other rank by up to 5.80 ms a step")
    assert any(note.startswith("Recorded without a GPU: ranges on the host") for note in result.notes)


def test_each_microsecond_of_the_host_is_in_one_bucket(tmp_path: Path) -> None:
    early, late = report(tmp_path).ranks
    for row in (early, late):
        assert sum(row.buckets.named().values()) == row.span_ns == 4_000 * STEP
        assert row.buckets.compute_ns == 4_000 * 1_000
    # Starting a collective is no compute.
    assert early.exposed_comm_ns == early.comm_ns == 4_000 * (LATE + TRANSFER)
    assert late.exposed_comm_ns == 4_000 * TRANSFER


@pytest.mark.parametrize(("warm_up", "steps"), [(0, 4), (STEP, 3)])
def test_figures_are_of_an_average_step_of_the_host(tmp_path: Path, warm_up: int, steps: int) -> None:
    result = report(tmp_path, warm_up=warm_up)
    for row in (rows := rows_of(result)):
        assert row.judged is not None
        assert (row.judged.steps, row.span_ns, row.buckets.compute_ns) == (steps, 1_000 * STEP, 1_000_000)
        assert sum(row.buckets.named().values()) == row.span_ns
    assert [row.waited_ns for row in rows] == [1_000 * LATE, 0]
    assert result.met_steps == steps
    assert result.communication.steps == steps


def test_ends_on_the_host_relate_clocks_less_well(tmp_path: Path) -> None:
    """Any range may end as late as the longest one lasts, but each further collective halves that."""
    clocks = report(tmp_path).clocks
    error = 1_000 * (LATE + TRANSFER) // 8 + TIMESTAMP_ERROR_NS
    assert (clocks.largest_error_ns, clocks.arrival_error_ns) == (error, error)


@pytest.mark.parametrize("periodic", [False, True])
def test_without_steps_the_report_says_how_to_mark_them(tmp_path: Path, periodic: bool) -> None:
    path = written(tmp_path, 0, steps=12)
    recording = json.loads(path.read_text())
    recording["traceEvents"] = [event for event in recording["traceEvents"] if "Step" not in event["name"]]
    path.write_text(json.dumps(recording))
    trace = load_any(path, periodic=periodic)
    assert (trace.period is not None) == periodic
    with pytest.raises(UnreadableTrace, match=r"has collectives but no steps; call profiler.step\(\)"):
        reduce_any(trace)


def test_without_a_gpu_and_collectives_there_is_nothing_to_compare(tmp_path: Path) -> None:
    trace = load(str(written(tmp_path, 0, collective="evaluation")))
    with pytest.raises(UnreadableTrace, match="no GPU activity"):
        reduce_any(trace)
