"""`overlapscope run` with several processes: ranks that a launcher starts, and processes that the program starts."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from overlapscope.reading import expand, load
from tests.support import forked
from tests.support.recorded import steps, timed
from tests.support.run_command import FORKED, RUN, TRAIN, execute, no_gpu, ours, write, wrote

pytest.importorskip("torch", reason="records with torch")


def test_each_rank_of_torchrun_writes_its_own_file_and_they_load_as_one_job(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + TRAIN + "for _ in range(20):\n"
        "    train()\n"
        "    for parameter in model.parameters(): dist.all_reduce(parameter.grad)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n",
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    schedule = ["--active", "2", "--plain-steps", "2"]
    run = execute([*launcher, "-m", "overlapscope", "run", *schedule, "train.py"], tmp_path, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    first, times, *rest = ours(run)
    assert first == wrote("train.traces/rank0.trace.json.gz").replace("overlapscope", "overlapscope (rank 0)", 1)
    assert times.startswith("overlapscope (rank 0): without the profiler 4 steps took ")
    assert rest == [
        no_gpu().replace("overlapscope", "overlapscope (rank 0)", 1),
        "overlapscope (rank 0): this is rank 0; `overlapscope analyze train.traces` shows all ranks.",
    ]
    paths = [tmp_path / "train.traces" / f"rank{rank}.trace.json.gz" for rank in (0, 1)]
    assert [load(path).rank for path in expand([str(tmp_path / "train.traces")])] == [0, 1]
    assert [steps(path) for path in paths] == [[11, 12, 13, 14]] * 2
    assert [timed(path) for path in paths] == [(2, 2)] * 2


def test_srun_tells_the_rank_and_a_file_name_may_say_where_it_stands(tmp_path: Path) -> None:
    write(tmp_path / "program.py", "import torch; torch.ones(3) * 3\n")
    for rank in ("0", "1"):
        command = [*FORKED, "-o", "{host}/r{rank}.json", "program.py"]
        run = forked.run(command, tmp_path, environment={"SLURM_PROCID": rank, "SLURM_NTASKS": "2"})
        assert run.returncode == 0, run.stderr
        if rank == "0":
            host = socket.gethostname()
            assert f"overlapscope (rank 0): wrote {host}/r0.json, " in run.stderr
            assert f"`overlapscope analyze '{host}/r*.json'` shows all ranks." in run.stderr
    assert sorted(file.name for file in (tmp_path / host).iterdir()) == ["r0.json", "r1.json"]
    run = forked.run([*FORKED, "-o", "x.{n}.json", "program.py"], tmp_path)
    assert run.returncode == 2 and "{n} is not a placeholder" in run.stderr


SPAWNS = (
    "import os, subprocess, sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
    "def train(rank):\n"
    "    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=rank, world_size=2)\n"
    "    model = torch.nn.Linear(2, 2)\n"
    "    optimizer = torch.optim.SGD(model.parameters())\n"
    "    for _ in range(4): model(torch.ones(2)).sum().backward(); optimizer.step()\n"
    "    dist.destroy_process_group()\n"
    "if __name__ == '__main__':\n"
    "    loader = torch.utils.data.DataLoader(range(4), num_workers=1, multiprocessing_context='spawn')\n"
    "    print(len(list(loader)))\n"
    "    mp.spawn(train, nprocs=2)\n"
    "    subprocess.run([sys.executable, '-c', 'import torch, overlapscope; overlapscope.step(); print(1)'])\n"
)


def test_processes_that_the_program_starts_are_recorded_where_that_is_asked_for(tmp_path: Path) -> None:
    program = write(tmp_path / "program.py", SPAWNS)
    (tmp_path / "program.traces").mkdir()
    write(tmp_path / "program.traces" / "rank7.trace.json.gz", "an earlier run's")
    command = [*FORKED, "--force", "--subprocesses", "--wait", "0", "--plain-steps", "0", program.name]
    run = forked.run(command, tmp_path)
    assert run.returncode == 0 and run.stdout == "4\n1\n", run.stderr
    assert (
        "overlapscope: processes that the program started wrote traces (3); `overlapscope analyze program.traces`"
        in (run.stderr)
    )
    other, *ranks = sorted((tmp_path / "program.traces").iterdir())
    assert re.fullmatch(r"pid\d+\.trace\.json\.gz", other.name)
    assert [rank.name for rank in ranks] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    assert [steps(rank) for rank in ranks] == [[1, 2, 3]] * 2
    assert forked.run([*FORKED, "--subprocesses", "-c", "1"], tmp_path).returncode == 0
    assert len(list((tmp_path / "program.traces").iterdir())) == 3
    assert forked.run([*FORKED, "--subprocesses", "-o", "program.json.gz", "-c", "1"], tmp_path).returncode == 0
    assert {path.suffix for path in (tmp_path / "program.traces").iterdir()} == {".1"}


def test_a_fork_before_the_import_of_torch_and_what_exec_makes_of_the_program_are_recorded(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import multiprocessing, os, sys\n"
        "def work():\n"
        "    import overlapscope, torch\n"
        "    for _ in range(4): torch.ones(3) * 3; overlapscope.step()\n"
        "if sys.argv[1:]:\n"
        "    work()\n"
        "elif __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('fork').Process(target=work); process.start(); process.join()\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'overlapscope'])\n",
    )
    run = execute([*RUN, "--subprocesses", "--wait", "0", "--plain-steps", "0", "program.py"], tmp_path)
    assert run.returncode == 0, run.stderr
    assert ours(run) == ["overlapscope: os.execv replaces the program by another, which --subprocesses records."]
    assert [steps(path) for path in (tmp_path / "program.traces").iterdir()] == [[1, 2, 3]] * 2


def test_processes_that_the_program_starts_are_reported_except_those_that_load_its_data(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import multiprocessing, subprocess, sys\n"
        "def work(): pass\n"
        "if __name__ == '__main__':\n"
        "    import torch\n"
        "    print(len(list(torch.utils.data.DataLoader(range(4), num_workers=1))))\n"
        "    for _ in range(2):\n"
        "        one = multiprocessing.get_context('spawn').Process(target=work); one.start(); one.join()\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'])\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert run.returncode == 0 and run.stdout == "4\n1\n", run.stderr
    assert "started Python processes (3), which were not recorded; --subprocesses" in run.stderr


def test_a_program_that_marks_its_steps_itself_is_told_of_no_helpers(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import overlapscope, subprocess, sys, torch\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "for _ in range(3): torch.ones(3) * 3; overlapscope.step()\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert run.returncode == 0 and "processes" not in run.stderr
