"""`overlapscope.record`: what is in the file after which program, and what is left when something goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import overlapscope as ov
from overlapscope.base.revision import revision
from overlapscope.errors import RecordingFailed, UsageError
from overlapscope.recorder import all_threads, trace_file
from overlapscope.recorder import session as session_module
from overlapscope.recorder.destination import Destination, Rank, rank_of
from overlapscope.recorder.memory_guard import bound, taken_bytes
from overlapscope.recorder.recorder import Recorder
from overlapscope.recorder.recording import current
from overlapscope.recorder.schedule import Schedule
from overlapscope.recorder.session import Metadata, Options, Session, profiler_running
from overlapscope.trace.model import PlainSteps
from tests.support import forked

torch = pytest.importorskip("torch", reason="records with torch")
known_causes = pytest.importorskip("tests.programs.known_causes", reason="records with torch")

ROOT = Path(__file__).parents[2]
MB = 1_000_000
PATIENCE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.trace.json.gz"


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Any:
    yield
    left = current()
    if left is not None:
        left.end()
    assert left is None
    assert not profiler_running()


def content(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def names(path: Path, category: str = "user_annotation") -> list[str]:
    events = [event for event in content(path)["traceEvents"] if event.get("cat") == category]
    return [event["name"] for event in sorted(events, key=lambda event: float(event["ts"]))]


def steps(path: Path) -> list[int]:
    return [int(name.removeprefix("ProfilerStep#")) for name in names(path) if name.startswith("ProfilerStep#")]


def warm_up_steps(path: Path) -> int:
    found = ov.load(path).warm_up_steps
    told = {"version": ov.__version__, "torch": torch.__version__, "warm_up_steps": found}
    assert content(path)["overlapscope"].items() >= told.items()
    return found


def work(name: str = "work") -> None:
    with torch.profiler.record_function(name):
        torch.ones(8, 8) @ torch.ones(8, 8)


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own; `path` is `x.trace.json.gz` in its directory."""
    head = "import os, sys, threading, torch\nimport overlapscope as ov\npath = 'x.trace.json.gz'\n"
    return forked.run(["-c", head + code], cwd, environment=environment)


def _add(tensor: Any) -> None:
    tensor + 1


def _mark_and_collate(samples: list[int]) -> Any:
    ov.step()
    return torch.tensor(samples)


