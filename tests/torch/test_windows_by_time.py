"""Windows that the clock opens and closes, and windows that are kept for a slow step.

Tests move the clock themselves. Only `TestByTheTime` has a test in real time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.recorder.recording import Recording
from overlapscope.recorder.step_times import SlowSteps
from tests.support.fake_clock import NS_PER_MS, FakeClock
from tests.support.recorded import names, ranges, steps, timed, work
from tests.support.run_command import run

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


def elsewhere(program: Callable[[], None]) -> None:
    """Run a program on another thread than the main one, where windows open and close with the next step."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(program).result()


COMPUTES = "while not os.path.exists('x.json'):\n    work('computes')\n"


class TestByTheTime:
    def test_whole_steps_are_recorded_from_the_delay_on_for_the_duration_and_those_around_are_timed(
        self, clock: FakeClock, path: Path
    ) -> None:
        def program() -> None:
            with ov.record(path, delay_s=0.6, duration_s=0.4, plain_steps=5) as rec:
                for number in range(150):
                    work(f"{number}")
                    clock.wait(ms=10)
                    rec.step()
                assert rec.finished
            assert rec.notes == () and rec.paths == (path,)

        elsewhere(program)
        # The window opens when step 59 ends. Step 60 is under way then, so it counts as little as step 100.
        assert ranges(path) == [f"{number}" for number in range(60, 100)]
        assert steps(path) == list(range(61, 100))
        trace = ov.load(path)
        assert trace.warm_up_steps == 1
        assert trace.plain_steps.before.host_ns == trace.plain_steps.after.host_ns == (10 * NS_PER_MS,) * 5

    def test_it_opens_at_once_without_a_delay_and_ends_with_the_program_without_a_duration(
        self, clock: FakeClock, path: Path
    ) -> None:
        def program(**options: float) -> None:
            with ov.record(path, plain_steps=0, **options) as rec:  # type: ignore[arg-type]
                for number in range(4):
                    work(f"{number}")
                    clock.wait(s=1)
                    rec.step()

        elsewhere(lambda: program(duration_s=2))
        assert ranges(path) == ["1", "2"]
        elsewhere(lambda: program(delay_s=2))
        assert ranges(path) == ["2", "3"]

    def test_a_thread_that_is_inside_one_call_is_recorded_late_and_told(self, clock: FakeClock, path: Path) -> None:
        def program() -> None:
            with ov.record(path, delay_s=1, duration_s=1, plain_steps=0) as rec:
                clock.wait(s=3)
                rec.step()
                work("in")
                clock.wait(s=1)
                rec.step()
                work("out")
            assert rec.notes == ("A window opened 2.0 s late: until then the thread that records was inside one call.",)

        elsewhere(program)
        assert ranges(path) == ["in"]

    def test_a_program_that_ends_before_is_reported(self, tmp_path: Path) -> None:
        output = run("--delay 30 --duration 5", "work('w')", tmp_path)
        assert output == [
            "There is no trace: the program ended before the recording started, 30 s after the start (not on the main "
            "thread: with the next step).",
            "nothing was recorded.",
        ]

    @pytest.mark.parametrize(
        ("during", "recorded"),
        [
            (
                """
# Again and again: where a signal comes while the trace is being written, the main thread first sleeps on.
def wake_once_written():
    until_written()
    while sleeping:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)

signal.signal(signal.SIGUSR1, wake)
sleeping = True
threading.Thread(target=wake_once_written).start()
try:
    time.sleep(600)
    sys.exit("the sleep was cut short")
except Written:
    sleeping = False
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
""",
                set(),
            ),
            ("waiting = threading.Thread(target=until_written)\nwaiting.start()\nwaiting.join()\n", set()),
            (COMPUTES, {"computes"}),
            # As if it computed in C.
            (f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\ntime.sleep(0.7)\n{COMPUTES}", {"computes"}),
        ],
        ids=["sleeps", "waits", "computes", "deaf"],
    )
    def test_in_real_time_the_main_thread_is_recorded_whatever_it_does_and_late_where_it_cannot_be_woken(
        self, during: str, recorded: set[str], tmp_path: Path
    ) -> None:
        program = f"""
import os, signal

class Written(Exception):
    pass

def wake(*_):
    raise Written

def until_written():
    while not os.path.exists("x.json"):
        time.sleep(0.005)

{during}
work("after")
assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
# The recorder's threads are told to end, and not waited for.
while threading.active_count() > 1:
    time.sleep(0.005)
"""
        notes = run("--delay 0.05 --duration 0.2", program, tmp_path)
        assert "No step ended before or after the recording, so no step was timed without the profiler." in notes
        deaf = re.compile(r"A window opened \d\.\d s late: until then the thread that records was inside one call\.")
        assert any(map(deaf.fullmatch, notes)) or "SIGURG" not in during
        assert set(names(tmp_path / "x.json")) == recorded

    def test_a_handler_of_a_signal_that_comes_while_the_trace_is_written_raises_afterwards(
        self, tmp_path: Path
    ) -> None:
        program = """
import os, signal
from overlapscope.recorder import trace_file

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

def interrupted_and_slow(plain):
    os.kill(os.getpid(), signal.SIGUSR1)
    # Longer than the clock takes to ask again.
    time.sleep(0.2)

signal.signal(signal.SIGUSR1, interrupt)
trace_file._check_whole = interrupted_and_slow
try:
    while True:
        time.sleep(0.01)
except Interrupted:
    assert os.path.exists("x.json")
"""
        assert run("--duration 0.05 --plain-steps 0", program, tmp_path) == []


class TestASlowStep:
    def program(self, clock: FakeClock, path: Path, *, steps: int = 200, **options: int) -> Recording:
        """Make steps of 2 ms each, except for step 100, which takes 2 s."""
        with ov.record(path, slow_step=100, **options) as rec:  # type: ignore[arg-type]
            for number in range(steps):
                work()
                clock.wait(ms=2000 if number == 100 else 2)
                rec.step()
        return rec

    def test_it_is_kept_and_nothing_else_judged(self, clock: FakeClock, path: Path) -> None:
        rec = self.program(clock, path, active=1000)
        assert rec.notes == (
            "Step 100 took 2,000.0 ms, 1000.0 times the median of 2.0 ms (98 steps, recorded ones like it).",
        )
        assert steps(path) == list(range(1, 101))
        assert ov.load(path).warm_up_steps == 99
        assert timed(path) == (0, 0)

    def test_windows_without_one_are_thrown_away(self, clock: FakeClock, path: Path) -> None:
        self.program(clock, path, wait=3, warmup=1, active=50)
        # Windows of 51 steps from the third on, with a step between them.
        assert steps(path) == list(range(55, 101))

    def test_a_missing_slow_step_is_reported(self, clock: FakeClock, path: Path) -> None:
        rec = self.program(clock, path, steps=60)
        assert rec.notes == (
            "There is no trace: no step took more than 100 times the median of 2.00 ms (54 steps judged).",
        )
        assert not path.exists()

    def test_on_the_command_line(self, tmp_path: Path) -> None:
        output = run("--slow-step 1000000", "for _ in range(60):\n    work('w')\n    ov.step()", tmp_path)
        assert output[0].startswith("There is no trace: no step took more than 1e+06 times the median of ")
        assert output[1:] == ["nothing was recorded."]
        assert not (tmp_path / "x.json").exists()

    def test_steps_are_held_against_those_before_them(self) -> None:
        slow = SlowSteps(3)
        assert [slow.judge(step, 10_000_000) for step in range(10)] == [None] * 10
        assert slow.judge(10, 30_000_000) is None
        assert slow.judge(11, 30_000_001) == (
            "Step 11 took 30.00 ms, 3.0 times the median of 10.00 ms (11 steps, recorded ones like it)."
        )
        assert slow.why_none().startswith(
            "There is no trace: no step took more than 3 times the median of 10.0 ms (12 steps judged)"
        )
        assert "only 0 steps could be judged" in SlowSteps(3).why_none()
