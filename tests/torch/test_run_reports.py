"""`overlapscope run`: its report comes when the recording is complete, and no trace is overwritten."""

from __future__ import annotations

import gzip
import json
import signal
import time
from pathlib import Path

import pytest

from overlapscope.reading import expand
from tests.support import forked
from tests.support.recorded import steps, timed
from tests.support.run_command import FORKED, SHORT, TRAIN, ours, write

pytest.importorskip("torch", reason="records with torch")


def test_a_former_trace_is_kept_under_a_number(tmp_path: Path) -> None:
    write(tmp_path / "program.py", "import torch; torch.ones(3) * 3\n")
    for number in range(3):
        run = forked.run([*FORKED, "program.py"], tmp_path)
        assert (f"the previous trace is now program.trace.json.gz.{number}." in run.stderr) == (number > 0)
    former = [tmp_path / f"program.trace.json.gz.{number}" for number in (1, 2)]
    assert all("aten::mul" in json.dumps(json.loads(gzip.decompress(path.read_bytes()))) for path in former)
    # Analyzed as a directory, it has one trace.
    assert [path.name for path in expand([str(tmp_path)])] == ["program.trace.json.gz"]


ENDINGS = {
    # On a busy machine, steps may differ so much that it is recorded again.
    "it goes on": "while not os.path.exists('reported'): train(); time.sleep(0.02)\nprint('went on')\n",
    "it is killed": "os.kill(os.getpid(), signal.SIGKILL)\n",
    "it leaves at once": "os._exit(7)\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_report_is_printed_when_the_recording_is_complete_however_the_program_ends(
    ending: str, tmp_path: Path
) -> None:
    head = TRAIN + "import os, signal, time\nfor _ in range(41): train()\n"
    write(tmp_path / "train.py", head + ENDINGS[ending])
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        program = forked.ForkedProgram([*FORKED, "train.py"], tmp_path, stderr=stderr.fileno())
        while "\ntrain.trace.json.gz" not in errors.read_text():
            time.sleep(0.02)
        (tmp_path / "reported").touch()
        out, _ = program.communicate()
    expected = {"it goes on": (0, "went on\n"), "it is killed": (-signal.SIGKILL, ""), "it leaves at once": (7, "")}
    assert (program.returncode, out) == expected[ending]
    assert errors.read_text().count("\ntrain.trace.json.gz") == 1
    again = "`overlapscope analyze train.trace.json.gz` shows the report again."
    assert (again in errors.read_text()) == (ending == "it goes on")
    assert timed(tmp_path / "train.trace.json.gz") == (10, 10)


def test_a_program_that_leaves_or_is_killed_before_that_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "import os, sys\nfor _ in range(25): train()\nexec(sys.argv[1])\n")
    run = forked.run([*FORKED, "train.py", "os._exit(3)"], tmp_path)
    assert run.returncode == 3 and SHORT.format(25) in ours(run)
    assert steps(tmp_path / "train.trace.json.gz") == list(range(10))
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        program = forked.ForkedProgram(
            [*FORKED, "train.py", "os.kill(os.getpid(), 9)"], tmp_path, stderr=stderr.fileno()
        )
        program.communicate()
        assert program.returncode == -signal.SIGKILL
    while "so there is no trace" not in errors.read_text():
        time.sleep(0.02)


def test_a_program_that_another_thread_ends_while_a_call_hangs_is_told_of(tmp_path: Path) -> None:
    hang = (
        "import ctypes, os, threading, time\n"
        "def leave(): time.sleep(0.5); os._exit(6)\n"
        "threading.Thread(target=leave, daemon=True).start()\n"
        "ctypes.CDLL(None).pause()\n"
    )
    write(tmp_path / "train.py", TRAIN + "for _ in range(25): train()\n" + hang)
    write(tmp_path / "train.trace.json.gz", "of an earlier run")
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        program = forked.ForkedProgram([*FORKED, "--force", "train.py"], tmp_path, stderr=stderr.fileno())
        program.communicate()
    while "so there is no trace" not in errors.read_text():
        time.sleep(0.02)
    while "the previous trace is now train.trace.json.gz.old." not in errors.read_text():
        time.sleep(0.02)
    assert program.returncode == 6
    assert {path.name for path in tmp_path.glob("*.gz*")} == {"train.trace.json.gz.old"}


def test_every_wait_for_child_processes_ends(tmp_path: Path) -> None:
    """The process that prints the report is not a child of the program's."""
    write(
        tmp_path / "program.py",
        "import os, torch\ntorch.ones(3)\nif not os.fork(): os._exit(0)\n"
        "try:\n    while True: print(os.wait()[1])\nexcept ChildProcessError: print('no more')\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "0\nno more\n")
