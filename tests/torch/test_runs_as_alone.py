"""Programs of `tests/programs/ways_to_run` behave under `overlapscope run` as they do alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.ways_to_run import DIFFER_MOST, PROGRAMS
from tests.support import forked
from tests.support.as_alone import check_that_it_runs_as_alone
from tests.support.recorded import ops_and_ranges, steps
from tests.support.run_command import FORKED, TRAIN, write

pytest.importorskip("torch", reason="records with torch")


@pytest.mark.parametrize("name", DIFFER_MOST)
def test_a_program_runs_as_it_does_alone(name: str, tmp_path: Path) -> None:
    check_that_it_runs_as_alone(PROGRAMS[name], tmp_path)


def test_nothing_is_imported_for_a_program_that_has_an_earlier_trace(tmp_path: Path) -> None:
    """The reader of traces would import numpy, which reads variables that the program may set first."""
    write(tmp_path / "program.py", "import sys\nprint('overlapscope.reading' in sys.modules)\n")
    write(tmp_path / "program.trace.json.gz", "earlier")
    assert forked.run([*FORKED, "program.py"], tmp_path).stdout == "False\n"


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
    # An op of a second is under way whenever the recording stops.
    write(tmp_path / "train.py", PROGRAMS["a thread with a long op"].text.replace("900, 900", "5000, 5000"))
    run = forked.run([*FORKED, "train.py"], tmp_path)
    assert "The ops of other threads are not in the trace: an op was under way when" in run.stderr


def test_a_program_goes_on_if_the_recorder_cannot_start_a_thread(tmp_path: Path) -> None:
    limited = """
import threading

start = threading.Thread.start

def limited(thread):
    if thread.name == "overlapscope memory guard": raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = limited
"""
    write(
        tmp_path / "train.py",
        f"{limited}{TRAIN}for _ in range(50): train()\nprint(torch.autograd._profiler_enabled())\n",
    )
    run = forked.run([*FORKED, "train.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "False\n")
    assert "overlapscope: torch.profiler failed to start: can't start new thread\n" in run.stderr