class TestWhatIsRecorded:
    @pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.trace.json.gz", "überlapp ß.json.gz"])
    def test_a_program_without_steps_is_recorded_as_a_whole(self, name: str, tmp_path: Path) -> None:
        with ov.record(tmp_path / name) as rec:
            work()
        assert rec.path == tmp_path / name
        assert rec.finished
        assert rec.notes == ()
        assert names(rec.path) == ["work"]
        assert warm_up_steps(rec.path) == 0
        trace = ov.load(rec.path)
        assert trace.damage == type(trace.damage)()
        assert "aten::mm" in {trace.cpu_ops.name(row) for row in range(len(trace.cpu_ops))}
        assert [file.name for file in tmp_path.iterdir()] == [name]

    def test_a_trace_says_when_and_of_what_it_was_recorded(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_SHA", "c0ffee")
        monkeypatch.setenv("GITHUB_REF_NAME", "main")
        monkeypatch.setattr(session_module, "_revision", revision)
        monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
        before_ns = time.time_ns()
        with ov.record(path) as rec:
            work()
            rec.step()
        origin = ov.load(path).origin
        assert origin is not None and origin.at_ns is not None
        assert (origin.commit, origin.branch, origin.job) == ("c0ffee", "main", "train.py")
        assert before_ns <= origin.at_ns <= time.time_ns()
        assert not {"host", "hostname"} & content(path)["overlapscope"]["origin"].keys()

    def test_steps_are_numbered_and_the_first_is_warm_up(self, path: Path) -> None:
        with ov.record(path, plain_steps=0) as rec:
            for index in range(4):
                work(f"step {index}")
                rec.step()
            work("after the last step")
        assert steps(path) == [0, 1, 2, 3]
        assert warm_up_steps(path) == 1
        assert "after the last step" in names(path)
        assert rec.notes == ()

    @pytest.mark.parametrize(
        ("wait", "warmup", "active", "made", "recorded", "warm_up"),
        [
            (0, 1, None, 5, [0, 1, 2, 3, 4], 1),
            (0, 0, None, 3, [0, 1, 2], 0),
            (0, 0, 1, 3, [0], 0),
            (0, 2, 2, 9, [0, 1, 2, 3], 2),
            (2, 0, 1, 9, [2], 0),
            (3, 0, 2, 9, [3, 4], 0),
            (3, 2, 2, 9, [3, 4, 5, 6], 2),
            (3, 2, 2, 6, [3, 4, 5], 2),
            (3, 2, None, 9, [3, 4, 5, 6, 7, 8], 2),
            (1, 1, 10, 4, [0, 1, 2, 3], 2),
        ],
    )
    def test_phases(
        self, wait: int, warmup: int, active: int | None, made: int, recorded: list[int], warm_up: int, path: Path
    ) -> None:
        with ov.record(path, wait=wait, warmup=warmup, active=active, plain_steps=0) as rec:
            for index in range(made):
                work(f"step {index}")
                rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up
        assert [name for name in names(path) if name.startswith("step")] == [f"step {index}" for index in recorded]
        assert rec.notes == ()

    @pytest.mark.parametrize(
        ("steps_in_range", "wait", "recorded", "warm_up"),
        [(1, 2, [0, 1, 2, 3], 2), (1, 3, [3, 4], 0), (2, 4, [5, 6], 0), (99, 3, [0, 1, 2, 3, 4], 3)],
    )
    def test_no_range_is_entered_under_one_session_of_the_profiler_and_left_under_the_next(
        self, steps_in_range: int, wait: int, recorded: list[int], warm_up: int, path: Path
    ) -> None:
        """torch may crash then. So the file begins earlier, or later, than asked for."""
        with ov.record(path, wait=wait, warmup=0, active=2, plain_steps=0) as rec:
            for begin in range(0, 12, steps_in_range):
                with torch.profiler.record_function("around"):
                    for _ in range(begin, min(begin + steps_in_range, 12)):
                        work()
                        rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up

    @pytest.mark.parametrize(
        ("wait", "warmup", "made", "recorded"),
        [
            (5, 1, 2, [0, 1]),
            (3, 1, 3, [0, 1]),
            (3, 2, 4, [3]),
            (1, 3, 2, [0, 1]),
            (0, 2, 2, [0, 1]),
            (0, 2, 1, [0]),
            (2, 0, 1, [0]),
        ],
    )
    def test_a_program_too_short_to_be_judged_leaves_what_there_is(
        self, wait: int, warmup: int, made: int, recorded: list[int], path: Path
    ) -> None:
        with ov.record(path, wait=wait, warmup=warmup, plain_steps=0) as rec:
            for _ in range(made):
                work()
                rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == 0
        (note,) = rec.notes
        assert f"only {made} of the {wait + warmup + 1} steps" in note

    def test_a_program_without_steps_is_recorded_though_steps_were_to_be_waited_for(self, path: Path) -> None:
        with ov.record(path, wait=2, active=3) as rec:
            work()
        assert names(path) == ["work"]
        assert "marked no step" in rec.notes[0]

    def test_the_trace_is_there_as_soon_as_the_active_steps_are_over(self, path: Path) -> None:
        with ov.record(path, active=1, plain_steps=0) as rec:
            rec.step()
            assert (rec.finished, path.exists()) == (False, False)
            rec.step()
            assert (rec.finished, path.exists()) == (True, True)
            before = path.read_bytes()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                work()
            rec.step()
        assert path.read_bytes() == before

    def test_a_decorator_records_each_call_anew(self, path: Path) -> None:
        @ov.record(path, warmup=0)
        def train(count: int) -> int:
            """Doc."""
            for _ in range(count):
                ov.step()
            return count

        assert train.__doc__ == "Doc."
        for count in (2, 3):
            assert train(count) == count
            assert steps(path) == list(range(count))

    def test_a_decorator_refuses_what_returns_before_it_runs(self, path: Path) -> None:
        async def train() -> None: ...

        with pytest.raises(UsageError, match="use `with` inside it"):
            ov.record(path)(train)

    def test_begin_and_end(self, path: Path) -> None:
        rec = ov.record(path)
        rec.step()
        rec.end()
        rec.begin()
        rec.end()
        rec.end()
        rec.step()
        assert path.exists()
        with pytest.raises(UsageError, match="ended already"):
            rec.begin()

    def test_an_existing_file_is_overwritten(self, path: Path) -> None:
        path.write_text("mine")
        with ov.record(path):
            assert path.read_text() == "mine"
        assert steps(path) == []

    def test_the_program_may_go_to_another_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with ov.record("x.json") as rec:
            monkeypatch.chdir(tmp_path / "elsewhere")
        assert rec.path == tmp_path / "x.json" and rec.path.exists()

    def test_options_add_stacks_shapes_and_memory(self, path: Path) -> None:
        def seen() -> tuple[bool, bool, bool]:
            events = content(path)["traceEvents"]
            return (
                any(event.get("cat") == "python_function" for event in events),
                any("Input Dims" in event.get("args", {}) for event in events),
                any(event.get("name") == "[memory]" for event in events),
            )

        for chosen in ("", "stacks", "shapes", "memory"):
            with ov.record(path, stacks=chosen == "stacks", shapes=chosen == "shapes", memory=chosen == "memory"):
                work()
            assert seen() == (chosen == "stacks", chosen == "shapes", chosen == "memory")

    @pytest.mark.parametrize(("made", "wait", "stacks"), [(2, 0, True), (2, 2, False), (5, 2, True)])
    def test_no_stacks_are_recorded_while_steps_are_waited_for(
        self, made: int, wait: int, stacks: bool, path: Path
    ) -> None:
        with ov.record(path, wait=wait, active=1, plain_steps=0, stacks=True) as rec:
            for _ in range(made):
                work()
                rec.step()
        recorded = any(event.get("cat") == "python_function" for event in content(path)["traceEvents"])
        assert recorded == stacks
        assert any("has no stacks" in note for note in rec.notes) != stacks

    def test_a_program_s_own_annotation_of_the_same_name_is_not_taken_out(self, path: Path) -> None:
        with ov.record(path) as rec:
            work("[ProfilerStep#1]")
            rec.step()
            work('"name": "ProfilerStep#1"')
            work("ProfilerStep#10")
        notes = ov.load(path).annotations
        expected = ["ProfilerStep#0", "[ProfilerStep#1]", '"name": "ProfilerStep#1"', "ProfilerStep#10"]
        assert {notes.name(row) for row in range(len(notes))} == set(expected)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"wait": -1}, "wait is -1; it must be 0 or more"),
            ({"warmup": -2}, "warmup is -2"),
            ({"active": 0}, "active is 0; it must be 1 or more"),
            ({"plain_steps": -1}, "plain_steps is -1; it must be 0 or more"),
            ({"light": True, "stacks": True, "memory": True}, "leave out light or stacks and memory"),
            ({"max_size_bytes": 0}, "max_size_bytes is 0"),
            ({"wait": 1.5}, "wait is 1.5; it must be a whole number"),
            ({"active": "5"}, "active is '5'; it must be a whole number"),
        ],
    )
    def test_numbers_that_make_no_sense(self, options: dict[str, Any], said: str, path: Path) -> None:
        with pytest.raises(UsageError, match=said):
            ov.record(path, **options)

    @pytest.mark.parametrize("name", ["x", "x.trace", "x.json.zst", "x.html", "gz"])
    def test_a_file_name_of_another_format(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=rf"name it {name.partition('.')[0]}\.trace\.json\.gz"):
            ov.record(tmp_path / name)

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="does not exist; create it"):
            ov.record(tmp_path / "no" / "x.json").begin()
        (tmp_path / "x.json").mkdir()
        with pytest.raises(UsageError, match="is a directory"):
            ov.record(tmp_path / "x.json").begin()

    def test_a_second_recording_at_the_same_time(self, path: Path, tmp_path: Path) -> None:
        other = ov.record(tmp_path / "y.json")
        with ov.record(path):
            work("before")
            with pytest.raises(UsageError, match=r"x\.trace\.json\.gz is being recorded"):
                other.begin()
            work("after")
        assert names(path) == ["before", "after"]

    def test_beside_a_profiler_of_the_program_which_goes_on(self, path: Path, tmp_path: Path) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            with pytest.raises(UsageError, match="another torch profiler is running"):
                ov.record(path).begin()
            work()
        own.export_chrome_trace(str(tmp_path / "own.json"))
        assert names(tmp_path / "own.json") == ["work"]
        assert current() is None

    @pytest.mark.parametrize("plain_steps", [0, 2])
    @pytest.mark.parametrize("first", [0, 8], ids=["at once", "between rehearsal and recording"])
    def test_a_profiler_that_starts_inside_takes_its_place(self, first: int, plain_steps: int, tmp_path: Path) -> None:
        """Two at once would crash the process (torch 2.13)."""
        done = python(
            f"""
            def work(): torch.ones(8, 8) @ torch.ones(8, 8)
            own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1))
            with ov.record(path, plain_steps={plain_steps}) as rec:
                for index in range(20):
                    work(); rec.step()
                    if index == {first}: own.start()
                    elif index > {first}: own.step()
                own.stop()
                own.export_chrome_trace('own.json')
            print(*rec.notes)
            with ov.record('other.json'): work()
            """.replace("\n            ", "\n"),
            tmp_path,
        )
        said = "The program's own torch.profiler was used, with its schedule.\n"
        assert (done.returncode, done.stdout) == (0, said), done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == steps(tmp_path / "own.json") == [2]
        assert steps(tmp_path / "other.json") == []

    def test_a_profiler_that_outlives_the_recording_is_taken_when_it_stops(self, path: Path, tmp_path: Path) -> None:
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with ov.record(path):
            work("before")
            own.start()
            work("inside")
        assert not path.exists()
        work("after")
        own.stop()
        own.export_chrome_trace(str(tmp_path / "own.json"))
        assert names(path) == names(tmp_path / "own.json") == ["inside", "after"]

    def test_without_torch_one_sentence_says_what_to_install(self, tmp_path: Path) -> None:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport overlapscope as ov\nov.record('x.json').begin()"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "MissingPackage: recording needs PyTorch" in done.stderr.splitlines()[-1]
        assert "pip install" in done.stderr.splitlines()[-1]


