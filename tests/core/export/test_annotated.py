"""The annotated copy: the file's own events untouched, ours beside them, exact to the nanosecond."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.base.saved import encode
from overlapscope.errors import UnreadableTrace
from overlapscope.export import annotated
from overlapscope.reading import load
from overlapscope.report.model import build
from overlapscope.trace.model import Kind, Memory
from tests.core.analysis.test_sums import gpu_ops
from tests.support import kineto_files
from tests.support.helpers import TRACES, Host, Op, make_trace, tried
from tests.support.recordings import analysis_of

REAL = tried(
    file
    for place in (".", "known_causes", "mixed_workloads", "ddp", "recorder")
    for file in sorted((TRACES / place).glob("*.gz"))
    # Recordings that differ from others only in size.
    if file.name not in ("gpt2_train.json.gz", "small_transformer.json.gz", "rank1.json.gz", "host_compute.json.gz")
)
SAMPLE = TRACES / "known_causes" / "host_sync_stacks.json.gz"
TWO_DEVICES = TRACES / "mixed_workloads" / "model_on_two_devices.json.gz"

Event = dict[str, Any]


def copy_of(path: Path, analysis: TraceAnalysis | None = None) -> bytes:
    """Return the text of the annotated copy of a file."""
    return gzip.decompress(b"".join(annotated.write(analysis or analyze_trace(load(path)), path)))


def parsed(text: bytes, number: Callable[[str], Any] = str) -> Any:
    """Numbers that are not whole stay as they are written, or become exact."""
    return json.loads(text, parse_float=number)


def divided(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Return the file's own events, and ours with exact times."""
    ids = {e["pid"] for e in events if e.get("cat") == annotated.CATEGORY}
    ours = [e | {key: Decimal(e[key]) for key in ("ts", "dur") if key in e} for e in events if e["pid"] in ids]
    return [e for e in events if e["pid"] not in ids], ours


def events_of(text: bytes) -> tuple[list[Event], list[Event]]:
    document = parsed(text, Decimal)
    return divided(document if isinstance(document, list) else document["traceEvents"])


def threads(ours: list[Event]) -> dict[tuple[str, str], list[Event]]:
    """Our complete events by the names of process and thread."""
    names = {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in ours if e["ph"] == "M"}
    by_track: dict[tuple[str, str], list[Event]] = {}
    for event in ours:
        if event["ph"] == "X":
            pid, tid = event["pid"], event["tid"]
            track = names[pid, pid, "process_name"], names[pid, tid, "thread_name"]
            by_track.setdefault(track, []).append(event)
    return by_track


def check_against_report(ours: list[Event], analysis: TraceAnalysis) -> None:
    """Pieces add up to the report's figures, lie where they should, and never overlap."""
    tracks = threads(ours)
    base = analysis.trace.base_ns
    for device in analysis.devices:
        result, process = device.result, f"overlapscope device {device.result.device}"
        by_bucket: Counter[str] = Counter()
        by_name: Counter[str] = Counter()
        for thread in annotated.THREADS:
            end_ns = None
            for event in sorted(tracks.get((process, thread), []), key=lambda e: e["ts"]):
                start_ns = base + int(event["ts"] * 1000)
                assert int(event["ts"] * 1000) == event["ts"] * 1000
                assert event["args"]["ns"] == event["dur"] * 1000 > 0
                assert end_ns is None or start_ns >= end_ns
                # The buckets leave no gap in the window.
                assert thread != "buckets" or end_ns in (None, start_ns)
                assert result.window.start_ns <= start_ns
                end_ns = start_ns + event["args"]["ns"]
                assert end_ns <= result.window.end_ns
                by_bucket[event["args"].get("bucket", "")] += event["args"]["ns"]
                by_name[event["name"]] += event["args"]["ns"]
        b = result.buckets
        assert by_bucket["compute"] == b.compute_ns
        assert by_bucket["exposed comm"] == b.exposed_comm_ns
        assert by_bucket["exposed copy"] == b.exposed_copy_ns
        assert by_bucket["exposed other"] == b.exposed_other_ns
        assert by_bucket["idle"] == b.idle_ns
        assert by_name["hidden copy"] == result.overlap.hidden_copy_ns
        for cause, ns in result.exposed_copy_by_cause.items():
            assert by_name[f"exposed copy: {cause}"] == ns
        for cause, ns in result.exposed_comm_by_cause.items():
            assert by_name[f"exposed comm: {cause}"] == ns
        for cause, ns in result.idle_by_cause.items():
            assert by_name[f"idle: {cause}"] == ns
        steps = Counter({s.name: 0 for s in result.steps})
        for step in result.steps:
            steps[step.name] += step.span_ns
        assert Counter({name: by_name[name] for name in steps}) == steps


