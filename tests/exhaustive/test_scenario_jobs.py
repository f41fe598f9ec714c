"""The training jobs of `scenarios/jobs` run in two processes through gloo, with each cause that they can plant."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.several_gpus import free_port
from benchmarks.several_gpus_plan import JOBS, LATE_MS, PROGRAMS
from tests.support import forked
from tests.support.recorded import steps

pytest.importorskip("torch", reason="scenarios are PyTorch programs")


def ended(tmp_path: Path, *command: str | Path) -> list[tuple[int, str]]:
    """Exit codes and error outputs of two ranks."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environments = [{**job, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    ranks = [forked.ForkedProgram(command, tmp_path, environment=each, unloads=False) for each in environments]
    return [(rank.wait(), rank.communicate()[1]) for rank in ranks]


@pytest.mark.parametrize(
    ("program", "variant"),
    [(name, variant) for name, program in PROGRAMS.items() for variant in [*program.variants][1:] or program.variants],
)
def test_a_job_takes_its_steps(program: str, variant: str, tmp_path: Path) -> None:
    job = PROGRAMS[program]
    options = ("5" if option == LATE_MS else option for option in job.variants[variant])
    for code, errors in ended(tmp_path, JOBS / f"{job.module}.py", *job.small, *options, "--steps", "2"):
        assert code == 0, errors


def test_a_job_is_recorded_at_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    recorder = ("-m", "overlapscope", "run", "--active", "2", "--plain-steps", "2")
    options = (*PROGRAMS["fsdp2"].small, "--steps", "30")
    for code, errors in ended(tmp_path, *recorder, JOBS / "fsdp2.py", *options):
        assert code == 0, errors
    first, second = (steps(tmp_path / "fsdp2.traces" / f"rank{rank}.trace.json.gz") for rank in (0, 1))
    assert first == second != []
