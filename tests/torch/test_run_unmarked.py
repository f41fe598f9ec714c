"""`overlapscope run` with programs that mark no step, and notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import forked
from tests.support.recorded import ops_and_ranges, steps
from tests.support.run_command import FORKED, TRAIN, no_gpu, ours, write, wrote

pytest.importorskip("torch", reason="records with torch")
UNMARKED = (
    "import sys\nimport overlapscope.recorder.driver as driver\nfrom overlapscope.commands import main\n"
    "driver.UNMARKED_S, driver.START_UP_S, driver.FIRST_STEP_S = {}\n"
    "sys.argv[0] = 'overlapscope'\nmain(sys.argv[1:])\n"
)
LOOPS = (
    "import os, time\nwhile {}: torch.ones(3) * 3; time.sleep(0.001)\n"
    "for _ in range({}): train(); time.sleep(0.002)\nopen('end', 'w').close()\n"
)
"""A recording waits while steps become faster, so they are all of about the same length."""


@pytest.mark.parametrize(
    ("lengths", "until", "marked", "sentence", "recorded"),
    [
        ((0.1, 60), "torch.autograd.profiler._is_profiler_enabled", 0, "from its start on", 0),
        ((0.1, 0.1), "'after its start-up' not in open('errors').read()", 0, "after its start-up", 0),
        ((0.1, 0.1), "'after its start-up' not in open('errors').read()", 200, "a step takes", 7),
    ],
    ids=["a short program", "a long one", "one that marks steps late"],
)
def test_a_program_without_steps_is_recorded_for_a_few_seconds(
    lengths: tuple[float, float], until: str, marked: int, sentence: str, recorded: int, tmp_path: Path
) -> None:
    write(tmp_path / "train.py", TRAIN + "torch.ones(3) / 3\n" + LOOPS.format(until, marked))
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        command = ["-c", UNMARKED.format((*lengths, 0)), "run", "train.py"]
        forked.ForkedProgram(command, tmp_path, stderr=stderr.fileno(), unloads=False).communicate()
    assert (tmp_path / "end").exists() and sentence in errors.read_text()
    marks = steps(tmp_path / "train.trace.json.gz")
    # On a busy machine, steps become steady later.
    assert marks == [*range(marks[0], marks[0] + recorded)] if recorded else not marks
    assert ("aten::div" in ops_and_ranges(tmp_path / "train.trace.json.gz")) == (sentence == "from its start on")


def test_a_slow_first_step_is_waited_for(tmp_path: Path) -> None:
    slow = "for number in range(3):\n    time.sleep(0 if number else 1.5); train()\n"
    write(tmp_path / "train.py", f"import time\n{TRAIN}torch.ones(3) / 3\n{slow}")
    run = forked.run(["-c", UNMARKED.format((0.1, 60, 60)), "run", "train.py"], tmp_path, unloads=False)
    assert run.returncode == 0, run.stderr
    assert steps(tmp_path / "train.trace.json.gz") == [0, 1, 2]
    assert "aten::div" in ops_and_ranges(tmp_path / "train.trace.json.gz")


def test_the_whole_program_is_recorded_where_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "for _ in range(45): train()\ntorch.ones(3) / 3\n")
    run = forked.run([*FORKED, "--whole", "train.py"], tmp_path, unloads=False)
    assert ours(run) == [wrote("train.trace.json.gz"), no_gpu()]
    assert steps(tmp_path / "train.trace.json.gz") == list(range(45))
    assert "aten::div" in ops_and_ranges(tmp_path / "train.trace.json.gz")
