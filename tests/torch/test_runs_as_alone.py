"""Programs of `tests/programs/ways_to_run.py` behave under `overlapscope run` as they do alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs.ways_to_run import PROGRAMS
from tests.support import forked
from tests.support.recorded import ops_and_ranges, steps
from tests.support.run_command import FORKED, TRAIN, write

pytest.importorskip("torch", reason="records with torch")

REPORT = re.compile(r"^program\.trace\.json\.gz: .*^Add -v for [^\n]*\n", re.MULTILINE | re.DOTALL)


def of_the_program(stderr: str) -> str:
    """Return the program's part of stderr."""
    lines = REPORT.sub("", stderr).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("overlapscope: "))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_it_does_alone(name: str, tmp_path: Path) -> None:
    write(tmp_path / "program.py", PROGRAMS[name])
    alone, run = (forked.run([*command, "program.py"], tmp_path, stdin="given") for command in ((), FORKED))
    expected = alone.returncode, alone.stdout, alone.stderr
    assert (run.returncode, run.stdout, of_the_program(run.stderr)) == expected
    assert "internal error" not in run.stderr


def test_the_exception_of_a_program_that_dies_comes_last(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "for _ in range(5): train()\nraise ValueError('the reason')\n")
    run = forked.run([*FORKED, "train.py"], tmp_path)
    ours, _, rest = run.stderr.partition("Traceback (most recent call last):\n")
    assert rest.splitlines()[-1] == "ValueError: the reason" and "overlapscope" not in rest
    assert "wrote train.trace.json.gz" in ours and "A step takes" not in ours


def test_a_recording_goes_on_when_steps_are_found_on_another_thread(tmp_path: Path) -> None:
    """If it were stopped and started again there, torch would end the optimizer's open range in freed memory."""
    thread = "thread = threading.Thread(target=lambda: [train() for _ in range(4)])\nthread.start(); thread.join()\n"
    write(tmp_path / "train.py", f"import threading\n{TRAIN}torch.ones(3) / 3\n{thread}")
    run = forked.run([*FORKED, "train.py"], tmp_path)
    assert run.returncode == 0, run.stderr
    assert steps(tmp_path / "train.trace.json.gz") == [1, 2, 3]
    assert "aten::div" in ops_and_ranges(tmp_path / "train.trace.json.gz")


def test_all_threads_are_not_recorded_again_while_an_op_of_the_last_recording_may_be_under_way(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PROGRAMS["a thread with a long op"])
    run = forked.run([*FORKED, "train.py"], tmp_path)
    assert "The ops of other threads are not in the trace: an op was under way when" in run.stderr