class TestWhenSomethingGoesWrong:
    def test_an_exception_leaves_the_trace_and_goes_on(self, path: Path) -> None:
        @ov.record(path)
        def train() -> None:
            for index in range(5):
                ov.step()
                if index == 2:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train()
        assert steps(path) == [0, 1, 2]

    def test_a_trace_that_cannot_be_written_is_told_at_the_end_and_nothing_else_stops(self, tmp_path: Path) -> None:
        directory = tmp_path / "gone"
        directory.mkdir()
        rec = ov.record(directory / "x.json", active=1, plain_steps=0)
        rec.begin()
        directory.rmdir()
        for _ in range(3):
            rec.step()
        assert rec.finished
        (note,) = rec.notes
        with pytest.raises(RecordingFailed, match="cannot be written") as failed:
            rec.end()
        assert note == str(failed.value)
        assert current() is None

    def test_a_failed_write_does_not_hide_the_program_s_own_exception(self, tmp_path: Path) -> None:
        directory = tmp_path / "gone"
        directory.mkdir()

        @ov.record(directory / "x.json")
        def train() -> None:
            directory.rmdir()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as raised:
            train()
        assert any("cannot be written" in note for note in raised.value.__notes__)

    @pytest.mark.parametrize("suffix", ["json", "json.gz"])
    def test_a_full_disk_leaves_no_half_file(self, suffix: str, tmp_path: Path) -> None:
        target = tmp_path / f"x.{suffix}"
        target.write_text("the last good one")
        done = python(
            f"""
import resource
rec = ov.record({target.name!r})
rec.begin()
for _ in range(1000): torch.ones(3)
sys.dont_write_bytecode = True  # what is first imported from here on would be left cut off
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
rec.end()
""",
            tmp_path,
        )
        assert "RecordingFailed" in done.stderr.splitlines()[-1]
        assert target.read_text() == "the last good one"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_program_that_ends_without_end_leaves_its_trace(self, tmp_path: Path) -> None:
        done = python("rec = ov.record(path); rec.begin(); torch.ones(3); rec.step(); sys.exit(7)", tmp_path)
        assert done.returncode == 7
        assert steps(tmp_path / "x.trace.json.gz") == [0]

    def test_a_forked_child_writes_nothing_and_ends_nothing(self, tmp_path: Path) -> None:
        done = python(
            """
with ov.record(path, active=2) as rec:
    ov.step()
    child = os.fork()
    if child == 0:
        for _ in range(5): ov.step()
        rec.end()
        os._exit(int(os.path.exists(path)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ov.step()
    assert not rec.finished
    ov.step()
""",
            tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == [0, 1, 2]

    def test_worker_processes_of_a_loader_are_left_alone(self, path: Path) -> None:
        loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2, collate_fn=_mark_and_collate)
        with ov.record(path, warmup=0) as rec:
            for _ in loader:
                rec.step()
        assert steps(path) == [0, 1, 2, 3]

    def test_another_thread_cannot_step_or_end(self, path: Path) -> None:
        said: list[str] = []

        def other() -> None:
            rec.step()
            ov.step()
            try:
                rec.end()
            except UsageError as error:
                said.append(str(error))

        with ov.record(path) as rec:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            rec.step()
        assert said and "the thread that began it" in said[0]
        assert steps(path) == [0]

    def test_steps_that_are_marked_on_another_thread_only_are_told_of(self, path: Path) -> None:
        with ov.record(path) as rec:
            thread = threading.Thread(target=ov.step)
            thread.start()
            thread.join()
        (note,) = rec.notes
        assert note.startswith("Steps were marked on a different thread")

    @pytest.mark.skipif(not all_threads.possible(), reason="this torch records the ops of one thread only")
    def test_ops_and_ranges_of_all_threads_are_recorded(self, path: Path) -> None:
        def answer(number: int) -> int:
            with torch.profiler.record_function(f"request {number}"):
                (torch.ones(3, requires_grad=True) * 3).sum().backward()
            return threading.get_native_id()

        with ThreadPoolExecutor(1) as before, ThreadPoolExecutor(1) as later:
            before.submit(answer, 0).result()
            with ov.record(path) as rec:
                threads = [before.submit(answer, 1).result(), later.submit(answer, 2).result()]
        assert rec.notes == () and names(path) == ["request 1", "request 2"]
        multiplied = [event["tid"] for event in content(path)["traceEvents"] if event["name"] == "aten::mul"]
        assert sorted(set(multiplied)) == sorted(threads)
        ov.load(path)

    def test_a_program_whose_other_threads_cannot_be_recorded_is_told(self, path: Path) -> None:
        notes: list[str] = []
        for light in (False, True):
            with ThreadPoolExecutor(1) as pool, ov.record(path, memory=not light, light=light) as rec:
                pool.submit(work).result()
            notes += rec.notes
        assert notes == [f"The ops of other threads are not in the trace: {notes[0].partition(': ')[2]}"]

    @pytest.mark.skipif(not all_threads.possible(), reason="this torch records the ops of one thread only")
    def test_before_the_profiler_stops_no_thread_notes_an_op_any_more(self, path: Path) -> None:
        done, ended = 0, False

        def work_on() -> None:
            nonlocal done
            while not ended:
                with torch.profiler.record_function(f"range {done}"):
                    done += 1

        session = Session(Options())
        thread = threading.Thread(target=work_on)
        thread.start()
        while done < 10:
            time.sleep(0.001)
        all_threads.settle()
        settled = done
        while done < settled + 100:
            time.sleep(0.001)
        session.stop(Metadata(0, PlainSteps()), unfinished=None)
        ended = True
        thread.join()
        trace_file.write(session.export, path)
        assert 10 <= len(names(path)) <= settled + 1

    @pytest.mark.skipif(taken_bytes() is None, reason="this system does not say how much memory a process has")
    @pytest.mark.parametrize("stacks", [False, True])
    def test_a_forked_child_does_not_keep_its_ops_in_memory(self, stacks: bool, path: Path) -> None:
        with ov.record(path, stacks=stacks):
            child = os.fork()
            if child == 0:
                three, before = torch.ones(3), taken_bytes() or 0
                for _ in range(100_000):
                    _add(three)
                os._exit(int((taken_bytes() or 0) - before > 20 * MB))
            assert os.waitpid(child, 0)[1] == 0

    def test_any_thread_can_record(self, path: Path) -> None:
        def record() -> None:
            with ov.record(path) as rec:
                for _ in range(3):
                    work()
                    rec.step()

        thread = threading.Thread(target=record)
        thread.start()
        thread.join()
        assert steps(path) == [0, 1, 2]