def report_text(analysis: TraceAnalysis) -> str:
    """Return the report without the name of the file."""
    return encode(build([analysis])).decode().replace(json.dumps(analysis.trace.source)[1:-1], "FILE")


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.split(".")[0])
def test_the_copy_holds_the_same_events_and_gives_the_same_report(path: Path, tmp_path: Path) -> None:
    analysis = analysis_of(path)
    text = copy_of(path, analysis)
    document, original = parsed(text), parsed(gzip.decompress(path.read_bytes()))
    originals, ours = divided(document.pop("traceEvents"))
    assert originals == original.pop("traceEvents")
    assert document == original
    check_against_report(ours, analysis)
    again = tmp_path / "copy.json"
    again.write_bytes(text)
    assert report_text(analyze_trace(load(again))) == report_text(analysis)


def as_list(text: bytes) -> bytes:
    return json.dumps(json.loads(text)["traceEvents"]).encode()


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda text: text, id="plain"),
        pytest.param(zstd.compress, id="zstd"),
        pytest.param(lambda text: b"\xef\xbb\xbf \n" + text, id="byte order mark"),
        pytest.param(as_list, id="bare list"),
        pytest.param(lambda text: b" " * (1 << 20) + as_list(text), id="late bare list"),
        pytest.param(
            lambda text: json.dumps(json.loads(text) | {"zzz": [1]}, sort_keys=True).encode(), id="events amid"
        ),
        pytest.param(lambda text: text.replace(b'"traceEvents": [', b'"traceEvents"\n:\t[', 1), id="spaced"),
        pytest.param(lambda text: text.replace(b"{", b'{"long": "' + b"x{[" * (1 << 19) + b'", ', 1), id="long header"),
    ],
)
def test_any_form_of_the_file_is_annotated_at_its_top_level(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(pack(gzip.decompress(SAMPLE.read_bytes())))
    analysis = analyze_trace(load(path))
    original, ours = events_of(copy_of(path, analysis))
    assert original == parsed(gzip.decompress(SAMPLE.read_bytes()), Decimal)["traceEvents"]
    check_against_report(ours, analysis)


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_stays_truncated_and_is_read_as_before(packed: bool, tmp_path: Path) -> None:
    whole = SAMPLE.read_bytes() if packed else gzip.decompress(SAMPLE.read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    analysis = analysis_of(path)
    text = copy_of(path, analysis)
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    again = tmp_path / "copy.json"
    again.write_bytes(text)
    copied = analyze_trace(load(again))
    assert copied.trace.damage.truncated
    assert [d.result for d in copied.devices] == [d.result for d in analysis.devices]


def test_each_device_has_a_process_and_no_id_is_one_of_the_files() -> None:
    original, ours = events_of(copy_of(TWO_DEVICES))
    assert len({process for process, _ in threads(ours)}) == 2
    theirs = {number for e in original for number in (e.get("pid"), e.get("tid"))}
    assert not theirs & {number for e in ours for number in (e["pid"], e["tid"])}


def test_causes_name_op_call_and_line(tmp_path: Path) -> None:
    _, ours = events_of(copy_of(SAMPLE))
    (causes,) = (events for (_, thread), events in threads(ours).items() if thread == "causes")
    waiting = [e["args"] for e in causes if e["name"] == "idle: host-sync"]
    assert any("Synchronize" in args.get("call", "") for args in waiting)
    assert any(".py:" in args.get("line", "") for args in waiting)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = '","ph":"X"}]}<img src=x>\x1b[31m\u202e'
    events = [
        kineto_files.host("cpu_op", f"op{hostile}", 0, 5),
        kineto_files.call(1, 2, 3, name=f"call{hostile}"),
        kineto_files.memcpy(10, 3, correlation=3),
        kineto_files.kernel(20, 5, correlation=4),
    ]
    original, ours = events_of(copy_of(kineto_files.write(tmp_path / "trace.json", events)))
    assert len(original) == len(events)
    (arguments,) = (e["args"] for e in ours if "copy" in e["args"])
    for key in ("op", "call"):
        assert arguments[key] == key + '","ph":"X"}]}<img src=x>\\x1b[31m\\u202e'


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b"[\n]", b'{"traceEvents": [ \n ], "x": 1}'])
def test_a_file_without_events_becomes_valid_json(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(text)
    analysis = analyze_trace(make_trace([Op(Kind.COMPUTE, 5, 9)]))
    original, ours = events_of(copy_of(path, analysis))
    assert original == []
    check_against_report(ours, analysis)


def test_a_file_that_is_gone_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="the file does not exist"):
        copy_of(tmp_path / "gone.json", analyze_trace(make_trace([Op(Kind.COMPUTE, 5, 9)])))


