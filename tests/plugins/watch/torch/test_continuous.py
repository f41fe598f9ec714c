"""A program that is watched continuously: recorded now and then, analyzed beside it, and left alone by what fails.

The clock of these programs moves only with their steps, except in the test that says so. `unit/test_turns.py` tests
when a recording is due.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from overlapscope.plugins.watch import continuous
from tests.support import forked

pytest.importorskip("torch", reason="trains with torch")
Store = pytest.importorskip("overlapscope.plugins.history.store").Store

TRAINING = """
import os, sys, time
from pathlib import Path
import torch
from overlapscope.base import clock
from overlapscope.plugins.watch import api, continuous

# For a machine on which an analysis takes long.
continuous.GRACE_S = 200
here = Path.cwd()
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
asked = dict(history=here / "history.sqlite", job="train")
now_ns = 0

def train(steps=1):
    global now_ns
    for _ in range(steps):
        loss = model(torch.randn(64, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        now_ns += 10_000_000

def entries():
    from overlapscope.errors import UsageError
    from overlapscope.plugins.history.store import Store
    try:
        with Store.open(here / "history.sqlite", read_only=True) as history:
            return len(history.rows())
    except UsageError:
        # It is being made.
        return 0
"""
FAKE_CLOCK = """
clock.now_ns = lambda: now_ns
asked["every"] = "10 min"

def come_due():
    global now_ns
    now_ns += 600_000_000_000
    # The first 20 pass, 11 marks time 10, and 4 are recorded.
    train(50)

def record():
    come_due()
    watching = api._continuous[os.getpid()]
    watching.finish()
    watching.start()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(code: str, *, clock: str = FAKE_CLOCK, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(TRAINING + clock + code)
        done = forked.run(
            ["train.py"], tmp_path, environment={"XDG_RUNTIME_DIR": str(tmp_path)} | environment, unloads=False
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def watched(folder: Path) -> list[Path]:
    return sorted(folder.glob("watched/train/*"))


def test_in_real_time_a_training_loop_is_recorded_analysed_and_told_of(run: Run, tmp_path: Path) -> None:
    done = run(
        """
# Recordings of steps this short are seldom otherwise.
continuous.MAX_SHARE_OF_TIME = 1e9
api.watch(**asked, every="0.1s", log=[lambda figures: (here / "figures").write_text(str(figures.scalars))])
while len(list(here.glob("watched/*/*/report.html"))) < 2:
    train()
    time.sleep(0.001)
print("trained")
""",
        clock="",
    )
    assert done.stdout == "trained\n"
    assert done.stderr == ""
    with Store.open(tmp_path / "history.sqlite", read_only=True) as history:
        rows = history.rows()
        points = history.points("host_step_time")
    assert len(rows) >= 2 and {row.origin.job for row in rows} == {"train"}
    assert len(points) == len(rows)
    assert "'host_step_ms': " in (tmp_path / "figures").read_text()
    for recording in watched(tmp_path):
        assert {path.name for path in recording.iterdir()} == {continuous.REPORT, continuous.TRACE}


def test_of_a_program_that_ends_at_once_nothing_is_left_unfinished(run: Run, tmp_path: Path) -> None:
    run(
        """
api.watch(**asked)
now_ns += 600_000_000_000
while not any(here.glob("watched/*/*/*.trace.json.gz")):
    train()
"""
    )
    [recording] = watched(tmp_path)
    assert {path.name for path in recording.iterdir()} == {continuous.REPORT, continuous.TRACE}, "it was waited for"


def test_no_more_is_kept_than_was_asked_for(run: Run, tmp_path: Path) -> None:
    done = run(
        """
api.watch(**asked, keep="0")
record()
record()
print(entries())
"""
    )
    assert done.stdout == "2\n"
    assert watched(tmp_path) == []


def test_a_program_that_ends_while_it_is_recorded_keeps_no_more_either(run: Run, tmp_path: Path) -> None:
    run(
        """
api.watch(**asked, keep="0")
now_ns += 600_000_000_000
while not any(here.glob("watched/*/*")):
    train()
train(2)
from overlapscope.recorder.recording import current
assert current() is not None
"""
    )
    assert watched(tmp_path) == []


def test_the_process_that_analyses_may_be_killed(run: Run, tmp_path: Path) -> None:
    done = run(
        """
import psutil

def analyser():
    children = psutil.Process().children()
    return next((one for one in children if "overlapscope.plugins.watch.analyser" in one.cmdline()), None)

api.watch(**asked)
come_due()
while (process := analyser()) is None:
    time.sleep(0.005)
process.kill()
record()
print(len(list(here.glob("watched/*/*/report.html"))))
"""
    )
    assert done.stdout == "1\n"
    assert done.stderr == "overlapscope: the process that analyses a recording was killed by SIGKILL.\n"
    with Store.open(tmp_path / "history.sqlite") as history:
        assert history.rows()


def test_a_program_that_is_killed_takes_its_analysis_with_it(tmp_path: Path) -> None:
    import psutil

    (tmp_path / "train.py").write_text(
        TRAINING
        + FAKE_CLOCK
        + """
import psutil, signal

def analyses():
    return [child for child in psutil.Process().children() if "overlapscope.plugins.watch.analyser" in child.cmdline()]

api.watch(**asked)
come_due()
while not analyses():
    time.sleep(0.005)
print(analyses()[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    done = forked.run(["train.py"], tmp_path, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == -9
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ('(here / "watched").write_text("in the way")', "no recording is made: "),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))", "no recording was made: "),
    ],
    ids=["no directory", "no room"],
)
def test_a_disk_that_takes_nothing_is_reported_once_and_the_program_goes_on(spoil: str, message: str, run: Run) -> None:
    done = run(
        f"""
{spoil}
turns = []
class Told(continuous.Continuous):
    def _report_once(self, kind, sentence):
        turns.append(kind)
        super()._report_once(kind, sentence)
continuous.Continuous = Told
api.watch(**asked)
for _ in range(3):
    come_due()
print("trained", len(turns))
"""
    )
    assert done.stdout == "trained 3\n"
    assert done.stderr.startswith(f"overlapscope: {message}") and done.stderr.count("\n") == 1


def test_a_disk_that_is_full_when_the_program_ends_is_reported_once(run: Run, tmp_path: Path) -> None:
    done = run(
        """
api.watch(**asked)
now_ns += 600_000_000_000
while not any(here.glob("watched/*/*")):
    train()
train(2)
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
"""
    )
    assert done.stderr.startswith("overlapscope: no recording was made: ") and done.stderr.count("\n") == 1
    assert "File too large" in done.stderr or "the disk may be full" in done.stderr
    assert watched(tmp_path) == []


def test_a_function_that_raises_is_reported_once(run: Run, tmp_path: Path) -> None:
    done = run(
        """
def send(figures): raise RuntimeError("no\\x1b[31m connection")

api.watch(**asked, log=send)
record()
record()
"""
    )
    assert done.stderr == ("overlapscope: figures did not reach send (RuntimeError: no\\x1b[31m connection).\n")
    assert len(watched(tmp_path)) == 2


def test_of_several_ranks_the_first_is_recorded(run: Run, tmp_path: Path) -> None:
    for rank in ("1", "0"):
        run(
            """
api.watch(**asked)
come_due()
assert bool(api._watchers[os.getpid()].after_step) == (os.environ["RANK"] == "0")
""",
            RANK=rank,
            WORLD_SIZE="2",
            LOCAL_RANK=rank,
        )
        assert len(watched(tmp_path)) == (rank == "0")


def test_a_forked_child_records_nothing_of_its_own(run: Run, tmp_path: Path) -> None:
    done = run(
        """
api.watch(**asked)
record()
if os.fork() == 0:
    for name in here.glob("watched/*/*/*"):
        name.unlink()
    come_due()
    print(len(list(here.glob("watched/*/*/*"))), flush=True)
    os._exit(0)
os.wait()
"""
    )
    assert done.stdout == "0\n"


def test_a_variable_of_the_environment_says_how_often(run: Run, tmp_path: Path) -> None:
    done = run(
        """
from overlapscope.recorder import at_import
at_import.start()
record()
print(entries())
os.environ["OVERLAPSCOPE_WATCH"] = "often"
at_import.start()
""",
        OVERLAPSCOPE_WATCH="10min",
        OVERLAPSCOPE_HISTORY=str(tmp_path / "history.sqlite"),
    )
    assert done.stdout == "1\n"
    assert done.stderr.startswith("overlapscope: OVERLAPSCOPE_WATCH is ignored: 'often' is not a length of time")


def test_the_room_is_called_as_the_function_whatever_is_imported_first(run: Run, tmp_path: Path) -> None:
    run(
        """
import overlapscope.plugins.watch.api
overlapscope.watch(**asked)
from overlapscope import watch
watch(**asked)
record()
"""
    )
    [recording] = watched(tmp_path)
    assert (recording / continuous.REPORT).exists()


@pytest.mark.parametrize(
    "end", ["watcher.finish(); watching._start_recording()", "watching._start_recording(); sys.exit()"]
)
def test_a_program_that_ends_before_a_recording_begins_is_told_nothing(end: str, run: Run) -> None:
    done = run(
        f"""
api.watch(**asked)
watcher, watching = api.watcher_of_this_process(), api._continuous[os.getpid()]
# Asked for right before the end, where usually a step ends.
train(20)
{end}
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
