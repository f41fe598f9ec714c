"""Which steps are recorded of a program whose steps differ, by the clock of all its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.base import clock
from overlapscope.recorder import all_threads
from overlapscope.recorder import recorder as recorder_module
from overlapscope.recorder.options import Options
from overlapscope.recorder.recorder import WindowRecorder
from tests.support.fake_clock import NS_PER_MS, FakeClock
from tests.support.recorded import steps, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(clock, "now_ns", fake)
    # The samplers have clocks of their own.
    monkeypatch.setattr(recorder_module, "LONGEST_STEP_NS", 0)
    return fake


def recorder_of(path: Path) -> WindowRecorder:
    """Return a recorder like that of `overlapscope run`, but of few steps: 8 to 10 of the first, without a pause."""
    recorder = WindowRecorder(
        lambda: path,
        Options(warmup=1, active=2, plain_steps=10),
        since_ns=0,
        bounded=True,
        on_too_much=lambda: None,
        records_again=True,
    )
    recorder.handle("start")
    return recorder


def run(recorder: WindowRecorder, now: FakeClock, lengths_ms: Iterator[int], count: int) -> None:
    for ms in islice(lengths_ms, count):
        work()
        now.wait(ms=ms)
        recorder.handle("step")


def test_steps_are_recorded_again_at_another_pace(path: Path, now: FakeClock) -> None:
    recorder = recorder_of(path)
    run(recorder, now, cycle([100]), 70)
    run(recorder, now, cycle([20]), 400)
    recorder.handle("end")
    [again] = [note for note in recorder.notes if "are recorded instead" in note]
    assert "spends more of its time in steps of 20.0 ms" in again
    clocked = ov.load(path).plain_steps.clocked
    assert clocked.span_ns == clocked.steps * 20 * NS_PER_MS and clocked.steps > 300


def test_steps_are_not_recorded_again_if_some_are_long(path: Path, now: FakeClock) -> None:
    recorder = recorder_of(path)
    run(recorder, now, cycle([1] * 99 + [500]), 900)
    recorder.handle("end")
    assert len(recorder.step_times.recorded_ns) == 2 and "recorded instead" not in " ".join(recorder.notes)
    groups = ov.load(path).plain_steps.clocked.lengths
    assert groups[-1] == (9, 9 * 500 * NS_PER_MS)


@pytest.mark.parametrize("more", [0, 12])
def test_a_program_that_ends_while_steps_are_recorded_again_keeps_the_first_recording(
    more: int, path: Path, now: FakeClock
) -> None:
    recorder = recorder_of(path)
    run(recorder, now, cycle([100]), 90)
    while not recorder.repeating:
        run(recorder, now, cycle([20]), 1)
    run(recorder, now, cycle([20]), more)
    recorder.handle("end")
    assert recorder.complete and len(steps(path)) == 3
    plain = ov.load(path).plain_steps
    assert len(plain.after.host_ns) == 10 and plain.clocked.steps >= 30


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_program_without_other_ranks_waits_until_its_steps_no_longer_become_faster(
    alone: bool, path: Path, now: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not alone:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    recorder = recorder_of(path)
    run(recorder, now, (round(20_000 * 0.95**number) for number in range(40)), 40)
    recorder.handle("end")
    assert ("Steps still became faster" in " ".join(recorder.notes)) == alone
    assert recorder.failure is None and steps(path)


@contextmanager
def thread_inside_an_op() -> Iterator[None]:
    """Have a thread that was inside an op when a profiler of all threads stopped, as far as can be known."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    all_threads.leave({thread.native_id})
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(not all_threads.is_supported(), reason="this torch records the ops of one thread only")
def test_a_recorder_that_has_moved_gives_up_if_it_may_not_start_again(path: Path, now: FakeClock) -> None:
    recorder = recorder_of(path)
    assert recorder.move()
    written = []
    with thread_inside_an_op():
        for _ in range(2):
            run(recorder, now, cycle([400]), 60)
            written.append(recorder.written)
    assert written == [False, True] and not recorder.running
    recorder.handle("end")
    assert "Later steps were not recorded" in " ".join(recorder.notes)
    assert steps(path) == [1, 2]
