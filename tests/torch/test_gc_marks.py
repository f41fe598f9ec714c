"""Marks of the garbage collector's runs in recordings."""

from __future__ import annotations

import _thread
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.base.marks import GC_PAUSE
from overlapscope.recorder.marks import GcWatch, gc_marks
from overlapscope.recorder.sampling.facts import Collections
from tests.support import forked
from tests.support.run_command import FORKED, write

torch = pytest.importorskip("torch", reason="records with torch")


@pytest.fixture(autouse=True)
def no_collection_but_those_asked_for() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def collecting(path: Path, *, light: bool = False) -> ov.Trace:
    callbacks = list(gc.callbacks)
    with ov.record(path, active=3, plain_steps=0, light=light) as recording:
        for _ in range(10):
            gc.collect()
            torch.ones(4).sum()
            recording.step()
    assert gc.callbacks == callbacks
    return ov.load(path)


def test_each_run_is_an_annotation_within_its_step(path: Path) -> None:
    trace = collecting(path)
    notes = trace.annotations
    pauses = [row for row in range(len(notes)) if notes.name(row) == GC_PAUSE]
    steps = [row for row in range(len(notes)) if notes.name(row).startswith("ProfilerStep#")]
    # A warm-up step, and three judged ones.
    assert len(pauses) == len(steps) == 4
    for pause, step in zip(pauses, steps, strict=True):
        assert notes.start_ns[step] <= notes.start_ns[pause] < notes.end_ns[pause] <= notes.end_ns[step]
        assert notes.thread[pause] == notes.thread[step]
    assert not any(name.startswith(GC_PAUSE) for name in map(trace.cpu_ops.name, range(len(trace.cpu_ops))))


def test_a_light_recording_has_none(path: Path) -> None:
    notes = collecting(path, light=True).annotations
    assert not any(notes.name(row).startswith(GC_PAUSE) for row in range(len(notes)))


def test_a_collection_is_no_op_of_a_program_that_runs_none(tmp_path: Path) -> None:
    write(tmp_path / "idle.py", "import gc, torch\nfor _ in range(5): gc.collect()\n")
    run = forked.run([*FORKED, "idle.py"], tmp_path)
    assert run.returncode == 0
    assert "used no GPU and ran no op" in run.stderr


@pytest.mark.parametrize("kind", [gc_marks, Collections])
def test_an_interrupt_during_a_collection_reaches_the_program(
    kind: Callable[[], GcWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    # Others' callbacks may be Python functions, as may the finalizers of what is left to collect.
    gc.collect()
    others = gc.callbacks[:]
    gc.callbacks.clear()
    GcWatch(_thread.interrupt_main, list).start()
    ours = kind()
    ours.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _collect()
    finally:
        gc.callbacks[:] = others
    assert not lost


def _collect() -> None:
    gc.collect()
    pytest.fail("The interrupt was lost.")


def test_collections_are_counted_from_their_start_to_their_end() -> None:
    ours = Collections()
    ours.start()
    for _ in range(3):
        gc.collect()
    ours.stop()
    gc.collect()
    assert ours.count == 3 and ours.pause_ns > 0


def test_a_forked_child_has_none(tmp_path: Path) -> None:
    program = "import gc, os, overlapscope, torch\nbefore = list(gc.callbacks)\n"
    program += "with overlapscope.record('x.json', plain_steps=0) as recording:\n    for _ in range(5):\n"
    program += "        assert gc.callbacks != before\n        torch.ones(4).sum()\n        child = os.fork()\n"
    program += "        if child == 0: os._exit(gc.callbacks != before)\n"
    program += "        assert os.waitpid(child, 0)[1] == 0\n        recording.step()\n"
    write(tmp_path / "fork.py", program)
    run = forked.run(["fork.py"], tmp_path)
    assert run.returncode == 0, run.stderr