@pytest.mark.skipif(taken_bytes() is None, reason="this system does not say how much memory malloc gave out")
class TestMemoryGuard:
    LIMIT = 50 * MB

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

    @pytest.mark.parametrize("made", [0, 5])
    def test_before_the_first_step_what_there_is_is_kept_unless_the_warm_up_opens(self, made: int, path: Path) -> None:
        with ov.record(path, wait=2, plain_steps=0, max_size_bytes=self.LIMIT) as rec:
            work("set-up")
            self.grow(path.exists)
            for _ in range(made):
                rec.step()
                work("work")
        if made:
            assert steps(path) == [2, 3, 4]
            assert rec.notes == ()
        else:
            assert names(path) == ["set-up"]
            assert rec.notes[0].startswith("Recording ended early: ")

    def test_weights_that_the_program_loads_do_not_count(self, tmp_path: Path) -> None:
        # In a process that begins as any: what another has freed lies where a program's weights do not.
        program = (
            "import threading, time, torch\n"
            "from overlapscope.recorder.memory_guard import MemoryGuard\n"
            f"torch.empty({8 * MB // 4})\n"  # Once one has been freed, malloc maps none of that size any more.
            "kept, guards = [], {}\n"
            "for stacks in (False, True):\n"
            "    seemed = threading.Event()\n"
            f"    guards[seemed] = MemoryGuard({self.LIMIT}, seemed.set, stacks=stacks)\n"
            f"while not all(one.is_set() for one in guards) and len(kept) < {20 * self.LIMIT // (5 * MB)}:\n"
            f"    kept.append(torch.ones({5 * MB // 4}))\n"
            "    time.sleep(0.02)\n"
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


class TestPlainSteps:
    """With three plain steps, and one step of warm-up and two judged ones:

    0 1 2 rehearsed | 3 4 settle | 5 6 7 timed | 8 9 10 recorded | 11 12 settle | 13 14 15 timed
    """

    SCHEDULE: ClassVar[dict[str, int]] = {"warmup": 1, "active": 2, "plain_steps": 3}

    @pytest.mark.parametrize(
        ("made", "recorded", "warm_up", "before", "after"),
        [
            (0, [], 0, 0, 0),
            (1, [0], 0, 0, 0),
            (2, [0, 1], 1, 0, 0),
            (3, [0, 1, 2], 1, 0, 0),
            (5, [0, 1, 2], 1, 0, 0),
            (7, [0, 1, 2], 1, 0, 2),
            (10, [0, 1, 2], 1, 0, 3),
            (11, [8, 9, 10], 1, 3, 0),
            (13, [8, 9, 10], 1, 3, 0),
            (15, [8, 9, 10], 1, 3, 2),
            (30, [8, 9, 10], 1, 3, 3),
        ],
    )
    def test_what_is_in_the_file_of_a_program_of_so_many_steps(
        self, made: int, recorded: list[int], warm_up: int, before: int, after: int, path: Path
    ) -> None:
        lengths: list[float] = []
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(made):
                begin = time.perf_counter_ns()
                work()
                rec.step()
                lengths.append(time.perf_counter_ns() - begin)
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up
        plain = ov.load(path).plain_steps
        assert (len(plain.before.host_ns), len(plain.after.host_ns)) == (before, after)
        assert plain.before.device_ns == plain.after.device_ns == ()
        assert all(0 < one < sum(lengths) for one in (*plain.before.host_ns, *plain.after.host_ns))
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        if made >= 11 or made == 0:
            assert rec.notes == ()
        else:
            (note,) = rec.notes
            assert f"only {made} of the 11 steps needed" in note and "--plain-steps 0 needs 2" in note

    def test_the_trace_is_written_at_once_and_amended_at_the_end(self, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for made in range(1, 20):
                rec.step()
                assert path.exists() == rec.finished == (made >= 11)
            plain = ov.load(path).plain_steps
            assert (len(plain.before.host_ns), len(plain.after.host_ns)) == (3, 0)
        assert ov.load(path).plain_steps.before == plain.before
        assert len(ov.load(path).plain_steps.after.host_ns) == 3
        times = rec.step_times
        assert times is not None and times.before_ns == plain.before.host_ns and len(times.recorded_ns) == 2

    def test_steps_to_wait_for_pass_unrecorded_and_the_last_of_them_are_timed(self, path: Path) -> None:
        profiled = []
        with ov.record(path, wait=30, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(40):
                profiled.append(profiler_running())
                work()
                rec.step()
        # The rehearsal has three steps to wait for as well.
        assert [step for step, on in enumerate(profiled) if on] == [0, 1, 2, 3, 4, 5, 30, 31, 32]
        assert steps(path) == [30, 31, 32]
        assert len(ov.load(path).plain_steps.before.host_ns) == 3

    def test_a_recording_without_end_follows_its_plain_steps(self, path: Path) -> None:
        with ov.record(path, plain_steps=2) as rec:
            for _ in range(20):
                rec.step()
        assert steps(path) == list(range(10, 20))
        assert warm_up_steps(path) == 1

    def test_a_range_around_all_steps_leaves_no_room_before_the_recording(self, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec, torch.profiler.record_function("around"):  # type: ignore[arg-type]
            for _ in range(12):
                rec.step()
        assert steps(path) == [0, 1, 2]
        plain = ov.load(path).plain_steps
        assert (len(plain.before.host_ns), len(plain.after.host_ns)) == (0, 3)
        (note,) = rec.notes
        assert "record_function" in note

    def test_steps_under_a_profiler_of_the_program_and_behind_it_are_not_plain(self, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(14):
                rec.step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                rec.step()
            for _ in range(5):
                rec.step()
        assert len(ov.load(path).plain_steps.after.host_ns) == 1

    def test_where_data_races_are_looked_for_no_step_is_plain(self, path: Path) -> None:
        with ov.record(path, active=2, check_hazards=True) as rec:
            for _ in range(4):
                rec.step()
        assert steps(path) == [0, 1, 2]

    def test_data_races_are_looked_for_until_the_recording_is_complete(self, path: Path) -> None:
        unwrapped = torch.Tensor.numpy
        watched = []
        with ov.record(path, active=2, check_hazards=True) as rec:
            for _ in range(5):
                watched.append(torch.Tensor.numpy is not unwrapped)
                rec.step()
        assert watched == [True, True, True, False, False]
        assert [note for note in rec.notes if "Data races" in note] == [
            "Data races were checked until the recording was complete; a larger --active checks longer."
        ]
        with ov.record(path, active=1, check_hazards=True) as rec:
            rec.step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                work()
            for _ in range(3):
                rec.step()
            assert torch.Tensor.numpy is not unwrapped
        assert torch.Tensor.numpy is unwrapped

    @pytest.mark.parametrize("change", ["removed", "replaced"])
    def test_a_trace_that_is_no_longer_there_is_not_amended(self, change: str, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(16):
                rec.step()
            path.unlink()
            if change == "replaced":
                path.write_text("another's")
        (note,) = rec.notes
        assert "cannot be amended" in note and "after the recording" in note
        assert not path.exists() if change == "removed" else path.read_text() == "another's"

    def test_a_light_recording_has_no_ops(self, path: Path) -> None:
        with ov.record(path, light=True, plain_steps=0) as rec:
            work()
            rec.step()
            work()
            rec.step()
        assert names(path, "cpu_op") == []
        assert names(path) == ["ProfilerStep#0", "work", "ProfilerStep#1", "work"]
        with ov.record(path):
            work()
        assert "aten::mm" in names(path, "cpu_op")


class TestPuttingOff:
    """As `overlapscope run` does where there is a GPU that the program has not used yet."""

    @pytest.fixture
    def recorder(self, path: Path) -> Recorder:
        made = Recorder(
            lambda: path,
            Schedule(wait=3, warmup=1, active=1),
            Options(),
            since_ns=0,
            max_size_bytes=1 << 30,
            on_too_much=lambda: None,
        )
        made.start(put_off=True)
        assert made.running
        assert not profiler_running()
        return made

    @pytest.mark.parametrize(("made", "recorded"), [(1, []), (2, [1]), (3, [1]), (4, [3]), (5, [3, 4]), (9, [3, 4])])
    def test_it_starts_with_the_end_of_the_first_step(
        self, made: int, recorded: list[int], recorder: Recorder, path: Path
    ) -> None:
        for _ in range(made):
            recorder.step()
        if recorder.running:
            recorder.finish()
        assert recorder.failure is None
        assert steps(path) == recorded

    def test_it_starts_when_it_is_told_to(self, recorder: Recorder, path: Path) -> None:
        recorder.start_now()
        work()
        recorder.finish()
        assert names(path) == ["work"]
        assert recorder.failure is None

    def test_a_program_that_does_neither_is_told(self, recorder: Recorder, path: Path) -> None:
        recorder.finish()
        assert not recorder.running
        assert "no trace" in str(recorder.failure)
        assert not path.exists()

    def test_a_program_that_ends_just_before_the_warm_up_is_told(self, path: Path) -> None:
        recorder = Recorder(
            lambda: path,
            Schedule(wait=2, warmup=1, active=1),
            Options(),
            since_ns=0,
            max_size_bytes=1 << 30,
            on_too_much=lambda: None,
        )
        recorder.start(put_off=True)
        recorder.step()
        assert recorder.running
        recorder.finish()
        assert "ended before" in str(recorder.failure)


class TestSeveralProcesses:
    """Of which nobody says that they belong together."""

    PROGRAM = (
        "import os, sys, time, torch, overlapscope as ov\n"
        "def wait():\n"
        "    open('waits', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "with ov.record(sys.argv[1], plain_steps=0) as rec:\n"
        "    torch.ones(3) * 3\n"
        "    if sys.argv[2] == 'while': wait()\n"
        "print(rec.path, *rec.notes)\n"
        "if sys.argv[2] == 'before': wait()\n"
    )

    @pytest.mark.parametrize("when", ["before", "while"])
    def test_none_overwrites_what_another_has_written_meanwhile(self, when: str, path: Path, tmp_path: Path) -> None:
        other = forked.Program(["-c", self.PROGRAM, str(path), when], tmp_path)
        while not (tmp_path / "waits").exists():
            assert other.poll() is None
            time.sleep(0.01)
        with ov.record(path, plain_steps=0) as rec:
            work("mine")
        (tmp_path / "go").touch()
        said, _ = other.communicate()
        if when == "while":
            assert rec.path == path and rec.notes == ()
            where = path.with_name(f"x.pid{other.pid}.trace.json.gz")
            assert said.startswith(f"{where} {path}: belongs to another process")
            assert "aten::mul" in names(where, "cpu_op")
        else:
            assert said == f"{path}\n"
            assert rec.path == path.with_name(f"x.pid{os.getpid()}.trace.json.gz")
            assert rec.notes == (f"{path}: belongs to another process, so this trace is {rec.path.name}.",)
            # It is gone, and what it left is an old file.
            with ov.record(path, plain_steps=0) as rec:
                work("mine")
            assert rec.path == path
        assert names(path) == ["mine"]

    def test_what_is_recorded_again_and_again_stays_one_file(self, path: Path) -> None:
        for _ in range(20):
            with ov.record(path, plain_steps=0) as rec:
                work()
        assert rec.path == path and [one.name for one in path.parent.iterdir()] == [path.name]

    def test_processes_that_the_program_starts_have_their_rank_from_torch_distributed(self, tmp_path: Path) -> None:
        # Forked: to import torch takes longer than all else. The recording comes to them as to spawned ones.
        program = tmp_path / "program.py"
        program.write_text(
            "import os, pickle, torch, torch.distributed as dist, torch.multiprocessing as mp, overlapscope as ov\n"
            "def train(rank, recording):\n"
            "    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=rank,\n"
            "        world_size=2)\n"
            "    with pickle.loads(recording): torch.ones(3) * 3\n"
            "    dist.destroy_process_group()\n"
            "recording = pickle.dumps(ov.record('x.json', plain_steps=0))\n"
            "mp.start_processes(train, (recording,), nprocs=2, start_method='fork')\n"
        )
        done = forked.run([program], tmp_path)
        assert done.returncode == 0, done.stderr
        assert sorted(one.name for one in (tmp_path / "x.traces").iterdir()) == ["rank0.trace.json", "rank1.trace.json"]

    def test_a_recording_reaches_another_process_as_one_that_has_not_begun(self, path: Path) -> None:
        with ov.record(path, wait=1, warmup=2, plain_steps=0) as rec:
            again = pickle.loads(pickle.dumps(rec))
        assert again.path == path and not again.finished
        with again:
            work("again")
        assert names(path) == ["again"]


class TestRanks:
    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({}, None),
            ({"RANK": "0", "WORLD_SIZE": "1"}, None),
            ({"RANK": "3"}, None),
            ({"RANK": "", "WORLD_SIZE": "4"}, None),
            ({"RANK": "4", "WORLD_SIZE": "4"}, None),
            ({"RANK": "3", "WORLD_SIZE": "4"}, Rank(3, 4)),
            ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, Rank(2, 8)),
            ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, Rank(1, 2)),
            ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 2)),
            ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Rank(1, 3)),
            ({"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Rank(3, 4)),
            ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Rank(1, 2)),
        ],
    )
    def test_launchers_tell_the_rank(self, environ: dict[str, str], expected: Rank | None) -> None:
        assert rank_of(environ) == expected

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("runs/x.json", "runs/x.traces/rank3.trace.json"),
            ("x.json.gz", "x.traces/rank3.trace.json.gz"),
            ("a.b.trace.json", "a.b.traces/rank3.trace.json"),
            ("runs/r{rank}.json", "runs/r3.json"),
            ("{host}/x.json", f"{socket.gethostname()}/x.traces/rank3.trace.json"),
        ],
    )
    def test_each_rank_has_a_file_of_its_own(self, name: str, expected: str) -> None:
        assert Destination.asked(name).path(Rank(3, 4)) == Path(expected).absolute()
        assert Destination.asked("x.{rank}.json").path(None) == Path("x.0.json").absolute()
        expected = f"{socket.gethostname()}/{os.getpid()}.json"
        assert Destination.asked("{host}/{pid}.json").path(None) == Path(expected).absolute()

    def test_a_name_in_braces_that_stands_for_nothing_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"\{ran\} is not a placeholder.*\{rank\}, \{pid\}, \{time\}, \{host\}"):
            ov.record("x.{ran}.json")

    def test_directories_with_names_in_braces_are_made_and_load_as_one_job(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from overlapscope.reading import load_all

        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path.parent / "{host}" / "rank{rank}.json") as rec:
                work()
        assert [trace.rank for trace in load_all(rec.path.parent)] == [0, 1]
        assert [trace.rank for trace in load_all(rec.job)] == [0, 1]

    def test_ranks_of_an_earlier_run_with_more_of_them_are_removed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = path.with_name("x.traces")
        directory.mkdir()
        for name in ("rank1.trace.json.gz", "rank2.trace.json.gz", "rank10.trace.json", "rank3.json", "notes.txt"):
            (directory / name).touch()
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in ("1", "0"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path):
                work()
        assert sorted(one.name for one in directory.iterdir()) == [
            "notes.txt",
            "rank0.trace.json.gz",
            "rank1.trace.json.gz",
            "rank3.json",
        ]

    def test_the_directory_loads_as_one_job(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        written = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with ov.record(path) as rec:
                work()
            written.append(rec.path)
        from overlapscope.reading import load_all

        assert [trace.rank for trace in load_all(path.with_name("x.traces"))] == [0, 1]
        assert written == [path.with_name("x.traces") / f"rank{rank}.trace.json.gz" for rank in (0, 1)]
        with pytest.raises(UsageError, match="does not exist; create it"):
            ov.record(path.parent / "no" / "x.json").begin()


def test_marking_a_step_imports_nothing_heavy() -> None:
    code = (
        "import sys, overlapscope as ov\nov.step(); ov.record('x.json')\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnTheGpu:
    def test_a_prefetching_loop_far_ahead_of_its_gpu_has_no_lead_in_and_a_full_pipeline(self, path: Path) -> None:
        step = known_causes.PROGRAMS["healthy_prefetch"]()
        with ov.record(path, wait=10, warmup=3, active=4, plain_steps=0) as rec:
            for _ in range(40):
                step()
                rec.step()
        report = ov.analyze(ov.load(path))
        (checked,) = report.traces
        (lead_in,) = [check for check in checked.trust.checks if check.id == "lead-in"]
        assert lead_in.status == "ok"
        (device,) = checked.devices
        assert [one.name for one in device.steps] == [f"ProfilerStep#{number}" for number in (13, 14, 15, 16)]
        for one in device.steps:
            assert one.overlap.hidden_copy_pct is not None and one.overlap.hidden_copy_pct > 99
            assert one.buckets.exposed_copy_ns < 0.01 * one.span_ns

    def test_cuda_that_comes_up_during_the_recording_is_recorded(self, tmp_path: Path) -> None:
        done = python(
            """
with ov.record(path, active=2, plain_steps=0) as rec:
    assert not torch.cuda.is_initialized()
    torch.ones(3).sum()
    for _ in range(4):
        (torch.ones(1000, device="cuda") * 2).sum().item()
        rec.step()
assert rec.notes == (), rec.notes
""",
            tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == [0, 1, 2]
        (device,) = ov.analyze(ov.load(tmp_path / "x.trace.json.gz")).devices
        assert [one.name for one in device.steps] == ["ProfilerStep#1", "ProfilerStep#2"]

    def test_a_program_without_cuda_stays_so(self, tmp_path: Path) -> None:
        done = python("with ov.record(path): torch.ones(3)\nassert not torch.cuda.is_initialized()", tmp_path)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, cwd: Path, *options: str) -> str:
        """What `overlapscope run` says of a program, which must succeed; the trace is x.trace.json.gz."""
        (cwd / "x.py").write_text("import os, threading, torch\n" + program)
        done = forked.run(["-m", "overlapscope", "run", *options, "x.py"], cwd)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def test_a_program_that_is_run_chooses_its_gpus_itself(self, tmp_path: Path) -> None:
        self.run(
            """
os.environ["CUDA_VISIBLE_DEVICES"] = ""
assert not torch.cuda.is_available()
torch.ones(3)
""",
            tmp_path,
        )

    def test_a_program_that_is_run_forks_before_it_uses_the_gpu(self, tmp_path: Path) -> None:
        self.run(
            """
child = os.fork()
value = torch.ones(3, device="cuda").sum().item()
if child == 0:
    os._exit(int(value))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
""",
            tmp_path,
        )
        assert len(ov.load(tmp_path / "x.trace.json.gz").gpu_ops)

    def test_another_thread_of_a_program_that_is_run_brings_cuda_up(self, tmp_path: Path) -> None:
        self.run(
            """
thread = threading.Thread(target=torch.cuda.init)
thread.start()
thread.join()
torch.ones(1000, device="cuda").sum().item()
""",
            tmp_path,
        )
        assert len(ov.load(tmp_path / "x.trace.json.gz").gpu_ops)

    def test_a_program_that_is_run_and_uses_no_gpu_has_a_trace_if_it_has_steps(self, tmp_path: Path) -> None:
        program = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight])
