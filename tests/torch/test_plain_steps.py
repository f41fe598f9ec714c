"""Tests of when steps are timed, how they are reported, and how they get into a written trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from overlapscope.commands._run_options import DEFAULTS
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import cupti, trace_file
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.step_times import StepTimings, settled
from overlapscope.recorder.trace_file import Written
from overlapscope.trace.model import ClockedSteps, PlainSteps, TimedSteps

MS = 1_000_000


class TestSchedule:
    @pytest.mark.parametrize(
        ("schedule", "rehearsal"),
        [
            (Options(3, 2, 5, 10), StepWindow(0, 5, 10)),
            (Options(1000, 2, 5, 10), StepWindow(0, 5, 10)),
            (Options(0, 1, None, 10), StepWindow(0, 1, 6)),
            (Options(0, 0, 1, 10), StepWindow(0, 0, 2)),
            # Without plain steps it is the recorded part of the steps to wait for, followed by a gap of one step.
            (Options(3, 2, 5, 0), StepWindow(0, 5, 2)),
            (Options(1000, 2, 5, 0), StepWindow(0, 5, 10)),
            (Options(1, 2, 5, 0), None),
            (Options(0, 2, 5, 0), None),
        ],
    )
    def test_what_is_recorded_first(self, schedule: Options, rehearsal: StepWindow | None) -> None:
        assert schedule.rehearsal == rehearsal

    def test_the_recording_lies_where_it_opens(self) -> None:
        assert Options(3, 2, 5, 10).recording(22) == StepWindow(22, 24, 29)
        assert Options(3, 2, None, 10).recording(22) == StepWindow(22, 24, None)
        assert Options(3, 2, 5, 0).whole == StepWindow(0, 5, 10)

    def test_steps_of_a_window(self) -> None:
        window = StepWindow(22, 24, 29)
        assert [window.judged_steps(finished) for finished in (22, 24, 25, 29, 99)] == [0, 0, 1, 5, 5]
        assert [window.warm_up_steps(finished) for finished in (22, 24, 25, 29)] == [0, 0, 2, 2]
        assert [window.over(finished) for finished in (28, 29)] == [False, True]
        assert not StepWindow(0, 1, None).over(10**9)
        assert window.begun(23) == StepWindow(23, 24, 29)
        assert window.begun(26) == StepWindow(26, 26, 29)

    def test_a_program_that_made_too_few_steps_is_told_how_many_it_takes(self) -> None:
        schedule = Options(3, 2, 5, 10)
        assert schedule.why_short(15, 5) == (
            "The program made only 15 of the 41 steps needed; its first steps were recorded instead. "
            "--plain-steps 0 needs 10."
        )
        assert "1019 steps needed" in str(Options(1000, 2, 5, 10).why_short(15, 5))
        # As `overlapscope run --help` and the page say.
        assert Options(3, 2, 5, 10) == DEFAULTS and DEFAULTS.needed_steps == schedule.needed_steps == 41
        page = Path("docs/reference/recording.md").read_text()
        assert "So a program should make 41 steps." in page and "ten steps suffice" in page
        assert schedule.why_short(0, 0) == "The program marked no step, so all of it was recorded."
        assert Options(0, 1, None, 10).why_short(0, 0) is None

    def test_it_settles_for_two_steps_and_with_workers_for_twice_the_pause(self) -> None:
        assert not settled(1, 10**12, 0, workers=False)
        assert settled(2, 0, 10**12, workers=False)
        assert not settled(50, 199, 100, workers=True)
        assert settled(50, 200, 100, workers=True)
        assert settled(100, 0, 100, workers=True)


class TestWhatIsSaid:
    @pytest.mark.parametrize(
        ("before_ms", "after_ms", "recorded_ms", "sentence"),
        [
            (
                [31.8] * 10,
                [31.9] * 10,
                [47.5] * 5,
                "without the profiler a step takes 31.9 ms (measured, 31.8 to 31.9 ms); 20 steps took 31.8 to 31.9 ms.",
            ),
            (
                [31.5, 31.6, 31.5] * 4,
                [35.5] * 10,
                [47.5],
                "without the profiler a step takes 31.53 ms before the recording and 35.50 ms after it: the program or "
                "the machine changed.",
            ),
            # Within their spread, and by less than 2%. The mean of the recorded steps is longer than either mean.
            (
                [30.0, 40.0] * 5,
                [36.0, 39.0] * 5,
                [36.0, 36.0, 42.0],
                "without the profiler a step takes 36.2 ms (measured, 31.2 to 38.8 ms); 20 steps took 30.0 to 40.0 ms.",
            ),
            (
                [100.0] * 10,
                [101.0] * 10,
                [],
                "without the profiler a step takes 100 ms (measured, 100 to 101 ms); 20 steps took 100 to 101 ms.",
            ),
            (
                [],
                [2.0] * 3,
                [2.5],
                "without the profiler 3 steps took 2.00 ms; too few were timed for a step time.",
            ),
            ([], [], [2.5], None),
        ],
    )
    def test_the_step_time_of_the_report_in_a_sentence(
        self, before_ms: list[float], after_ms: list[float], recorded_ms: list[float], sentence: str | None
    ) -> None:
        before, after, recorded = (
            tuple(round(item * MS) for item in side) for side in (before_ms, after_ms, recorded_ms)
        )
        plain = PlainSteps(TimedSteps(before), TimedSteps(after))
        assert StepTimings(plain, recorded).sentence() == sentence

    def test_the_mean_of_all_steps_is_told_if_the_report_is_of_it(self) -> None:
        before, after = (TimedSteps((round(ms * MS),) * 10) for ms in (31.5, 35.5))
        plain = PlainSteps(before, after, clocked=ClockedSteps(((400, 400 * 33 * MS),), 33 * MS))
        told = StepTimings(plain, (33 * MS,)).sentence()
        assert told is not None and "a step takes 33.0 ms (measured, the mean of 400 steps" in told


class TestAmending:
    @pytest.fixture(params=["x.json", "x.json.gz"])
    def written(self, request: pytest.FixtureRequest, tmp_path: Path) -> Written:
        def export(name: str) -> None:
            events = [{"name": '"own": [1]', "ts": number} for number in range(50_000)]
            Path(name).write_text(f'{{"own": [1],\n"traceEvents": {json.dumps(events)}}}')

        return trace_file.write(export, tmp_path / request.param)

    def read(self, path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    def test_only_the_metadata_changes(self, written: Written) -> None:
        before = self.read(written.path)
        again = trace_file.amend(written, b'"own": [1],\n', b'"own": [1, 2],\n')
        assert self.read(written.path) == before.replace(b'"own": [1],\n', b'"own": [1, 2],\n', 1)
        assert json.loads(self.read(written.path))["own"] == [1, 2]
        assert again == Written.now(written.path)
        assert list(written.path.parent.iterdir()) == [written.path]

    @pytest.mark.parametrize("old", [b"nowhere", b"name"])
    def test_what_is_not_there_once_is_left_alone(self, old: bytes, written: Written) -> None:
        before = written.path.read_bytes()
        with pytest.raises(RecordingFailed, match="its metadata was changed"):
            trace_file.amend(written, old, b"")
        assert written.path.read_bytes() == before
        assert list(written.path.parent.iterdir()) == [written.path]


@pytest.mark.parametrize(
    ("cuda", "gpus", "environ", "stays"),
    [
        ("13.0", 1, {}, False),
        ("12.8", 1, {}, True),
        ("12.8", 0, {}, False),
        (None, 1, {}, False),
        ("13.0", 1, {"TEARDOWN_CUPTI": "0"}, True),
        ("13.0", 1, {"TEARDOWN_CUPTI": "1"}, False),
        # As torch sets them where it finds CUDA graphs.
        ("13.0", 1, {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}, False),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are seen on Linux only")
def test_whether_a_recording_leaves_cupti_in_the_program(
    cuda: str | None, gpus: int, environ: dict[str, str], stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name in ("TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cupti.stays_attached() == stays
