"""Steps that are timed around a recording, and recordings that begin later than the program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import overlapscope as ov
from overlapscope.recorder import recorder as recorder_module
from overlapscope.recorder.options import Options
from overlapscope.recorder.recorder import WindowRecorder
from overlapscope.recorder.session import Session, profiler_running
from tests.support.recorded import names, steps, warm_up_steps, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


class TestPlainSteps:
    """With three plain steps, and one step of warm-up and two judged ones:

    0 1 2 rehearsed | 3 4 settle | 5 6 7 timed | 8 9 10 recorded | 11 12 settle | 13 14 15 timed
    """

    SCHEDULE: ClassVar[dict[str, int]] = {"warmup": 1, "active": 2, "plain_steps": 3}

    @pytest.mark.parametrize(
        ("total", "recorded", "warm_up", "before", "after"),
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
        self, total: int, recorded: list[int], warm_up: int, before: int, after: int, path: Path
    ) -> None:
        lengths: list[float] = []
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(total):
                begin = time.perf_counter_ns()
                work()
                rec.step()
                lengths.append(time.perf_counter_ns() - begin)
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up
        plain = ov.load(path).plain_steps
        assert (len(plain.before.host_ns), len(plain.after.host_ns)) == (before, after)
        assert plain.before.device_ns == plain.after.device_ns == ()
        assert all(0 < item < sum(lengths) for item in (*plain.before.host_ns, *plain.after.host_ns))
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        if total >= 11 or total == 0:
            assert rec.notes == ()
        else:
            (note,) = rec.notes
            assert f"only {total} of the 16 steps needed" in note and "--plain-steps 0 needs 3" in note

    def test_the_trace_is_written_at_once_and_amended_when_all_steps_are_timed(self, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for steps in range(1, 20):
                rec.step()
                assert path.exists() == rec.finished == (steps >= 11)
                if rec.finished:
                    plain = ov.load(path).plain_steps
                    assert (len(plain.before.host_ns), len(plain.after.host_ns)) == (3, 3 if steps >= 16 else 0)
        assert ov.load(path).plain_steps == plain
        assert len(ov.load(path).plain_steps.after.host_ns) == 3
        times = rec.step_times
        assert times is not None and times.plain == plain and len(times.recorded_ns) == 2

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

    @pytest.mark.parametrize("change", ["removed", "replaced"])
    def test_a_trace_that_is_no_longer_there_is_not_amended(self, change: str, path: Path) -> None:
        with ov.record(path, **self.SCHEDULE) as rec:  # type: ignore[arg-type]
            for _ in range(15):
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


def put_off(path: Path, wait: int) -> WindowRecorder:
    """Return a recorder whose start is put off until the program uses its GPU."""
    recorder = WindowRecorder(
        lambda: path,
        Options(wait=wait, warmup=1, active=1, plain_steps=0),
        since_ns=0,
        bounded=False,
        on_too_much=lambda: None,
    )
    recorder.handle("put_off")
    return recorder


def pretend_gpu_times(has_gpu_times: Sequence[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Say of one session after the other whether torch.profiler recorded GPU ops with times; all else is real."""
    sessions: list[Session] = []

    class SessionWithGpu(Session):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            sessions.append(self)

        def timed_on_gpu(self) -> bool:
            return has_gpu_times[sessions.index(self)]

    monkeypatch.setattr(recorder_module, "Session", SessionWithGpu)


class TestGpuTimes:
    """A recording whose GPU ops have no times, as PyTorch's profiler makes some, replaces none that has them."""

    @pytest.mark.parametrize(
        ("first", "rehearsal", "recording", "kept"),
        [
            (True, False, False, "first"),
            (True, True, False, "rehearsal"),
            (True, False, True, "recording"),
            (False, True, False, "rehearsal"),
            (False, False, False, "recording"),
        ],
    )
    def test_the_latest_recording_with_gpu_times_is_kept(
        self,
        first: bool,
        rehearsal: bool,
        recording: bool,
        kept: str,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pretend_gpu_times([first, rehearsal, recording], monkeypatch)
        recorder = WindowRecorder(
            lambda: path, Options(active=2, plain_steps=3), since_ns=0, bounded=True, on_too_much=lambda: None
        )
        recorder.handle("start")
        work()
        recorder.handle("close")
        for _ in range(20):
            work()
            recorder.handle("step")
        recorder.handle("end")
        assert recorder.failure is None and recorder.complete
        assert steps(path) == {"first": [], "rehearsal": [1, 2], "recording": [8, 9, 10]}[kept]
        assert any("defect of torch.profiler" in note for note in recorder.notes) == (kept != "recording")

    def test_a_later_window_without_gpu_times_does_not_replace_the_first(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pretend_gpu_times([True, False], monkeypatch)
        recorder = WindowRecorder(
            lambda: path, Options(active=2, plain_steps=3), since_ns=0, bounded=True, on_too_much=lambda: None
        )
        recorder.handle("start")
        work()
        recorder.handle("close")
        recorder.handle("open")
        assert recorder.recording
        work()
        work()
        recorder.handle("close")
        recorder.handle("end")
        assert names(path) == ["work"]


class TestPuttingOff:
    """As `overlapscope run` does where there is a GPU that the program has not used yet."""

    @pytest.fixture
    def recorder(self, path: Path) -> WindowRecorder:
        recording = put_off(path, wait=3)
        assert recording.running
        assert not profiler_running()
        return recording

    @pytest.mark.parametrize(("total", "recorded"), [(1, []), (2, [1]), (3, [1]), (4, [3]), (5, [3, 4]), (9, [3, 4])])
    def test_it_starts_with_the_end_of_the_first_step(
        self, total: int, recorded: list[int], recorder: WindowRecorder, path: Path
    ) -> None:
        for _ in range(total):
            recorder.handle("step")
        if recorder.running:
            recorder.handle("end")
        assert recorder.failure is None
        assert steps(path) == recorded

    def test_it_starts_when_asked_to(self, recorder: WindowRecorder, path: Path) -> None:
        recorder.handle("cuda")
        work()
        recorder.handle("end")
        assert names(path) == ["work"]
        assert recorder.failure is None

    def test_a_program_that_does_neither_is_reported(self, recorder: WindowRecorder, path: Path) -> None:
        recorder.handle("end")
        assert not recorder.running
        assert "no trace" in str(recorder.failure)
        assert not path.exists()

    def test_a_program_that_ends_just_before_the_warm_up_is_reported(self, path: Path) -> None:
        recorder = put_off(path, wait=2)
        recorder.handle("step")
        assert recorder.running
        recorder.handle("end")
        assert "ended before" in str(recorder.failure)
