"""What opens and closes a recording's windows besides steps: the time, a range, a slow step; and several windows. And
programs whose own profiler is ignored.

Every program here is a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.errors import UsageError
from overlapscope.recorder.destination import window_path
from overlapscope.recorder.step_times import SlowSteps
from tests.support import forked

pytest.importorskip("torch", reason="records with torch")

RUN = ("-m", "overlapscope", "run")
HEAD = """
import sys, threading, time, torch, overlapscope as ov
from torch.profiler import record_function

def work(name):
    with record_function(name):
        torch.ones(8, 8) @ torch.ones(8, 8)

def until(seconds, do):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        do()
"""


def run(options: str, program: str, cwd: Path) -> list[str]:
    """Run a program with `overlapscope run OPTIONS -o x.json`; what that says at its end, without its name."""
    (cwd / "program.py").write_text(HEAD + program)
    done = forked.run([*RUN, "-o", "x.json", *options.split(), "program.py"], cwd)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("overlapscope: ")]
    of_all = ("no GPU activity", " wrote ", "a complete recording takes", "shows the report again")
    at_end = [line for line in said if not any(words in line for words in of_all)]
    return [line.removeprefix("overlapscope: ") for line in at_end]


def run_as_it_is(program: str, cwd: Path) -> None:
    """Run a program that records by itself."""
    done = forked.run(["-c", HEAD + program], cwd)
    assert done.returncode == 0, done.stderr


def names(path: Path) -> list[str]:
    notes = ov.load(path).annotations
    return [notes.name(row) for row in range(len(notes))]


def steps(path: Path) -> list[int]:
    return [int(name.removeprefix("ProfilerStep#")) for name in names(path) if name.startswith("ProfilerStep#")]


def timed(path: Path) -> tuple[int, int]:
    plain = ov.load(path).plain_steps
    return len(plain.before.host_ns), len(plain.after.host_ns)


class TestByTheTime:
    def test_a_program_without_steps_is_recorded_for_a_while(self, tmp_path: Path) -> None:
        said = run(
            "--delay 0.5 --duration 0.3",
            "until(0.4, lambda: work('early'))\nuntil(1, lambda: work('due'))\nuntil(0.5, lambda: work('late'))",
            tmp_path,
        )
        found = names(tmp_path / "x.json")
        assert "due" in found and "early" not in found and "late" not in found
        assert said == ["No step ended before or after the recording, so no step was timed without the profiler."]

    @pytest.mark.parametrize(
        "wait",
        ["time.sleep(3)", "server = threading.Thread(target=time.sleep, args=(3,)); server.start(); server.join()"],
    )
    def test_a_main_thread_that_waits_is_woken_for_it_and_waits_on(self, wait: str, tmp_path: Path) -> None:
        program = f"began = time.monotonic()\n{wait}\nassert time.monotonic() - began > 2.9\nwork('behind')"
        said = run("--delay 0.5 --duration 0.5 --plain-steps 0", program, tmp_path)
        assert said == []
        assert names(tmp_path / "x.json") == []

    def test_a_main_thread_that_computes_in_c_is_recorded_late_and_told(self, tmp_path: Path) -> None:
        busy = "max(map(hash, range(60_000_000)))\nuntil(1, lambda: work('w'))"
        said = run("--delay 0.1 --duration 0.3 --plain-steps 0", busy, tmp_path)
        assert said[0].startswith("A window opened ") and said[0].endswith("was inside one call.")
        assert set(names(tmp_path / "x.json")) == {"w"}

    def test_a_program_that_ends_before_is_told(self, tmp_path: Path) -> None:
        said = run("--delay 30", "work('w')", tmp_path)
        assert said[0].startswith(
            "There is no trace: the program ended before the recording started, 30 s after the start "
        )
        assert said[1:] == ["nothing was recorded."]

    def test_where_there_are_steps_whole_ones_are_recorded_and_those_around_are_timed(self, tmp_path: Path) -> None:
        program = "for number in range(150):\n    work('w')\n    time.sleep(0.01)\n    ov.step()"
        run("--delay 0.6 --duration 0.4 --warmup 1 --plain-steps 5", program, tmp_path)
        recorded = steps(tmp_path / "x.json")
        assert recorded == list(range(recorded[0], recorded[-1] + 1)) and recorded[0] > 5
        assert ov.load(tmp_path / "x.json").warm_up_steps == 1
        assert timed(tmp_path / "x.json") == (5, 5)

    def test_in_code(self, tmp_path: Path) -> None:
        program = (
            "with ov.record('y.json', duration_s=0.3) as rec:\n    until(1, lambda: work('w'))\n"
            "    assert rec.finished\n    work('late')\nassert [path.name for path in rec.paths] == ['y.json']\n"
            "import signal\nassert signal.getsignal(signal.SIGURG) is signal.SIG_DFL\n"
            # The recorder's threads are told to end, and not waited for.
            "while threading.active_count() > 1: time.sleep(0.01)"
        )
        run_as_it_is(program, tmp_path)
        assert set(names(tmp_path / "y.json")) == {"w"}


class TestARange:
    EPOCHS = "for epoch in range(3):\n    with record_function('epoch'):\n        for _ in range(4): work('in'); ov.step()\n    for _ in range(8): work('out'); ov.step()"  # fmt: skip  # noqa: E501

    def test_from_its_entry_until_it_is_left(self, tmp_path: Path) -> None:
        said = run("--capture-range epoch --warmup 1 --plain-steps 3", self.EPOCHS, tmp_path)
        found = names(tmp_path / "x.json")
        assert found.count("epoch") == 1 and found.count("in") == 4 and "out" not in found
        # The step that was under way when it opened is none of its steps, nor is the one when it closed.
        assert steps(tmp_path / "x.json") == [1, 2, 3]
        assert ov.load(tmp_path / "x.json").warm_up_steps == 1
        assert timed(tmp_path / "x.json") == (0, 3)
        assert len(said) == 1 and said[0].startswith("a step takes ")

    def test_one_that_is_never_entered(self, tmp_path: Path) -> None:
        said = run("--capture-range epochs", self.EPOCHS, tmp_path)
        assert said[0] == "There is no trace: the program never entered a range epochs on its main thread."

    def test_those_of_nvtx_lie_within_one_another(self, tmp_path: Path) -> None:
        # PyTorch for CPUs has no NVTX.
        program = (
            "from torch.cuda import nvtx\n"
            "class Stub:\n    rangePushA = staticmethod(lambda name: 0)\n    rangePop = staticmethod(lambda: 0)\n"
            "nvtx._nvtx = Stub\n"
            "with nvtx.range('outer'):\n    work('before')\n    nvtx.range_push('chosen')\n"
            "    with nvtx.range('chosen'): work('in')\n    work('in')\n    nvtx.range_pop()\n    work('after')\n"
        )
        run("--capture-range chosen", program, tmp_path)
        assert names(tmp_path / "x.json") == ["in", "in"]

    def test_between_the_calls_of_the_cuda_runtime(self, tmp_path: Path) -> None:
        # PyTorch for CPUs has no such module, which `torch.cuda.cudart()` gives.
        program = (
            "class Runtime:\n    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: 0)\n"
            "torch._C._cudart = Runtime\n"
            "with ov.record('y.json', capture_range='cudaProfilerApi'):\n    work('before')\n"
            "    Runtime.cudaProfilerStart()\n    work('in')\n    Runtime.cudaProfilerStop()\n    work('after')\n"
        )
        run_as_it_is(program, tmp_path)
        assert names(tmp_path / "y.json") == ["in"]

    def test_nothing_is_left_of_it_behind_the_window(self, tmp_path: Path) -> None:
        program = (
            "enter = record_function.__enter__\n"
            "with ov.record('y.json', capture_range='chosen', plain_steps=0):\n"
            "    with record_function('chosen'): assert record_function.__enter__ is not enter\n"
            "    assert record_function.__enter__ is enter\n"
        )
        run_as_it_is(program, tmp_path)

    def test_scripted_ranges_still_compile(self, tmp_path: Path) -> None:
        program = (
            "@torch.jit.script\ndef scripted(x):\n    with record_function('inner'): return x + 1\n"
            "with record_function('chosen'): scripted(torch.ones(1))\n"
        )
        run("--capture-range chosen", program, tmp_path)
        assert sorted(names(tmp_path / "x.json")) == ["chosen", "inner"]


class TestSeveralWindows:
    LOOP = "for number in range({}):\n    work('w')\n    time.sleep(0.001)\n    ov.step()"

    def test_each_has_a_file_and_the_steps_timed_around_it(self, tmp_path: Path) -> None:
        run("--repeat 3 --wait 4 --warmup 1 --active 2 --plain-steps 3", self.LOOP.format(60), tmp_path)
        paths = [tmp_path / f"x-{number}.json" for number in (1, 2, 3)]
        # Between two windows two steps settle, three are timed, and at least four pass.
        assert [steps(path) for path in paths] == [[11, 12, 13], [19, 20, 21], [27, 28, 29]]
        assert [timed(path) for path in paths] == [(3, 3)] * 3
        assert [ov.load(path).warm_up_steps for path in paths] == [1, 1, 1]

    def test_a_program_that_ends_before_the_last_is_told(self, tmp_path: Path) -> None:
        said = run("--repeat 9 --wait 0 --warmup 0 --active 2 --plain-steps 0", self.LOOP.format(9), tmp_path)
        assert [steps(path) for path in sorted(tmp_path.glob("x-*"))] == [[0, 1], [3, 4], [6, 7]]
        assert said[0] == "The program ended after 3 of 9 windows."

    def test_none_of_them_is_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "x-2.json").write_text("another's")
        said = run("--repeat 2 --wait 0 --active 2 --plain-steps 0", self.LOOP.format(9), tmp_path)
        assert "the previous trace is now x-2.json.1." in said
        assert (tmp_path / "x-2.json.1").read_text() == "another's"

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("runs/x.trace.json.gz", "runs/x-2.trace.json.gz"),
            ("x.json", "x-2.json"),
            ("runs/x.traces/rank3.trace.json.gz", "runs/x-2.traces/rank3.trace.json.gz"),
        ],
    )
    def test_their_names(self, path: str, expected: str) -> None:
        assert window_path(Path(path), 2) == Path(expected)


class TestASlowStep:
    LOOP = "for number in range({}):\n    work('w')\n    time.sleep(2 if number == 100 else 0.002)\n    ov.step()"

    def test_it_is_kept_and_nothing_else_judged(self, tmp_path: Path) -> None:
        said = run("--slow-step 100 --active 1000", self.LOOP.format(200), tmp_path)
        assert said[0].startswith("Step 100 took 2,0") and " times the median of " in said[0]
        recorded = steps(tmp_path / "x.json")
        assert recorded[-1] == 100
        assert ov.load(tmp_path / "x.json").warm_up_steps == len(recorded) - 1
        assert timed(tmp_path / "x.json") == (0, 0)

    def test_windows_without_one_are_thrown_away(self, tmp_path: Path) -> None:
        program = self.LOOP.format(200) + "\nassert not torch.autograd.profiler._is_profiler_enabled"
        run("--slow-step 100 --wait 3 --warmup 1 --active 50", program, tmp_path)
        # Windows of 51 steps from the third on, with a step between them.
        assert steps(tmp_path / "x.json") == list(range(55, 101))

    def test_where_none_came_that_is_told(self, tmp_path: Path) -> None:
        said = run("--slow-step 100", self.LOOP.format(60), tmp_path)
        assert (
            said[0].startswith("There is no trace: no step took more than 100 times the median of ")
            and said[1] == "nothing was recorded."
        )
        assert not (tmp_path / "x.json").exists()

    def test_steps_are_held_against_those_before_them(self) -> None:
        slow = SlowSteps(3)
        assert [slow.judge(step, 10_000_000) for step in range(10)] == [None] * 10
        assert slow.judge(10, 30_000_000) is None
        assert slow.judge(11, 30_000_001) == (
            "Step 11 took 30.00 ms, 3.0 times the median of 10.00 ms (11 steps, recorded ones like it)."
        )
        assert slow.none().startswith(
            "There is no trace: no step took more than 3 times the median of 10.0 ms (12 steps judged)"
        )
        assert "only 0 steps could be judged" in SlowSteps(3).none()


class TestIgnoringTheProgramsOwnProfiler:
    PROGRAM = """
