"""The bound on the memory that a recording may take (`max_size_bytes`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import overlapscope as ov
from overlapscope.recorder import memory_guard
from overlapscope.recorder.memory_guard import bound, taken_bytes
from overlapscope.recorder.session import profiler_running
from tests.support import forked
from tests.support.recorded import MB, names, steps, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")
PATIENCE_S = 60.0


@pytest.mark.skipif(taken_bytes() is None, reason="this system does not say how much memory malloc gave out")
class TestMemoryGuard:
    LIMIT = 50 * MB

    @pytest.fixture(autouse=True)
    def it_looks_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory_guard, "_BETWEEN_SAMPLES_S", 0.05)

    def grow(self, done: Callable[[], bool], each: Callable[[], None] = lambda: None) -> None:
        """Take more and more memory, a little at a time, until that has had its effect."""
        kept = []
        until = time.monotonic() + PATIENCE_S
        while not done() and time.monotonic() < until:
            kept.append([np.ones(MB // 80) for _ in range(50)])
            time.sleep(0.02)
            each()

    def test_a_recording_that_takes_too_much_ends_early(self, path: Path) -> None:
        with ov.record(path, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            work("before")
            self.grow(lambda: rec.finished)
            assert rec.finished and path.exists()
            work("after")
        (note,) = rec.notes
        assert note.startswith("Recording ended early: ") and "(--max-size)" in note
        assert names(path) == ["before"]

    def test_the_step_under_way_does_not_count(self, path: Path) -> None:
        with ov.record(path, warmup=0, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            rec.step()
            self.grow(lambda: rec.finished)
        assert rec.notes[0].startswith("Recording ended early, in step 1: ")
        assert steps(path) == [0]

    def test_on_another_thread_it_ends_with_a_step(self, path: Path) -> None:
        notes: list[str] = []

        def record() -> None:
            with ov.record(path, warmup=0, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
                self.grow(lambda: rec.finished, rec.step)
                notes.extend(rec.notes)

        thread = threading.Thread(target=record)
        thread.start()
        thread.join()
        assert notes[0].startswith("Recording ended early")
        assert steps(path)[0] == 0

    def test_while_waiting_it_pauses_until_the_warm_up_opens(self, path: Path) -> None:
        with ov.record(path, wait=3, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            rec.step()
            work("before")
            self.grow(lambda: not profiler_running())
            assert not rec.finished
            work("in the pause")
            for index in range(1, 5):
                rec.step()
                work(f"after step {index}")
        assert rec.notes == ()
        assert steps(path) == [3, 4]
        assert [name for name in names(path) if not name.startswith("Prof")] == [f"after step {n}" for n in (2, 3, 4)]

    def test_a_program_that_ends_in_that_pause_leaves_what_was_recorded_until_then(self, path: Path) -> None:
        with ov.record(path, wait=3, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            rec.step()
            self.grow(lambda: not profiler_running())
        early, short = rec.notes
        assert early.startswith("Recording ended early, in step 1: ")
        assert "only 1 of the 5 steps" in short
        assert steps(path) == [0]

    @pytest.mark.parametrize("total", [0, 5])
    def test_before_the_first_step_what_there_is_is_kept_unless_the_warm_up_opens(self, total: int, path: Path) -> None:
        with ov.record(path, wait=2, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            work("set-up")
            self.grow(path.exists)
            for _ in range(total):
                rec.step()
                work("work")
        if total:
            assert steps(path) == [2, 3, 4]
            assert rec.notes == ()
        else:
            assert names(path) == ["set-up"]
            assert rec.notes[0].startswith("Recording ended early: ")

    def test_weights_that_the_program_loads_do_not_count(self, tmp_path: Path) -> None:
        # In a process that begins as any: what another has freed lies where a program's weights do not.
        program = (
            "import threading, time, torch\n"
            "from overlapscope.recorder import memory_guard\n"
            "memory_guard._BETWEEN_SAMPLES_S = 0.05\n"
            f"torch.empty({8 * MB // 4})\n"  # Once one has been freed, malloc maps none of that size any more.
            "kept, guards = [], {}\n"
            "for stacks in (False, True):\n"
            "    seemed = threading.Event()\n"
            f"    guards[seemed] = memory_guard.MemoryGuard({self.LIMIT}, seemed.set, stacks=stacks)\n"
            f"while not all(one.is_set() for one in guards) and len(kept) < {20 * self.LIMIT // (5 * MB)}:\n"
            f"    kept.append(torch.ones({5 * MB // 4}))\n"
            "    time.sleep(0.002)\n"
            "assert kept and all(guard.exceeded_bytes is None for guard in guards.values())\n"
        )
        environment = os.environ | forked.FINDS_US
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize(
        ("taken", "grown", "elapsed_s", "expected"),
        [
            (0, 100 * MB, 1.0, 100 * MB),
            (0, 9000 * MB, 1.0, 500 * MB),
            (400 * MB, 450 * MB, 1.0, 450 * MB),
            (400 * MB, 100 * MB, 1.0, 100 * MB),
            (400 * MB, -100 * MB, 1.0, 0),
        ],
    )
    def test_what_the_profiler_may_have_taken(self, taken: int, grown: int, elapsed_s: float, expected: int) -> None:
        assert bound(taken, grown, elapsed_s) == expected
