"""Tests of recordings of several processes: unrelated ones, and ranks."""

from __future__ import annotations

import os
import pickle
import socket
import time
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.errors import UsageError
from overlapscope.recorder.destination import Destination, Rank, rank_of
from tests.support import forked
from tests.support.recorded import names, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


class TestSeveralProcesses:
    """Tests of processes that are not marked as ranks of a job."""

    PROGRAM = (
        "import os, sys, time, torch, overlapscope as ov\n"
        "def wait():\n"
        "    open('waits', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "with ov.record(sys.argv[1], plain_steps=0) as rec:\n"
        "    torch.ones(3) * 3\n"
        "    if sys.argv[2] == 'while': wait()\n"
        "print(rec.path, *rec.notes)\n"
        "if sys.argv[2] == 'before': wait()\n"
    )

    @pytest.mark.parametrize("when", ["before", "while"])
    def test_none_overwrites_what_another_has_written_meanwhile(self, when: str, path: Path, tmp_path: Path) -> None:
        other = forked.ForkedProgram(["-c", self.PROGRAM, str(path), when], tmp_path)
        while not (tmp_path / "waits").exists():
            assert other.poll() is None
            time.sleep(0.01)
        with ov.record(path, plain_steps=0) as rec:
            work("mine")
        (tmp_path / "go").touch()
        output, _ = other.communicate()
        if when == "while":
            assert rec.path == path and rec.notes == ()
            where = path.with_name(f"x.pid{other.pid}.trace.json.gz")
            assert output.startswith(f"{where} {path}: belongs to another process")
            assert "aten::mul" in names(where, "cpu_op")
        else:
            assert output == f"{path}\n"
            assert rec.path == path.with_name(f"x.pid{os.getpid()}.trace.json.gz")
            assert rec.notes == (f"{path}: belongs to another process, so this trace is {rec.path.name}.",)
            # It has ended, and its file is old.
            with ov.record(path, plain_steps=0) as rec:
                work("mine")
            assert rec.path == path
        assert names(path) == ["mine"]

    def test_what_is_recorded_again_and_again_stays_one_file(self, path: Path) -> None:
        for _ in range(20):
            with ov.record(path, plain_steps=0) as rec:
                work()
        assert rec.path == path and [file.name for file in path.parent.iterdir()] == [path.name]

    def test_processes_that_the_program_starts_have_their_rank_from_torch_distributed(self, tmp_path: Path) -> None:
        # Forked: to import torch takes longer than all else. The recording comes to them as to spawned ones.
        program = tmp_path / "program.py"
        program.write_text(
            "import os, pickle, torch, torch.distributed as dist, torch.multiprocessing as mp, overlapscope as ov\n"
            "def train(rank, recording):\n"
            "    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=rank,\n"
            "        world_size=2)\n"
            "    with pickle.loads(recording): torch.ones(3) * 3\n"
            "    dist.destroy_process_group()\n"
            "recording = pickle.dumps(ov.record('x.json', plain_steps=0))\n"
            "mp.start_processes(train, (recording,), nprocs=2, start_method='fork')\n"
        )
        done = forked.run([program], tmp_path, unloads=False)
        assert done.returncode == 0, done.stderr
        assert sorted(file.name for file in (tmp_path / "x.traces").iterdir()) == [
            "rank0.trace.json",
            "rank1.trace.json",
        ]

    def test_a_recording_reaches_another_process_as_one_that_has_not_begun(self, path: Path) -> None:
        with ov.record(path, wait=1, warmup=2, plain_steps=0) as rec:
            again = pickle.loads(pickle.dumps(rec))
        assert again.path == path and not again.finished
        with again:
            work("again")
        assert names(path) == ["again"]


class TestRanks:
    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({}, None),
            ({"RANK": "0", "WORLD_SIZE": "1"}, None),
            ({"RANK": "3"}, None),
            ({"RANK": "", "WORLD_SIZE": "4"}, None),
            ({"RANK": "4", "WORLD_SIZE": "4"}, None),
            ({"RANK": "3", "WORLD_SIZE": "4"}, Rank(3, 4)),
            ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, Rank(2, 8)),
            ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, Rank(1, 2)),
            ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 2)),
            ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Rank(1, 3)),
            ({"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Rank(3, 4)),
            ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Rank(1, 2)),
        ],
    )
    def test_launchers_tell_the_rank(self, environ: dict[str, str], expected: Rank | None) -> None:
        assert rank_of(environ) == expected

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("runs/x.json", "runs/x.traces/rank3.trace.json"),
            ("x.json.gz", "x.traces/rank3.trace.json.gz"),
            ("a.b.trace.json", "a.b.traces/rank3.trace.json"),
            ("runs/r{rank}.json", "runs/r3.json"),
            ("{host}/x.json", f"{socket.gethostname()}/x.traces/rank3.trace.json"),
        ],
    )
    def test_each_rank_has_a_file_of_its_own(self, name: str, expected: str) -> None:
        assert Destination.for_path(name).path(Rank(3, 4)) == Path(expected).absolute()
        assert Destination.for_path("x.{rank}.json").path(None) == Path("x.0.json").absolute()
        expected = f"{socket.gethostname()}/{os.getpid()}.json"
        assert Destination.for_path("{host}/{pid}.json").path(None) == Path(expected).absolute()

    def test_a_name_in_braces_that_stands_for_nothing_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"\{ran\} is not a placeholder.*\{rank\}, \{pid\}, \{time\}, \{host\}"):
            ov.record("x.{ran}.json")

    def test_directories_with_names_in_braces_are_made_and_load_as_one_job(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from overlapscope.reading import load_all

        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path.parent / "{host}" / "rank{rank}.json") as rec:
                work()
        assert [trace.rank for trace in load_all(rec.path.parent)] == [0, 1]
        assert [trace.rank for trace in load_all(rec.job)] == [0, 1]

    def test_ranks_of_an_earlier_run_with_more_of_them_are_removed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = path.with_name("x.traces")
        directory.mkdir()
        for name in ("rank1.trace.json.gz", "rank2.trace.json.gz", "rank10.trace.json", "rank3.json", "notes.txt"):
            (directory / name).touch()
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in ("1", "0"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path):
                work()
        assert sorted(file.name for file in directory.iterdir()) == [
            "notes.txt",
            "rank0.trace.json.gz",
            "rank1.trace.json.gz",
            "rank3.json",
        ]

    def test_the_directory_loads_as_one_job(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        written = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path) as rec:
                work()
            written.append(rec.path)
        from overlapscope.reading import load_all

        assert [trace.rank for trace in load_all(path.with_name("x.traces"))] == [0, 1]
        assert written == [path.with_name("x.traces") / f"rank{rank}.trace.json.gz" for rank in (0, 1)]
        with pytest.raises(UsageError, match="does not exist; create it"):
            ov.record(path.parent / "no" / "x.json").begin()
