"""Tests of `overlapscope try` with real processes that imitate a training program:

Its runs, its messages and its files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import overlapscope
from overlapscope.commands.schema import schema_of
from overlapscope.plugins.trials import processes
from tests.plugins.trials import pretended

PROGRAM = Path(pretended.__file__)
TRY = (sys.executable, "-m", "overlapscope", "try")
PATIENCE_S = 120
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    copy = tmp_path / "train.py"
    copy.write_text(PROGRAM.read_text())
    return copy


def attempt(script: Path, *like: str, options: Sequence[str] = (), stdin: str = "") -> Done:
    return subprocess.run(
        [*TRY, *options, script.name, *like],
        cwd=script.parent,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def trial(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of("trial"))
    return document


JSON = ("--format", "json")


def test_a_change_that_pays_is_measured_and_recommended(script: Path) -> None:
    outcome = trial(attempt(script, options=JSON))
    workers, fused = outcome["changes"]
    assert (workers["change"], workers["value"], workers["kept"], workers["results"]) == ("workers", "2", True, "same")
    assert workers["verdict"] == "faster"
    assert workers["measured_low_pct"] <= workers["measured_pct"] <= workers["measured_high_pct"] < -25
    assert (fused["after"], fused["verdict"], fused["kept"]) == (["workers (2)"], "no more than noise", False)
    assert outcome["best"] == 0
    assert {omitted["change"]: omitted["reason"] for omitted in outcome["left_out"]}[
        "graph"
    ] == "The program uses no GPU."
    assert outcome["baseline_runs"] == workers["runs"] >= 3
    assert outcome["repeatable"] is True
    assert (outcome["interrupted"], outcome["recordings"]) == (False, {"before": None, "after": None})


def test_the_user_learns_that_the_program_runs_many_times_and_each_run_reads_stdin_anew(script: Path) -> None:
    done = attempt(script, stdin="two words")
    assert "Running python train.py again and again" in done.stderr
    assert "What it writes in this directory, it writes each time" in done.stderr
    runs = (script.parent / "runs.txt").read_text().splitlines()
    assert len(runs) > 6
    assert all(line.endswith("two words") for line in runs)
    assert done.stdout.startswith("A step takes 7.10 ms instead of 10.1 ms (-29.")


def test_runs_in_scratch_directories_leave_nothing_behind(script: Path) -> None:
    done = attempt(script, options=("--scratch", "--only", "fused"))
    assert done.returncode == 0
    assert "Each run has an empty directory" in done.stderr
    assert os.listdir(script.parent) == ["train.py"]


def test_a_module_is_found_from_a_scratch_directory(script: Path) -> None:
    assert trial(attempt(script.with_suffix(""), options=(*JSON, "--scratch", "--only", "fused", "-m")))
    assert "runs.txt" not in os.listdir(script.parent)


def test_where_nothing_pays_nothing_is_recommended(script: Path) -> None:
    done = attempt(script, options=("--only", "fused"))
    assert done.returncode == 0
    assert "none of the changes that were tried makes it shorter for sure" in " ".join(done.stdout.split())


def test_a_program_that_fails_as_it_is_ends_as_under_python(script: Path) -> None:
    done = attempt(script, "fails")
    assert done.returncode == 1
    assert "the data is broken" in done.stderr
    assert "the program fails as it is, so no change was tried" in done.stderr
    assert done.stdout == ""


def test_a_program_that_fails_only_while_it_is_looked_at_is_tried_all_the_same(script: Path) -> None:
    outcome = trial(attempt(script, "fails-when-looked-at", options=JSON))
    assert outcome["best"] == 0
    assert outcome["notes"] == [
        "The program fails during the survey, which therefore saw only a part of it. "
        "It exited with code 1: a worker was killed by signal: Aborted"
    ]


def test_a_program_is_run_without_us_before_it_is_reported_to_fail(script: Path) -> None:
    done = attempt(script, "fails-when-timed")
    assert done.returncode == 1
    assert "the program runs by itself, but fails under `overlapscope try`" in done.stderr
    assert "fails as it is" not in done.stderr


def test_a_program_that_fails_only_with_a_change_is_reported(script: Path) -> None:
    outcome = trial(attempt(script, "fails-with-workers", options=JSON))
    failed = outcome["changes"][0]
    assert failed["failure"] == "It exited with code 1: the data is broken"
    assert (failed["step_ns"], failed["kept"], failed["results"]) == (None, False, "unknown")
    assert outcome["changes"][1]["after"] == []


def test_a_change_that_makes_results_different_is_not_recommended(script: Path) -> None:
    outcome = trial(attempt(script, "differs", options=(*JSON, "--only", "workers")))
    assert [change["results"] for change in outcome["changes"]] == ["different"]
    assert outcome["best"] is None


@pytest.mark.parametrize(
    ("like", "code", "message"),
    [
        (["0"], 2, "the program made no steps"),
        (["9"], 2, "the program made 9 steps, and at least 16 are needed"),
        (["16"], 0, "Run 1, as it is"),
    ],
)
def test_steps_are_needed(script: Path, like: list[str], code: int, message: str) -> None:
    done = attempt(script, *like, options=("--only", "fused"))
    assert (done.returncode, message in done.stderr) == (code, True)


def test_a_program_without_torch_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1)")
    done = attempt(tmp_path / "plain.py")
    assert (done.returncode, "never imported torch" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "worker"], "there is no change 'worker' (did you mean 'workers'?)"),
        (["--minutes", "none"], "'none' is not a number of minutes"),
        (["--steps", "3"], "'3' is not a number of steps from 10 on"),
        (["--recordings", "."], "is not empty"),
    ],
)
def test_usage(script: Path, options: list[str], message: str) -> None:
    done = attempt(script, options=options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = attempt(tmp_path / "none.py")
    assert (done.returncode, "there is no such script" in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_ctrl_c_shows_what_is_known(script: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*TRY, *JSON, script.name, "hangs"],
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and not (script.parent / "hanging.txt").exists():
        time.sleep(0.05)
    process.send_signal(number)
    out, errors = process.communicate(timeout=PATIENCE_S)
    with pytest.raises(ProcessLookupError):
        os.kill(int((script.parent / "hanging.txt").read_text()), 0)
    assert process.returncode == 128 + number
    if number == signal.SIGTERM:
        return
    assert "Interrupted." in errors
    document = json.loads(out)
    assert (document["interrupted"], document["changes"], document["baseline_runs"]) == (True, [], 1)


def test_of_what_a_run_prints_the_end_alone_is_read(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('x' * 10_000_000, 'the end')"]
    ended = processes.run(command, os.environ, tmp_path, tmp_path, b"", PATIENCE_S)
    assert ended.output.endswith("x the end\n")
    assert len(ended.output) < 1_000_000
    assert (tmp_path / processes.OUTPUT).stat().st_size > 10_000_000


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PRETENDED_TRACE", str(Path(overlapscope.__file__).parent / "samples" / "training_naive.json.gz")
    )


@pytest.mark.usefixtures("recording")
def test_on_a_gpu_predictions_stand_beside_what_was_measured_and_the_best_set_has_no_races(script: Path) -> None:
    outcome = trial(attempt(script, "gpu", options=(*JSON, "--only", "pin,non-blocking", "--recordings", "kept")))
    pin, both = outcome["changes"]
    for item in (pin, both):
        predicted = item["predicted_pct"]
        assert predicted["low"] <= predicted["value"] <= predicted["high"] < 0
    assert both["after"] == ["pin"]
    assert outcome["best"] == 1
    assert (pin["races"], both["races"]) == (None, 0)
    assert outcome["device_name"] == "H200"
    kept = script.parent / "kept"
    assert outcome["recordings"] == {side: str(kept / f"{side}.trace.json.gz") for side in ("before", "after")}


@pytest.mark.usefixtures("recording")
def test_a_set_with_data_races_is_not_recommended(script: Path) -> None:
    outcome = trial(attempt(script, "gpu", "races", options=(*JSON, "--only", "pin")))
    assert outcome["changes"][0]["races"] == 2
    assert (outcome["best"], outcome["recordings"]["after"]) == (None, None)


def test_runs_and_recordings_are_kept_where_asked(script: Path) -> None:
    done = attempt(script, options=("--recordings", "kept", "--only", "fused"))
    assert done.returncode == 0
    assert {"run-1", "run-2"} <= set(os.listdir(script.parent / "kept"))
    assert (script.parent / "kept" / "run-1" / "output.txt").read_text() == ""