import gzip, json
from torch.profiler import ProfilerActivity, profile, schedule
options = {"schedule": schedule(wait=1, warmup=1, active=2), "on_trace_ready": lambda _: 1 / 0, "with_stack": True}
with profile(activities=[ProfilerActivity.CPU], **options) as prof:
    for number in range(9):
        work("loop")
        prof.step()
assert prof.step_num == 9
assert prof.key_averages().table(sort_by="self_cpu_time_total") == "" and not len(prof.events())
prof.export_chrome_trace("own.json")
prof.export_chrome_trace("own.json.gz")
prof.export_stacks("own.txt")
assert json.load(open("own.json")) == json.load(gzip.open("own.json.gz")) == {"traceEvents": []}
with torch.autograd.profiler.profile() as prof:
    work("old")
assert prof.table() == "" and prof.self_cpu_time_total == 0
prof.export_chrome_trace("old.json")
with torch.autograd.profiler.emit_nvtx():
    work("nvtx")
torch.autograd._disable_profiler()
"""

    def test_it_records_nothing_and_marks_the_steps(self, tmp_path: Path) -> None:
        said = run("--ignore-own-profiler --wait 0 --warmup 0 --active 9 --plain-steps 0", self.PROGRAM, tmp_path)
        assert said == ["The program's own profiler was ignored: its tables and exports are empty."]
        assert steps(tmp_path / "x.json") == list(range(9))
        assert names(tmp_path / "x.json").count("loop") == 9

    def test_in_code_until_the_recording_ends(self, tmp_path: Path) -> None:
        program = """
