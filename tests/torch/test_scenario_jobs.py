"""The training jobs of `scenarios/jobs` run in two processes through gloo, with each cause that they can plant."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.several_gpus import JOBS, SMALL, VARIANTS, free_port
from tests.support import forked
from tests.support.recorded import steps

pytest.importorskip("torch", reason="scenarios are PyTorch programs")


def ended(tmp_path: Path, *command: str | Path) -> list[tuple[int, str]]:
    """Exit codes and error outputs of two ranks."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        forked.ForkedProgram(command, tmp_path, environment={**job, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    return [(rank.wait(), rank.communicate()[1]) for rank in ranks]


@pytest.mark.parametrize(("program", "variant"), [(name, variant) for name in VARIANTS for variant in VARIANTS[name]])
def test_a_job_takes_its_steps(program: str, variant: str, tmp_path: Path) -> None:
    options = (*SMALL[program], *VARIANTS[program][variant], "--steps", "2")
    for code, errors in ended(tmp_path, JOBS / f"{program}.py", *options):
        assert code == 0, errors


def test_a_job_is_recorded_at_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    recorder = ("-m", "overlapscope", "run", "--active", "2", "--plain-steps", "2")
    options = (*SMALL["fsdp2"], "--steps", "30")
    for code, errors in ended(tmp_path, *recorder, JOBS / "fsdp2.py", *options):
        assert code == 0, errors
    first, second = (steps(tmp_path / "fsdp2.traces" / f"rank{rank}.trace.json.gz") for rank in (0, 1))
    assert first == second != []
