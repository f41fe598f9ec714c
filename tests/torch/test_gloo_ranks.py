"""Jobs of real processes that communicate through gloo: a rank hangs, has no trace, or left a file that is cut off."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.several_gpus import free_port
from overlapscope import load
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import doubts
from tests.support import forked

pytest.importorskip("torch", reason="records with torch")

STEPS = 6
PROGRAM = f"""
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function
rank, hanging = int(os.environ["RANK"]), sys.argv[1:] == ["hanging"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
message, weights = torch.ones(1 << 12), torch.ones(64, 64)
profiler = profile(activities=[ProfilerActivity.CPU])
profiler.start()
dist.barrier()
try:
    for step in range({STEPS}):
        with record_function(f"ProfilerStep#{{step}}"):
            if rank == 1:
                time.sleep(0.1)
            weights = weights @ weights / 64
            if hanging and rank == 2 and step == 4:
                open("hangs", "w").close()
                time.sleep(600)
            dist.all_reduce(message)
            weights = weights @ weights / 64
            dist.all_reduce(message)
except RuntimeError:
    pass  # A peer has died.
profiler.stop()
profiler.export_chrome_trace(f"rank{{rank}}.json")
os._exit(0)  # Nothing waits for a peer any more.
"""


def environment(rank: int, port: int) -> Mapping[str, str]:
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def run(folder: Path, *arguments: str) -> list[forked.ForkedProgram]:
    """Start the three ranks."""
    (folder / "program.py").write_text(PROGRAM)
    port = free_port()
    return [
        forked.ForkedProgram(["program.py", *arguments], folder, environment=environment(rank, port))
        for rank in range(3)
    ]


def joined(folder: Path) -> RanksReport:
    return report_on(rank for path in sorted(folder.glob("rank*.json")) for rank in reduce_any(load(path)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for rank in run(folder):
        output, errors = rank.communicate()
        assert rank.returncode == 0, output + errors
    return folder


def test_a_rank_that_hangs_until_it_is_killed_is_missing_and_the_others_are_judged(tmp_path: Path) -> None:
    ranks = run(tmp_path, "hanging")
    while not (tmp_path / "hangs").exists():
        assert ranks[2].poll() is None
        time.sleep(0.05)
    ranks[2].kill()
    for rank in ranks[:2]:
        output, errors = rank.communicate()
        assert rank.returncode == 0, output + errors
    report = joined(tmp_path)
    assert "Missing: 1 rank of 3 expected: 2." in doubts(report)
    assert [row.rank for row in report.ranks] == [0, 1]
    # All collectives of the four steps before, and the one in which the others hung.
    assert report.matching.judged == report.matching.meetings == 2 * 4 + 1


def test_a_rank_without_a_trace_is_missing_and_the_others_are_judged(recorded: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes((recorded / f"rank{rank}.json").read_bytes())
    report = joined(tmp_path)
    assert "Missing: 1 rank of 3 expected: 2." in doubts(report)
    assert report.matching.judged == 2 * STEPS


def test_a_file_that_is_cut_off_is_reported_and_the_others_are_judged(recorded: Path, tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes((recorded / f"rank{rank}.json").read_bytes())
    os.truncate(tmp_path / "rank2.json", (tmp_path / "rank2.json").stat().st_size // 2)
    report = joined(tmp_path)
    assert [row.trust for row in report.ranks] == ["trusted", "trusted", "degraded"]
    assert any(
        sentence.startswith("Some figures may be wrong: rank 2. The file is cut off") for sentence in doubts(report)
    )
    # The other ranks are compared even in steps of which the file has some collectives, but not all.
    assert report.missing == () and report.matching.judged == 2 * STEPS
    assert any("the kernels of some ranks are missing" in sentence for sentence in doubts(report))


def test_a_job_of_which_all_ranks_are_there_is_judged_without_doubts(recorded: Path) -> None:
    report = joined(recorded)
    assert report.matching.judged == report.matching.meetings == 2 * STEPS
    assert report.missing == () and {row.trust for row in report.ranks} == {"trusted"}
    late = report.straggler
    assert late is not None and late.rank == 1