def test_a_file_that_is_something_else_by_now_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"version": 1}')
    with pytest.raises(UnreadableTrace, match="was it changed"):
        copy_of(path, analyze_trace(make_trace([Op(Kind.COMPUTE, 5, 9)])))


def test_times_are_those_of_the_file_where_doubles_would_round(tmp_path: Path) -> None:
    events = [
        {**kineto_files.kernel(0, 1), "ts": "START"},
        {**kineto_files.memcpy(0, 0, correlation=3), "ts": "LATER", "dur": "LENGTH"},
    ]
    path = kineto_files.write(tmp_path / "trace.json", events, baseTimeNanoseconds=0)
    text = path.read_text().replace('"START"', "1790857026000000.001").replace('"LATER"', "1790857026000002.003")
    path.write_text(text.replace('"LENGTH"', "0.999"))
    _, ours = events_of(copy_of(path))
    (copy,) = (e for e in ours if e["name"] == "exposed copy")
    assert (copy["ts"], copy["dur"]) == (Decimal("1790857026000002.003"), Decimal("0.999"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ops=gpu_ops(),
    cuts=st.lists(st.integers(-20, 60), max_size=4, unique=True),
    base=st.sampled_from((0, 7, 1_790_857_026_000_000_123)),
)
def test_pieces_add_up_for_any_trace(tmp_path: Path, ops: list[Op], cuts: list[int], base: int) -> None:
    bounds = sorted(cuts)
    steps = [Host(f"ProfilerStep#{i}", *pair) for i, pair in enumerate(itertools.pairwise(bounds))]
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    analysis = analyze_trace(make_trace(ops, annotations=steps, base_ns=base))
    check_against_report(events_of(copy_of(path, analysis))[1], analysis)


def test_a_narrowed_analysis_is_annotated_inside_its_windows(tmp_path: Path) -> None:
    ops = [
        Op(Kind.COMPUTE, 100, 120, launch=(10, 12)),
        Op(Kind.H2D, 130, 140, stream=9, launch=(13, 14), source=Memory.PINNED),
        Op(Kind.COMPUTE, 150, 160, launch=(30, 32)),
        Op(Kind.COMPUTE, 165, 170, launch=(33, 34)),
    ]
    steps = [Host("ProfilerStep#0", 5, 20), Host("ProfilerStep#1", 25, 50)]
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    analysis = analyze_trace(make_trace(ops, annotations=steps), step="ProfilerStep#1")
    check_against_report(events_of(copy_of(path, analysis))[1], analysis)
