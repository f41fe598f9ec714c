"""Tests that `benchmarks.public_recordings` counts our own recordings as the reports do."""

from __future__ import annotations

from benchmarks.public_recordings import counted
from benchmarks.public_recordings_raw import PublicOp, sweep, waited
from tests.support.helpers import TRACES

AS = ("allreduce", "0", "[0, 1]")


def test_our_recordings_are_counted_as_reported() -> None:
    job = counted(sorted((TRACES / "ddp").glob("rank*")), of_one_job=True)
    assert (job.ranks, job.different) == (2, ()) and min(job.windows, job.rows, job.waits) > 0
    apart = counted(sorted((TRACES / "known_causes").glob("*.json.gz"))[:4], of_one_job=False)
    assert not apart.different and apart.windows > 4


def test_an_instant_belongs_to_the_first_class_and_to_each_collective() -> None:
    ops = [PublicOp(0, 10, "comm", AS), PublicOp(5, 8, "compute"), PublicOp(8, 30, "copy"), PublicOp(20, 25, "other")]
    sums = sweep(ops, 2, 40)
    assert sums.first == {"comm": 5, "compute": 3, "copy": 20, "idle": 10}
    assert (sums.comm, sums.busy[AS], sums.exposed[AS]) == (8, 8, 5)


def test_a_rank_waits_from_its_arrival_to_the_last_in_its_window() -> None:
    ranks = [
        [PublicOp(0, 20, "comm", AS), PublicOp(30, 40, "comm", AS)],
        [PublicOp(8, 20, "comm", AS), PublicOp(31, 40, "comm", AS)],
    ]
    assert waited(ranks, [0, 0], [(0, 50), (0, 50)]) == 9
    assert waited(ranks, [0, 0], [(3, 50), (0, 50)]) == 6
    assert waited(ranks, [5, 0], [(0, 50), (0, 50)]) == 1
