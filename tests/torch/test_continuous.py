"""A program that is watched continuously: recorded now and then, analysed beside it, and left alone by what fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from overlapscope.history.store import Store
from overlapscope.watching import kept
from tests.support import forked

pytest.importorskip("torch", reason="trains with torch")

TRAINING = """
import os, sys, time
from pathlib import Path
import torch
from overlapscope.watching import api, continuous

here = Path.cwd()
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def entries():
    from overlapscope.errors import UsageError
    from overlapscope.history.store import Store
    try:
        with Store.open(here / "history.sqlite", read_only=True) as history:
            return len(history.rows())
    except UsageError:
        # It is being made.
        return 0

def train(until, patience_s=200):
    began, steps = time.monotonic(), 0
    while not until() and time.monotonic() < began + patience_s:
        for _ in range(30):
            loss = model(torch.randn(64, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.02)
    assert until(), "it takes too long"

def reported(number=1):
    return lambda: len(list(here.glob("watched/*/*/report.html"))) >= number

# Recordings of steps this short are seldom otherwise.
continuous.MOST_OF_TIME = 1e9
asked = dict(every="0.2s", history=here / "history.sqlite", job="train")
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(TRAINING + code)
        done = forked.run(["train.py"], tmp_path, environment={"XDG_RUNTIME_DIR": str(tmp_path)} | environment)
        assert done.returncode == 0, done.stderr
        return done

    return run


def watched(folder: Path) -> list[Path]:
    return sorted(folder.glob("watched/train/*"))


def test_a_training_loop_is_recorded_analysed_and_told_of(run: Run, tmp_path: Path) -> None:
    done = run(
        """
api.watch(**asked, log=[f"prometheus:{here}/overlap.prom"])
train(reported(2))
print("trained")
"""
    )
    assert done.stdout == "trained\n"
    assert done.stderr == ""
    with Store.open(tmp_path / "history.sqlite", read_only=True) as history:
        rows = history.rows()
        points = history.points("host_step_time")
    assert len(rows) >= 2 and {row.origin.job for row in rows} == {"train"}
    assert len(points) == len(rows)
    assert "overlapscope_host_step_seconds" in (tmp_path / "overlap.prom").read_text()
    for recording in watched(tmp_path):
        assert {path.name for path in recording.iterdir()} == {kept.REPORT, kept.TRACE}


def test_of_a_program_that_ends_at_once_nothing_is_left_unfinished(run: Run, tmp_path: Path) -> None:
    run(
        """
api.watch(**asked)
train(lambda: any(here.glob("watched/*/*/*.trace.json.gz")))
"""
    )
    [recording] = watched(tmp_path)
    assert {path.name for path in recording.iterdir()} == {kept.REPORT, kept.TRACE}, "it was waited for"


def test_no_more_is_kept_than_was_asked_for(run: Run, tmp_path: Path) -> None:
    run(
        """
api.watch(**asked, keep="0")
train(lambda: entries() >= 2)
"""
    )
    assert watched(tmp_path) == []


def test_a_program_that_ends_while_it_is_recorded_keeps_no_more_either(run: Run, tmp_path: Path) -> None:
    run(
        """
api.watch(**asked, keep="0")
def step():
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
while not any(here.glob("watched/*/*")):
    step()
step(); step()
from overlapscope.recorder.recording import current
assert current() is not None
"""
    )
    assert watched(tmp_path) == []


def test_the_process_that_analyses_may_be_killed(run: Run, tmp_path: Path) -> None:
    done = run(
        """
import psutil
killed = []

def kill():
    for child in psutil.Process().children():
        if not killed and "overlapscope.watching.analyser" in child.cmdline():
            child.kill()
            killed.append(child.pid)
    return bool(killed)

api.watch(**asked)
train(kill)
train(reported())
print(entries() >= 1)
"""
    )
    assert done.stdout == "True\n"
    assert done.stderr == "overlapscope: the process that analyses a recording ended by SIGKILL.\n"
    with Store.open(tmp_path / "history.sqlite") as history:
        assert history.rows()


def test_a_program_that_is_killed_takes_its_analysis_with_it(tmp_path: Path) -> None:
    import psutil

    (tmp_path / "train.py").write_text(
        TRAINING
        + """
import psutil, signal
from overlapscope.watching import analysing

def analyses():
    return [child for child in psutil.Process().children() if "overlapscope.watching.analyser" in child.cmdline()]

api.watch(**asked)
train(analyses)
print(analyses()[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    done = forked.run(["train.py"], tmp_path, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == -9
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ('(here / "watched").write_text("in the way")', "no recording is made: "),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))", "no recording was made: "),
    ],
    ids=["no directory", "no room"],
)
def test_a_disk_that_takes_nothing_is_told_once_and_the_program_goes_on(spoil: str, said: str, run: Run) -> None:
    done = run(
        f"""
{spoil}
turns = []
class Told(continuous.Continuous):
    def _complain(self, kind, sentence):
        turns.append(kind)
        super()._complain(kind, sentence)
continuous.Continuous = Told
api.watch(**asked)
train(lambda: len(turns) >= 3)
print("trained")
"""
    )
    assert done.stdout == "trained\n"
    assert done.stderr.startswith(f"overlapscope: {said}") and done.stderr.count("\n") == 1


def test_a_sink_that_raises_is_told_once(run: Run, tmp_path: Path) -> None:
    done = run(
        """
class Writer:
    def add_scalar(self, *_): raise RuntimeError("no\\x1b[31m connection")
    add_text = add_scalar

api.watch(**asked, log=Writer())
train(reported(3))
"""
    )
    assert done.stderr == ("overlapscope: figures did not reach TensorBoard (RuntimeError: no\\x1b[31m connection).\n")
    assert len(watched(tmp_path)) >= 3


def test_of_several_ranks_the_first_is_recorded(run: Run, tmp_path: Path) -> None:
    for rank in ("1", "0"):
        run(
            """
api.watch(**asked)
mine = os.environ["RANK"] == "0"
train(reported() if mine else lambda: not api._watchers[os.getpid()].after_step)
print(len(list(here.glob("watched/*/*"))))
""",
            RANK=rank,
            WORLD_SIZE="2",
            LOCAL_RANK=rank,
        )
        assert bool(watched(tmp_path)) == (rank == "0")


def test_a_forked_child_records_nothing_of_its_own(run: Run, tmp_path: Path) -> None:
    done = run(
        """
api.watch(**asked)
train(reported())
if os.fork() == 0:
    for name in here.glob("watched/*/*/*"):
        name.unlink()
    began = time.monotonic()
    train(lambda: time.monotonic() > began + 1)
    print(len(list(here.glob("watched/*/*/*"))), flush=True)
    os._exit(0)
api._continuous[os.getpid()].finish()
os.wait()
"""
    )
    assert done.stdout == "0\n"


def test_a_variable_of_the_environment_says_how_often(run: Run, tmp_path: Path) -> None:
    done = run(
        """
from overlapscope.watching import at_import
at_import.start()
train(lambda: entries() >= 1)
os.environ["OVERLAPSCOPE_WATCH"] = "often"
at_import.start()
""",
        OVERLAPSCOPE_WATCH="0.2s",
        OVERLAPSCOPE_HISTORY=str(tmp_path / "history.sqlite"),
    )
    assert done.stderr.startswith("overlapscope: OVERLAPSCOPE_WATCH is not heeded: 'often' is not a length of time")


def test_the_room_is_called_as_the_function_whatever_is_imported_first(run: Run) -> None:
    run(
        """
import overlapscope.watching.callbacks
overlapscope.watch(**asked)
from overlapscope import watch
watch(**asked)
train(reported())
"""
    )