for _ in range({}):
    weight.sum().backward()
    optimizer.step()
"""
        assert "There is no trace: the program used no GPU and marked no step" in self.run(program.format(0), tmp_path)
        assert not (tmp_path / "x.trace.json.gz").exists()
        self.run(program.format(6), tmp_path)
        assert steps(tmp_path / "x.trace.json.gz") == [1, 2, 3, 4, 5]

    def test_a_step_inside_a_capture_is_not_counted_and_harms_nothing(self, path: Path) -> None:
        value = torch.zeros(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with ov.record(path, wait=2, warmup=0, active=2, plain_steps=0) as rec:
            with torch.cuda.graph(graph):
                value.add_(1)
                rec.step()
                value.add_(1)
            for _ in range(4):
                graph.replay()
                rec.step()
        assert value[0].item() == 8
        assert steps(path) == [2, 3]
        (device,) = ov.analyze(ov.load(path)).devices
        assert [one.name for one in device.steps] == ["ProfilerStep#2", "ProfilerStep#3"]

    def test_a_program_that_uses_the_gpu_no_more_after_its_recording_ends(self, tmp_path: Path) -> None:
        """Kineto detaches CUPTI in a later call of CUDA, and a process that makes none waits for it for ever."""
        done = subprocess.run(
            [sys.executable, "-c", "import torch, overlapscope as ov\nwith ov.record('x.json'): torch.ones(3).cuda()"],
            cwd=tmp_path,
            env=os.environ | forked.FINDS_US,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0

    def test_plain_steps_are_timed_on_the_device_as_well(self, path: Path) -> None:
        data = torch.zeros(1000, device="cuda")
        with ov.record(path, active=2, plain_steps=3):
            for _ in range(20):
                data.add_(1)
                ov.step()
        plain = ov.load(path).plain_steps
        assert [len(side.device_ns) for side in (plain.before, plain.after)] == [3, 3]
        assert "overlapscope::event_record" not in gzip.decompress(path.read_bytes()).decode()

    def test_a_light_recording_has_kernels_steps_and_notes_on_events(self, path: Path) -> None:
        data, side = torch.zeros(1000, device="cuda"), torch.cuda.Stream()
        with ov.record(path, light=True, plain_steps=0) as rec:
            for _ in range(3):
                data.add_(1)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    data.add_(1)
                torch.cuda.current_stream().wait_stream(side)
                rec.step()
        trace = ov.load(path)
        assert len(trace.cpu_ops) == 0
        assert {trace.annotations.name(row) for row in range(len(trace.annotations))} == {
            f"ProfilerStep#{number}" for number in range(3)
        }
        assert len(trace.gpu_ops) >= 6
        assert (trace.syncs.source_stream >= 0).sum() == 6
        (device,) = ov.analyze(trace).devices
        assert [one.name for one in device.steps] == ["ProfilerStep#1", "ProfilerStep#2"]

    def test_a_device_that_failed_still_leaves_a_trace(self, tmp_path: Path) -> None:
        done = python(
            """
with ov.record(path) as rec:
    data = torch.zeros(10, device="cuda")
    rec.step()
    data[torch.tensor([99], device="cuda")]
    torch.cuda.synchronize()
""",
            tmp_path,
        )
        assert done.returncode == 1
        assert "device-side assert" in done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == [0]
        ov.load(tmp_path / "x.trace.json.gz")

    def test_the_unfinished_step_is_taken_out_on_the_device_too(self, path: Path) -> None:
        data = torch.zeros(1000, device="cuda")
        with ov.record(path) as rec:
            for _ in range(2):
                data.add_(1)
                rec.step()
            data.add_(1)
        assert steps(path) == [0, 1]
        on_device = [name for name in names(path, "gpu_user_annotation") if name.startswith("ProfilerStep#")]
        assert on_device == ["ProfilerStep#0", "ProfilerStep#1"]
