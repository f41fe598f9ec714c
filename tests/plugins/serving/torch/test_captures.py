"""Recordings of captures, without a GPU: a graph that captures nothing has the methods of torch's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.plugins.serving.captures import record_captures
from overlapscope.recorder.session import profiler_running
from tests.support import forked
from tests.support.outcomes import ROOT
from tests.support.run_command import FORKED, TRAIN, write

torch = pytest.importorskip("torch")


class EmptyGraph:
    """A graph whose capture may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def capture_begin(self, pool: object = None) -> None:
        if self.fails:
            raise RuntimeError("no capture")

    def capture_end(self) -> None:
        """Do nothing."""


def captured(graph: EmptyGraph) -> None:
    graph.capture_begin(pool=None)
    torch.nn.Linear(4, 4)(torch.ones(2, 4))
    graph.capture_end()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for recordings, which the first one makes."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", EmptyGraph)
    stop = record_captures(str(tmp_path / "captures"))
    yield tmp_path / "captures"
    stop()


def test_each_capture_is_a_recording_with_its_modules(folder: Path) -> None:
    for _ in range(2):
        captured(EmptyGraph())
    first, second = sorted(folder.iterdir())
    for path in (first, second):
        trace = ov.load(path)
        assert "nn.Module: Linear_0" in trace.names and "aten::addmm" in trace.names


def test_a_capture_while_a_profiler_runs_is_left_to_that(folder: Path) -> None:
    with torch.profiler.profile():
        captured(EmptyGraph())
    assert not folder.exists()


def test_a_failed_capture_leaves_no_profiler_running(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="no capture"):
        captured(EmptyGraph(fails=True))
    assert not profiler_running()


def test_a_folder_that_cannot_be_written_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_text("a file")
    captured(EmptyGraph())
    assert "the capture of a CUDA graph is not recorded" in capsys.readouterr().err


@pytest.mark.parametrize("recorded", [True, False])
def test_the_report_of_run_takes_the_captures_that_were_recorded(recorded: bool, tmp_path: Path) -> None:
    steps = "for _ in range(41): train()\nwhile not os.path.exists('reported'): train(); time.sleep(0.02)\n"
    write(tmp_path / "train.py", f"{TRAIN}import os, time\n{steps}")
    (tmp_path / "captures").mkdir()
    if recorded:
        shutil.copy(ROOT / "tests/graphs/recurrent-capture.json.gz", tmp_path / "captures")
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        # Without plain steps it doesn't record again if the pace changes, which would cancel the report.
        program = forked.ForkedProgram(
            [*FORKED, "--plain-steps", "0", "train.py"],
            tmp_path,
            stderr=stderr.fileno(),
            environment={"OVERLAPSCOPE_CAPTURES": "captures"},
            unloads=False,
        )
        while "\ntrain.trace.json.gz" not in errors.read_text():
            time.sleep(0.02)
        (tmp_path / "reported").touch()
        program.communicate()
    captures = " --capture captures" * recorded
    assert f"`overlapscope analyze train.trace.json.gz{captures}` shows the report again." in errors.read_text()
