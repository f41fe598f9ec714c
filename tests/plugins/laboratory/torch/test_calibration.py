"""Tests of calibration files: written ones are read back, others are refused with advice."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.prediction import calibration
from overlapscope.prediction.calibration import Calibration, Constants, SizedTime
from overlapscope.prediction.hardware import observe
from tests.support.recordings import trace_of

TRACES = Path("traces")
MINE = Calibration(
    gpu="NVIDIA Tiny",
    date="2026-01-02",
    torch="2.11",
    cuda="13.0",
    driver=None,
    constants=Constants(
        h2d=(SizedTime(bytes=1 << 20, duration_ns=100_000, low_ns=90_000, high_ns=110_000),),
        h2d_two_way=0.75,
        d2h_two_way=0.5,
        launch_call_ns=4000,
        graph_node_call_ns=0.5,
    ),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    calibration.write(MINE, path)
    assert calibration.read(path) == MINE
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_an_earlier_calibration_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    calibration.write(calibration.shipped(), path)
    calibration.write(MINE, path)
    assert calibration.read(path) == MINE


@pytest.mark.parametrize("content", ["{}", "[]", '{"gpu": 3}', "no JSON", '{"traceEvents": []}', ""])
def test_another_file_is_neither_read_nor_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"other\.json: is not a calibration .*scenarios calibrate"):
        calibration.read(path)
    with pytest.raises(UsageError, match="choose another file"):
        calibration.write(MINE, path)
    assert path.read_text() == content


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: cannot be read .*scenarios calibrate"):
        calibration.read(tmp_path / "none.json")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        calibration.write(MINE, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another file"):
        calibration.write(MINE, tmp_path / "file" / "calibration.json")


# -- the built-in calibration ----------------------------------------------------------------------


def test_the_shipped_calibration_knows_everything() -> None:
    shipped = calibration.shipped()
    assert shipped.gpu == "NVIDIA H200"
    unknown = {name for name, value in msgspec.structs.asdict(shipped.constants).items() if value in (None, ())}
    # The host's cost of recording varies by machine and day, and is read from each recording.
    assert unknown == {"op_cost_ns", "call_cost_ns", "frame_cost_ns"}


@pytest.mark.parametrize("name", ["same_stream", "one_copy_stream", "engine_busy"])
def test_the_shipped_calibration_agrees_with_the_bundled_recordings(name: str) -> None:
    shipped, seen = calibration.shipped().constants, observe(trace_of(TRACES / "known_causes" / f"{name}.json.gz"))
    assert seen.h2d
    for built_in, copies in ((shipped.h2d, seen.h2d), (shipped.d2h, seen.d2h)):
        best = max(entry.bytes / entry.duration_ns for entry in built_in)
        assert [copy.bytes / copy.duration_ns for copy in copies] == pytest.approx([best] * len(copies), rel=0.02)


def test_in_the_shipped_calibration_a_larger_copy_takes_longer() -> None:
    shipped = calibration.shipped().constants
    for copies in (shipped.h2d, shipped.d2h):
        assert [copy.bytes for copy in copies] == [4**power for power in range(5, 15)]
        assert all(less.duration_ns < more.duration_ns for less, more in itertools.pairwise(copies))


# -- the command ----------------------------------------------------------------------------------


def test_without_a_gpu_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["scenarios", "calibrate", "--output", str(tmp_path / "new" / "calibration.json")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "no CUDA device" in errors and "calibrate on a machine with the GPU" in errors
    assert not any(tmp_path.iterdir())


def test_a_file_that_is_not_a_calibration_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "trace.json"
    path.write_text("{}")
    assert main(["scenarios", "calibrate", "--output", str(path)]) == 2
    assert "exists and is not a calibration" in capsys.readouterr().err
