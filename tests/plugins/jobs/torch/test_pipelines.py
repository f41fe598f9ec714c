"""Comparisons of the ranks of real pipelines: `torch.distributed.pipelining` in processes that use gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.several_gpus import free_port
from overlapscope import load
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.jobs.part import Pipeline
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport, Unreadable
from tests.plugins.jobs.pipelines_by_hand import stages_by_hand
from tests.support import forked

pytest.importorskip("torch", reason="records with torch")

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed import pipelining
name, chunks, slow = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
second = 2 * world - 1 - rank if "ZBV" in name else world + rank
places = [rank, second][:chunks]
layers = lambda: torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(24 if rank == slow else 6)])
stages = [pipelining.PipelineStage(layers(), at, chunks * world, torch.device("cpu")) for at in places]
schedule = getattr(pipelining, name)(stages if chunks > 1 else stages[0], 6, loss_fn=torch.nn.functional.mse_loss)
sample = torch.randn(6 * 256, 256)
def step():
    schedule.step(*([sample] if 0 in places else []), target=sample if chunks * world - 1 in places else None)
step()
when = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
with torch.profiler.profile(record_shapes=True, schedule=when) as profile:
    for _ in range(4):
        step()
        profile.step()
profile.export_chrome_trace(f"rank{rank}.json")
dist.barrier()
dist.destroy_process_group()
"""


def recorded(folder: Path, schedule: str, *, world: int = 3, chunks: int = 1, slow: int = -1) -> list[Path]:
    """Run a pipeline, and return the trace of each rank."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    job = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    arguments: list[str | Path] = [program, schedule, str(chunks), str(slow)]
    environments = [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    ranks = [forked.ForkedProgram(arguments, folder, environment=each, unloads=False) for each in environments]
    for rank in ranks:
        _, errors = rank.communicate()
        assert rank.wait() == 0, errors
    return [folder / f"rank{rank}.json" for rank in range(world)]


def compared(paths: list[Path]) -> RanksReport:
    ranks: list[ReducedRank | Unreadable] = []
    for path in paths:
        try:
            ranks += reduce_any(load(str(path)))
        except OverlapscopeError as error:
            ranks.append(Unreadable(source=str(path), reason=error.reason))
    return report_on(ranks)


def assert_times_are_those_by_hand(pipeline: Pipeline, paths: list[Path]) -> None:
    """Compare each stage of each step with a count from the raw files, to the nanosecond."""
    expected = stages_by_hand(paths)
    assert pipeline.steps
    for step in pipeline.steps:
        for stage in step.stages:
            phases = (stage.warm_up, stage.steady, stage.drain)
            names = ("compute_ns", "waiting_ns", "other_ns")
            times = tuple(sum(getattr(phase, name) for phase in phases) for name in names)
            assert times == expected[step.name][stage.rank]
            assert stage.length_ns == sum(times)


def test_a_pipeline_with_a_longer_stage_is_recognized_and_the_stage_is_named(tmp_path: Path) -> None:
    paths = recorded(tmp_path, "Schedule1F1B", slow=1)
    report = compared(paths)
    (found,) = report.parts["jobs"].pipelines
    assert (found.ranks, found.schedule, found.microbatches) == ((0, 1, 2), "1f1b", 6)
    assert found.theoretical_bubble_pct == 25 < found.bubble_pct
    assert found.longest_stage == 1
    assert_times_are_those_by_hand(found, paths)
    # The others wait for the longer stage, and no rank is blamed for it.
    first, _, last = found.steps[-1].stages
    assert first.drain.waiting_ns > 0 and last.warm_up.waiting_ns > 0
    assert report.stragglers == ()
    assert report.matching.paired == report.matching.kernels

    # The file of a rank ends early.
    text = paths[2].read_bytes()
    paths[2].write_bytes(text[: len(text) // 2])
    cut = compared(paths)
    assert all(pipeline.ranks == (0, 1, 2) for pipeline in cut.parts["jobs"].pipelines)
    assert cut.matching.paired < report.matching.paired
    assert cut.parts["jobs"].pipelines or any("is not judged" in note for note in cut.notes)


@pytest.mark.parametrize(
    ("schedule", "world", "chunks", "name", "theory"),
    [
        ("ScheduleInterleaved1F1B", 3, 2, "interleaved-1f1b", 100 * 2 / 14),
        ("ScheduleZBVZeroBubble", 2, 2, None, None),
    ],
)
def test_a_schedule_is_recognized_by_the_order_of_messages_or_unknown(
    schedule: str, world: int, chunks: int, name: str | None, theory: float | None, tmp_path: Path
) -> None:
    paths = recorded(tmp_path, schedule, world=world, chunks=chunks)
    (found,) = compared(paths).parts["jobs"].pipelines
    assert_times_are_those_by_hand(found, paths)
    assert (found.ranks, found.schedule, found.chunks) == (tuple(range(world)), name, chunks if name else 1)
    assert found.theoretical_bubble_pct == (pytest.approx(theory) if theory is not None else None)
