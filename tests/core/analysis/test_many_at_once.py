"""Traces in which more ops run at once than on any GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlapscope.analysis import analyze_trace, exposed, missing_ops
from overlapscope.analysis.exposed import running_in
from overlapscope.base.intervals import Intervals, cut, expand
from overlapscope.trace.model import I64, Kind
from tests.support.helpers import Host, Op, make_trace


@pytest.mark.parametrize("seed", range(20))
def test_of_many_ops_in_a_piece_those_count_that_end_last(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed, "MAX_AT_ONCE", 3)
    rng = random.Random(seed)
    ops = [sorted(rng.sample(range(40), 2)) for _ in range(rng.choice((2, 10, 30)))]
    begin, end = (np.array(side, np.int64) for side in zip(*ops, strict=True))
    edges = np.unique(np.concatenate([begin, end]))[:-1]
    starts = edges[[rng.random() < 0.8 for _ in edges]]
    which, piece = running_in(starts, begin, end)
    for number, start in enumerate(starts.tolist()):
        ends = sorted((int(end[row]) for row in which[piece == number]), reverse=True)
        running = sorted((until for since, until in ops if since <= start < until), reverse=True)
        assert ends == running[:3]
        assert len(set(which[piece == number].tolist())) == len(ends)


@pytest.mark.parametrize("kind", [Kind.COMM, Kind.H2D, Kind.OTHER])
def test_time_in_which_hundreds_of_ops_run_adds_up_and_is_paired_with_few(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = [Op(kind, 100 * n, 100_000 + 100 * n, stream=n, launch=(n, n + 1), name="ncclDevKernel") for n in range(300)]
    pairs: list[int] = []

    def counted(first: I64, last: I64) -> tuple[I64, I64]:
        rows, pieces = expand(first, last)
        pairs.append(len(rows))
        return rows, pieces

    monkeypatch.setattr(exposed, "expand", counted)
    [device] = analyze_trace(make_trace(ops)).result.devices
    assert 300 < max(pairs) <= 600 * exposed.MAX_AT_ONCE
    by_cause = device.exposed_comm_by_cause, device.exposed_copy_by_cause, device.exposed_other_by_cause
    exposed_ns = sum(sum(times.values()) for times in by_cause)
    assert exposed_ns == device.span_ns == 129_900


def test_waits_of_hundreds_of_threads_at_once_are_paired_with_few_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Op(Kind.COMPUTE, 100 * n, 100 * n + 50, launch=(100 * n - 20, 100 * n - 10)) for n in range(1, 500)]
    waits = [Host("cudaStreamSynchronize", 100 * n + 5, 60_000 + n, thread=n) for n in range(2, 400)]
    found = []

    def counted(starts: I64, ends: I64, windows: Intervals, *, most: int | None = None) -> tuple[I64, I64, I64]:
        found.append(cut(starts, ends, windows, most=most))
        return found[-1]

    monkeypatch.setattr(missing_ops, "cut", counted)
    analyze_trace(make_trace(ops, calls=waits))
    assert 1000 < max(len(row) for row, _, _ in found) <= 32 * 501
