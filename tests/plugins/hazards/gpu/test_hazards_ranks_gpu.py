"""The hazard checker on several GPUs: collectives that the program doesn't wait for are found, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.several_gpus import free_port
from benchmarks.several_gpus_plan import JOBS
from tests.plugins.hazards import races
from tests.support.forked import FINDS_US

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


def torchrun(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    done = subprocess.run(
        [*launcher, *map(str, arguments)],
        cwd=folder,
        env=os.environ | FINDS_US,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_wrong_programs_give_one_report_each_and_right_ones_none(tmp_path: Path) -> None:
    done = torchrun(tmp_path, races.__file__)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        **{program.__name__: [["first", "then"]] for program in races.WRONG},
        **{program.__name__: [] for program in races.RIGHT},
    }


@pytest.mark.parametrize("options", [["--race"], []])
def test_a_jobs_race_is_reported_with_both_lines_by_all_ranks(options: list[str], tmp_path: Path) -> None:
    recorder = ("-m", "overlapscope", "run", "--check-hazards", "--active", "3")
    done = torchrun(tmp_path, *recorder, JOBS / "two_collectives.py", *options)
    for rank in (0, 1):
        said = f"overlapscope (rank {rank}): "
        assert f"{said}{'1 data race found.' if options else 'no data races found in what could be checked.'}\n" in (
            done.stderr
        )
    assert ("reduced = dist.all_reduce(large, async_op=True)\n" in done.stderr) == bool(options)
    assert ("large.sum()\n" in done.stderr) == bool(options)
