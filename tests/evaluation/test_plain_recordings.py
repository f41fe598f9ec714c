"""Plain figures of nineteen programs that were timed in processes of their own on an H200, and recorded in between.

`tests/plain.tar.xz` holds the recordings without options that `docs/evaluation/plain.md` is about.
"""

from __future__ import annotations

import gzip
import statistics
import tarfile
from pathlib import Path

import pytest

from benchmarks.plain_evaluation import EvaluatedRecording, evaluate, laboratory

ARCHIVE = Path(__file__).parents[1] / "plain.tar.xz"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[EvaluatedRecording]:
    place = tmp_path_factory.mktemp("plain")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    for plain in place.rglob("*.trace.json"):
        plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
        plain.unlink()
    return evaluate(place)


def test_every_recording_has_a_plain_step_that_the_recorder_measured(rows: list[EvaluatedRecording]) -> None:
    assert len(rows) >= 19
    assert all(row.plain is not None and row.plain.origin == "measured" for row in rows)


def test_the_interval_without_a_plain_step_begins_between_busy_time_and_what_another_process_took(
    rows: list[EvaluatedRecording],
) -> None:
    for row in rows:
        untold, plain = row.untold, row.plain
        assert plain is not None and plain.recorded_step_ns == untold.high_ns
        assert untold.busy_ns <= untold.low_ns <= plain.step_ns and untold.low_holds, row.program
        # Steps of other processes, between which the machine's speed changes, may be longer than the recorded one.
        assert untold.above_pct < 7.0, row.program
    assert sum(not row.untold.above_pct for row in rows) >= 0.8 * len(rows)


def test_the_lower_end_holds_for_nearly_all_recordings_of_the_laboratory() -> None:
    """Not for all: the same work of a GPU or host may take longer while a profiler runs."""
    untold = laboratory()
    assert all(each.busy_ns <= each.low_ns for each in untold.values())
    assert len(untold) > 50 and sum(each.low_holds for each in untold.values()) >= 0.9 * len(untold)


def test_advice_comes_true_in_the_program_without_the_recorder(rows: list[EvaluatedRecording]) -> None:
    predicted = [prediction for row in rows for prediction in row.predicted]
    errors = [abs(prediction.error_pct) for prediction in predicted if prediction.error_pct is not None]
    assert len(errors) >= 20 and statistics.median(errors) <= 5.0
    assert sum(prediction.inside is True for prediction in predicted) >= 0.8 * len(errors)
