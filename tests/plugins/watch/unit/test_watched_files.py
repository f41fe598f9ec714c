"""Tests of a watched program's files: recordings within a limit, their analysis, and messages about failures."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks import watching
from overlapscope.budgets.places import figures
from overlapscope.errors import UsageError
from overlapscope.plugins.watch import continuous
from overlapscope.plugins.watch.analyser import AnalysisTask, analyse, scalars
from overlapscope.plugins.watch.continuous import settings
from overlapscope.report import origin
from overlapscope.report.origin import Origin
from tests.support.helpers import TRACES
from tests.support.recordings import report_of

Store = pytest.importorskip("overlapscope.plugins.history.store").Store
pull = pytest.importorskip("overlapscope.plugins.history.drop").pull

PIPELINE = "traces/pipeline_1stream.json.gz"


@given(
    recordings=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6),
    limit=st.integers(0, 200),
)
def test_the_newest_stay_and_reports_before_traces(
    recordings: list[tuple[int, int]], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("kept")
    for number, sizes in enumerate(recordings):
        recording = place / f"20260101T0000{number:02}.000Z-7"
        recording.mkdir()
        for name, size in zip((continuous.REPORT, continuous.TRACE), sizes, strict=True):
            (recording / name).write_bytes(b"x" * size)
    expected, free = set(), limit
    for number in reversed(range(len(recordings))):
        for name, size in zip((continuous.REPORT, continuous.TRACE), recordings[number], strict=True):
            if size <= free:
                free -= size
                expected.add(f"20260101T0000{number:02}.000Z-7/{name}")
    continuous.make_room(place, limit)
    assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == expected
    assert all(any(directory.iterdir()) for directory in place.iterdir()), "no directory is left without a file"


def test_what_is_not_a_recording_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (elsewhere / "mine", tmp_path / "notes.txt"):
        path.write_text("mine")
    place = tmp_path / "watched"
    recording = continuous.begin_recording(place)
    (recording / continuous.TRACE).write_bytes(b"x")
    (place / "20260101T000000.000Z-1").symlink_to(elsewhere)
    (place / "mine").mkdir()
    continuous.make_room(place, 0)
    assert sorted(path.name for path in place.iterdir()) == ["20260101T000000.000Z-1", "mine"]
    assert (elsewhere / "mine").exists() and (tmp_path / "notes.txt").exists()


def test_recordings_are_for_their_user_alone(tmp_path: Path) -> None:
    recording = continuous.begin_recording(tmp_path / "watched" / "job")
    assert [os.stat(path).st_mode & 0o777 for path in (recording, recording.parent)] == [0o700, 0o700]


def test_scalars_are_means_over_the_devices() -> None:
    report = report_of(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz")
    lengths_ns = [each.value for each in figures(report) if each.metric.metric == "step_time"]
    assert len(lengths_ns) == 2 and scalars(report)["step_ms"] == pytest.approx(sum(lengths_ns) / 2e6)


@pytest.mark.parametrize("job", ["../../etc", "a/b", "..", "", "\x1b[31m", "train.py"])
def test_a_job_of_any_name_has_its_recordings_beside_the_history(job: str, tmp_path: Path) -> None:
    place = continuous.directory_of(tmp_path, job)
    assert place.parent == tmp_path / "watched" and place.name not in ("", ".", "..")


def task(folder: Path) -> AnalysisTask:
    return AnalysisTask(
        trace=PIPELINE,
        plain_step_ns=None,
        report=str(folder / "report.html"),
        history=str(folder / "history.sqlite"),
        origin=Origin(at_ns=7, job="train.py"),
    )


def test_a_recording_is_analysed_into_scalars_a_report_and_an_entry(tmp_path: Path) -> None:
    done = analyse(task(tmp_path))
    assert done.report and not done.failures
    assert {"efficiency_pct", "idle_ms", "exposed_copy_ms", "step_ms", "copy_gb_per_s"} <= done.scalars.keys()
    assert "<title>overlapscope" in (tmp_path / "report.html").read_text()
    with Store.open(tmp_path / "history.sqlite", read_only=True) as history:
        [row] = history.rows()
    assert row.origin == Origin(at_ns=7, job="train.py")


def test_a_history_that_another_process_keeps_busy_costs_the_entry_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope.plugins.history.store._PATIENCE_S", 0.01)
    assert not analyse(task(tmp_path)).failures
    other = sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    done = analyse(replace(task(tmp_path), plain_step_ns=10**7))
    [failure] = done.failures
    assert failure == f"{tmp_path}/history.sqlite: another process keeps writing to the history; try again."
    assert done.report and done.scalars
    other.execute("ROLLBACK")


def test_an_entry_is_left_in_a_file_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "revision", lambda _: (None, None))
    place = tmp_path / "drop"
    place.mkdir()
    done = analyse(replace(task(tmp_path), history=str(place)))
    assert not done.failures
    assert len(list(place.iterdir())) == 1
    with Store.open(tmp_path / "h.sqlite") as history:
        pull(history, place)
        assert [row.origin.job for row in history.rows()] == ["train.py"]
    asked = settings("1h", steps=1, keep="0", job="train", history=place, log=())
    assert asked.history == str(place) and place not in asked.directory.parents, "a drop has entries and no recordings"


def test_without_a_plugin_that_keeps_reports_recordings_are_made_and_analysed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "revision", lambda folder: (None, None))
    monkeypatch.setattr(origin, "built_in", lambda: ())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    asked = settings("1h", steps=1, keep="0", job="train", history=None, log=())
    assert asked.history == "" and tmp_path in asked.directory.parents
    with pytest.raises(UsageError, match="no plugin that keeps one"):
        settings("1h", steps=1, keep="0", job="train", history=tmp_path / "h", log=())
    done = analyse(replace(task(tmp_path), history=asked.history))
    assert done.report and done.scalars and not done.failures
    assert not (tmp_path / "history.sqlite").exists()


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.trace.json"
    broken.write_text(json.dumps({"traceEvents": 3}))
    done = analyse(replace(task(tmp_path), trace=str(broken)))
    assert len(done.failures) == 1 and str(broken) in done.failures[0]
    assert not done.scalars and not done.report


@pytest.mark.parametrize(
    "asked",
    [{"every": "often"}, {"every": "0s"}, {"steps": 0}, {"keep": "much"}, {"log": "elsewhere"}, {"log": [3]}],
)
def test_arguments_that_make_no_sense_are_refused_at_once(asked: dict[str, object], tmp_path: Path) -> None:
    usual: dict[str, object] = {"every": "10 min", "steps": 3, "keep": "1MB", "job": None, "log": ()}
    with pytest.raises(UsageError):
        settings(**{**usual, "history": tmp_path / "history.sqlite", **asked})  # type: ignore[arg-type]


def test_the_overhead_is_what_watched_blocks_take_longer() -> None:
    pairs = [(True, 1.01), (False, 1.0), (False, 2.0), (True, 2.02)]
    blocks = tuple(
        watching.TrainingBlock(watched=on, steps=100, total_ns=round(1e9 * s), median_step_ns=1, slowest_step_ns=1)
        for on, s in pairs
    )
    measured = watching.WatchingResults(
        machine="a machine", width=8, every_s=30, steps_recorded=3, blocks=blocks, stood_ns=(20_000_000,), analysed=()
    )
    assert watching.overhead(measured).pct == pytest.approx(1.0)
    assert "+1.00%" in watching.page([measured]) and "| 0.66% |" in watching.page([measured])
