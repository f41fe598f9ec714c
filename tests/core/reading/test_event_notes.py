"""The recorder's notes on events make edges exact that Kineto does not state on CUDA 13."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overlapscope import load
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.event_waits import EXACT
from overlapscope.base.marks import EVENT_RECORD, EVENT_WAIT
from overlapscope.trace.model import Trace
from tests.support.kineto_files import Event, call, host, kernel, memcpy, write

COPY, FIRST, SECOND = 13, 7, 17


def wait_record(ts: float, stream: int, correlation: int, event: int) -> Event:
    """Return a sync record as Kineto writes it on CUDA 13."""
    args = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    args |= {"wait_on_cuda_event_id": event, "stream": stream, "correlation": correlation, "device": 0}
    return {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": stream, "ts": ts, "dur": 1} | {
        "args": args
    }


def two_streams_and_a_copy(tmp_path: Path, *notes: Event) -> Trace:
    """Return a copy that waits for the first of two streams; both end before it begins, the second later."""
    events = [
        call(0, 1, 1),
        call(2, 1, 2),
        call(10, 1, 3, name="cudaEventRecordWithFlags"),
        call(20, 1, 4, name="cudaEventRecordWithFlags"),
        call(30, 1, 5, name="cudaStreamWaitEvent"),
        call(40, 1, 6, name="cudaMemcpyAsync"),
        kernel(50, 50, stream=FIRST, correlation=1),
        kernel(50, 60, stream=SECOND, correlation=2),
        wait_record(30, COPY, 5, 9),
        memcpy(111, 50, stream=COPY, correlation=6),
        *notes,
    ]
    return load(write(tmp_path / "t.json", events), progress=False)


def note(kind: str, number: int, stream: int, ts: float, dur: float = 3, **rest: Any) -> Event:
    return host("cpu_op", f"{kind}{number}@0.{stream}", ts, dur, **rest)


GOOD = (
    note(EVENT_RECORD, 1, FIRST, 9),
    note(EVENT_RECORD, 2, SECOND, 19),
    note(EVENT_WAIT, 1, COPY, 29),
)


def test_without_notes_the_trace_does_not_say_what_is_waited_for(tmp_path: Path) -> None:
    trace = two_streams_and_a_copy(tmp_path)
    assert trace.syncs.source_stream.tolist() == [-1]
    assert trace.syncs.record_correlation.tolist() == [-1]


def test_a_note_names_the_stream_and_the_record_call(tmp_path: Path) -> None:
    trace = two_streams_and_a_copy(tmp_path, *GOOD)
    assert trace.syncs.source_stream.tolist() == [FIRST]
    assert trace.syncs.source_device.tolist() == [0]
    assert trace.syncs.record_correlation.tolist() == [3]


def test_the_edge_is_exact_and_from_the_noted_stream_though_another_ended_later(tmp_path: Path) -> None:
    (device,) = analyze_trace(two_streams_and_a_copy(tmp_path, *GOOD)).devices
    assert device.edges.confidence.tolist() == [EXACT]
    assert device.timeline.ops.stream[device.edges.source].tolist() == [FIRST]


def test_notes_are_no_cpu_ops(tmp_path: Path) -> None:
    assert len(two_streams_and_a_copy(tmp_path, *GOOD).cpu_ops) == 0


def test_notes_may_be_annotations_and_are_none_then(tmp_path: Path) -> None:
    light = [{**item, "cat": "user_annotation"} for item in GOOD]
    trace = two_streams_and_a_copy(tmp_path, *light)
    assert trace.syncs.source_stream.tolist() == [FIRST]
    assert trace.syncs.record_correlation.tolist() == [3]
    assert len(trace.annotations) == 0


def test_the_waiting_stream_must_have_the_same_number_on_both_sides(tmp_path: Path) -> None:
    """Else the recorder's stream numbers are not the trace's, and none can be trusted."""
    trace = two_streams_and_a_copy(tmp_path, *GOOD[:2], note(EVENT_WAIT, 1, 99, 29))
    assert trace.syncs.source_stream.tolist() == [-1]


def test_a_note_around_two_calls_or_of_another_thread_says_nothing(tmp_path: Path) -> None:
    around_both = note(EVENT_RECORD, 1, FIRST, 9, dur=20)
    assert two_streams_and_a_copy(tmp_path, around_both, GOOD[2]).syncs.source_stream.tolist() == [-1]
    elsewhere = note(EVENT_RECORD, 1, FIRST, 9, tid=2)
    assert two_streams_and_a_copy(tmp_path, elsewhere, GOOD[2]).syncs.source_stream.tolist() == [-1]


def test_a_wait_for_an_event_whose_record_was_not_seen_says_nothing(tmp_path: Path) -> None:
    trace = two_streams_and_a_copy(tmp_path, *GOOD[:2], note(EVENT_WAIT, 0, COPY, 29))
    assert trace.syncs.source_stream.tolist() == [-1]


def test_damaged_notes_do_no_harm(tmp_path: Path) -> None:
    damaged = [host("cpu_op", f"{EVENT_WAIT}{rest}", 29, 3) for rest in ("", "x@y", "1@0.13.5", "9" * 5000 + "@0.1")]
    trace = two_streams_and_a_copy(tmp_path, *GOOD[:2], *damaged)
    assert trace.syncs.source_stream.tolist() == [-1]
    assert len(trace.cpu_ops) == 0
