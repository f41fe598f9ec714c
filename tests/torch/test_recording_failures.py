"""`overlapscope.record` in programs that fail, and in those with several threads or forked children."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.errors import RecordingFailed, UsageError
from overlapscope.recorder import all_threads, trace_file
from overlapscope.recorder.memory_guard import taken_bytes
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.recording import current
from overlapscope.recorder.session import Session
from overlapscope.trace.model import TimedSteps
from tests.support.recorded import MB, content, names, python, steps, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


def _add(tensor: Any) -> None:
    tensor + 1


def _mark_and_collate(samples: list[int]) -> Any:
    ov.step()
    return torch.tensor(samples)


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

    def test_a_device_that_has_failed_does_not_make_a_mark_of_a_step_fail(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> bool:
            raise RuntimeError("CUDA error: device-side assert triggered")

        with ov.record(path) as rec:
            rec.step()
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", fail)
            rec.step()
            monkeypatch.undo()
        assert steps(path) == [0, 1]

    def test_an_error_of_the_recorder_does_not_reach_the_program(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Session, finished: int) -> bool:
            raise OSError("no memory map")

        with ov.record(path) as rec:
            work()
            monkeypatch.setattr(Session, "takes_too_much", fail)
            for _ in range(3):
                rec.step()
        (note,) = rec.notes
        assert note == "The recorder failed: OSError: no memory map; its first steps were recorded instead."
        assert steps(path) == [0] and "work" in names(path)

    def test_a_trace_that_cannot_be_written_is_reported_at_the_end_and_nothing_else_stops(self, tmp_path: Path) -> None:
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

    def test_an_interruption_while_it_starts_reaches_the_program_and_leaves_no_profiler(self, tmp_path: Path) -> None:
        done = python(
            """
class Interrupting(torch.Tensor):
    def untyped_storage(self):
        raise KeyboardInterrupt
tensor = Interrupting()
try:
    ov.record(path).begin()
except KeyboardInterrupt:
    del tensor
with torch.profiler.profile() as own:
    torch.ones(3)
assert own.events()
with ov.record(path) as rec: rec.step()
""",
            tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == [0]

    def test_a_recording_that_cannot_find_steps_leaves_no_profiler(self, tmp_path: Path) -> None:
        done = python(
            """
import torch.utils.data.dataloader as loader
iterator = loader._BaseDataLoaderIter
del loader._BaseDataLoaderIter
try:
    ov.record(path).begin()
except ImportError:
    loader._BaseDataLoaderIter = iterator
with torch.profiler.profile() as own:
    torch.ones(3)
assert own.events() and not os.path.exists(path)
with ov.record(path) as rec: rec.step()
""",
            tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == [0]

    def test_a_program_that_ends_without_end_leaves_its_trace(self, tmp_path: Path) -> None:
        done = python("rec = ov.record(path); rec.begin(); torch.ones(3); rec.step(); sys.exit(7)", tmp_path)
        assert done.returncode == 7
        assert steps(tmp_path / "x.trace.json.gz") == [0]


class TestForkedChildren:
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


class TestThreads:
    def test_another_thread_cannot_step_or_end(self, path: Path) -> None:
        messages: list[str] = []

        def other() -> None:
            rec.step()
            ov.step()
            try:
                rec.end()
            except UsageError as error:
                messages.append(str(error))

        with ov.record(path) as rec:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            rec.step()
        assert messages and "the thread that began it" in messages[0]
        assert steps(path) == [0]

    def test_steps_that_are_marked_on_another_thread_only_are_reported(self, path: Path) -> None:
        with ov.record(path) as rec:
            thread = threading.Thread(target=ov.step)
            thread.start()
            thread.join()
        (note,) = rec.notes
        assert note.startswith("Steps were marked on a different thread")

    @pytest.mark.skipif(not all_threads.is_supported(), reason="this torch records the ops of one thread only")
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

    def test_a_program_whose_other_threads_cannot_be_recorded_is_reported(self, path: Path) -> None:
        notes: list[str] = []
        for light in (False, True):
            with ThreadPoolExecutor(1) as pool, ov.record(path, memory=not light, light=light) as rec:
                pool.submit(work).result()
            notes += rec.notes
        assert notes == [f"The ops of other threads are not in the trace: {notes[0].partition(': ')[2]}"]

    @pytest.mark.skipif(not all_threads.is_supported(), reason="this torch records the ops of one thread only")
    def test_before_the_profiler_stops_no_thread_notes_an_op_any_more(self, path: Path) -> None:
        done, ended = 0, False

        def work_on() -> None:
            nonlocal done
            while not ended:
                with torch.profiler.record_function(f"range {done}"):
                    done += 1

        session = Session(StepWindow(0, 0, None), Options(), on_too_much=lambda: None)
        thread = threading.Thread(target=work_on)
        thread.start()
        while done < 10:
            time.sleep(0.001)
        all_threads.switch_off()
        all_threads.settle()
        settled = done
        while done < settled + 100:
            time.sleep(0.001)
        session.stop(0, TimedSteps(), None)
        ended = True
        thread.join()
        trace_file.write(session.export, path)
        assert 10 <= len(names(path)) <= settled + 1

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