with ov.record("y.json", ignore_own_profiler=True, plain_steps=0) as rec:
    ignored = torch.profiler.profile()
    ignored.start()
    work("in")
    rec.step()
ignored.step()
ignored.stop()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
    work("behind")
assert "behind" in prof.key_averages().table()
prof.export_chrome_trace("own.json")
"""
        run_as_it_is(program, tmp_path)
        assert names(tmp_path / "y.json") == ["ProfilerStep#0", "in"]
        assert names(tmp_path / "own.json") == ["behind"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"duration_s": 1, "active": 2}, "delay_s or duration_s and active both choose what is recorded"),
        ({"capture_range": "x", "delay_s": 0}, "capture_range and delay_s or duration_s both choose"),
        ({"capture_range": "x", "slow_step": 2}, "slow_step and capture_range both choose"),
        ({"delay_s": float("nan")}, "delay_s is nan; it must be 0 or more"),
        ({"duration_s": 0}, "duration_s is 0; it must be more than 0"),
        ({"slow_step": 1}, "slow_step is 1; it must be more than 1"),
        ({"slow_step": 2, "warmup": 0}, "slow_step needs a warmup"),
        ({"repeat": 2}, "repeat needs windows with an end"),
        ({"repeat": 0, "active": 1}, "repeat is 0"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, float], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        ov.record(tmp_path / "x.json", **options)  # type: ignore[arg-type]
