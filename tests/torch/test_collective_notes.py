"""Marks of the collectives that Python launches, and of the waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.base.marks import COLLECTIVE, WORK_WAIT
from overlapscope.recorder import marks as recorder_marks
from overlapscope.recorder.marks import EventNotes
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.session import Session
from overlapscope.trace.model import TimedSteps

torch = pytest.importorskip("torch", reason="records with torch")


def test_each_collective_and_each_wait_for_it_is_marked_until_the_recording_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    # Without a GPU, PyTorch has no streams, and notes none.
    monkeypatch.setattr(recorder_marks, "_stream_ids", lambda _: lambda _: "0.7")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    classes = torch.cuda.Event, dist.ProcessGroup, dist.Work
    methods = [dict(vars(each)) for each in classes]
    notes, values = EventNotes(as_annotations=False), torch.ones(4)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with torch.profiler.profile() as profiler:
            unseen = dist.all_reduce(values, async_op=True)
            notes.start()
            works = [dist.all_reduce(values, async_op=True) for _ in range(2)]
            for work in (*reversed(works), unseen):
                work.wait()
            notes.stop()
            dist.all_reduce(values)
    finally:
        dist.destroy_process_group()
    marks = [event.name for event in profiler.events() if event.name.startswith((COLLECTIVE, WORK_WAIT))]
    assert marks == [*(f"{COLLECTIVE}{n}@0.7" for n in (1, 2)), *(f"{WORK_WAIT}{n}@0.7" for n in (2, 1, 0))]
    assert [dict(vars(each)) for each in classes] == methods


def test_an_abandoned_session_marks_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_marks, "_stream_ids", lambda _: lambda _: "0.7")
    methods = dict(vars(torch.cuda.Event))
    session = Session(StepWindow(0, 0, None), Options(memory=True), on_too_much=lambda: None)
    try:
        assert dict(vars(torch.cuda.Event)) != methods
        session.abandon()
        assert dict(vars(torch.cuda.Event)) == methods
    finally:
        session.stop(0, TimedSteps(), None)
