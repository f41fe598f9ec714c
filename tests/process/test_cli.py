"""The command line as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.core.reading.test_directories import KEPT
from tests.core.reading.test_reader import document, kernel, write
from tests.support.helpers import TRACES
from tests.support.stepped_traces import write_steps


def run(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "overlapscope", *args], capture_output=True, env=os.environ | env, check=False
    )


def test_as_a_program() -> None:
    done = run("analyze", str(TRACES / "pipeline_1stream.json.gz"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii() and b"\x1b" not in done.stdout
    assert done.stderr == b""
    assert run("analyze", "nothing.json").returncode == 2


def test_a_profiler_that_runs_it_goes_on_after_it() -> None:
    trace = str(TRACES / "pipeline_1stream.json.gz")
    command = [sys.executable, "-m", "cProfile", "-m", "overlapscope", "analyze", trace]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"Copy-bound" in done.stdout and b"function calls" in done.stdout


def test_a_closed_pipe_ends_quietly() -> None:
    read, wrote = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "overlapscope", "analyze", str(TRACES / "ddp"), "--format", "json"],
        stdout=wrote,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(wrote)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_long_read_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    import pty

    path = write(tmp_path / "trace.json", document([kernel(float(i)) for i in range(1, 9000)]))
    code = (
        "import sys; from overlapscope.reading import _progress, load; _progress._PATIENCE_S = 0.0;"
        "print(len(load(sys.argv[1]).gpu_ops))"
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=theirs, check=True
        )
        shown = os.read(ours, 100_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout.strip() == b"8999"
    assert b"reading" in shown


def stale(directory: Path) -> None:
    """Two ranks of the last run, and two that an earlier one of four ranks has left."""
    for rank in range(2):
        write_steps(directory / f"rank{rank}.json", rank=rank, world_size=2)
    for rank in (2, 3):
        write_steps(directory / f"rank{rank}.json", rank=rank, world_size=4)


def test_files_of_an_earlier_job_are_reported_and_do_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale(tmp_path)
    assert main(["check", str(tmp_path), *KEPT]) == 3
    assert "different world sizes (2, 4)" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(tmp_path), "--budget", "step_time <= 1 us"]) == 1
    assert main(["check", str(tmp_path), "--write-baseline", "--baseline", str(tmp_path / "b")]) == 2
    capsys.readouterr()
    for command in (["analyze"], ["analyze", "--format", "markdown"], ["analyze", "--format", "html"], ["ranks"]):
        assert main([*command, str(tmp_path)]) == 0
        assert "different world sizes (2, 4)" in " ".join(capsys.readouterr().out.replace("\\", "").split())
