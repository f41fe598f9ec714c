"""Tests that `benchmarks.public_recordings` counts our own recordings as the reports do."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.public_recordings import JudgedReport, counted, judged
from benchmarks.public_recordings_raw import PublicOp, sweep, waited
from tests.support.helpers import TRACES

AS = ("allreduce", "0", "[0, 1]")


def test_our_recordings_are_counted_as_reported() -> None:
    job = counted(sorted((TRACES / "ddp").glob("rank*")))
    assert (job.ranks, job.different) == (2, ()) and min(job.windows, job.rows, job.waits) > 0
    apart = [counted([path]) for path in sorted((TRACES / "known_causes").glob("*.json.gz"))[:4]]
    assert not any(each.different for each in apart) and all(each.windows for each in apart)


def test_threads_are_counted_as_reported(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 4}
        for number in range(3)
    ]
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert counted([path])[1:] == (1, 0, 0, ())


def test_a_judgement_belongs_to_the_words_that_were_judged() -> None:
    path = sorted((TRACES / "known_causes").glob("*.json.gz"))[0]
    now = judged(path, JudgedReport(""))
    assert now.verdict and not now.verdict_right
    once = now._replace(verdict_right="yes", finding_right="no", finding_reason="late")
    assert judged(path, once) == once
    changed = judged(path, once._replace(verdict="Something else."))
    assert (changed.verdict_right, changed.finding_right) == ("", "no")


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
