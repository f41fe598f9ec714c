"""A session keeps the traces that are read in it and their results; without a session, nothing is kept."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path

import pytest

from overlapscope.analysis import analyze_trace
from overlapscope.errors import UnreadableTrace
from overlapscope.prediction import find_program
from overlapscope.reading import load
from overlapscope.report.model import build
from overlapscope.trace.model import Kind
from tests.support.helpers import TRACES, Op, make_trace
from tests.support.session import session

pytestmark = pytest.mark.afresh

RECORDING = TRACES / "streamed0_pinned0.json.gz"
PLAIN_STEP_NS = 1_000_000


def test_a_file_is_read_and_analysed_once() -> None:
    with session(TRACES):
        analysis, again = analyze_trace(load(RECORDING)), analyze_trace(load(RECORDING))
        assert again is analysis
        assert find_program(analysis, PLAIN_STEP_NS) is find_program(again, PLAIN_STEP_NS) is not None
        findings, other = build([analysis]).findings, build([again]).findings
        assert findings and all(finding is same for finding, same in zip(findings, other, strict=True))


def test_what_is_asked_in_another_way_is_worked_out_anew() -> None:
    with session(TRACES):
        trace = load(RECORDING)
        whole, part = analyze_trace(trace), analyze_trace(trace, device=0, step="ProfilerStep#3")
    assert part.devices[0].result.span_ns < whole.devices[0].result.span_ns
    assert part.trace is whole.trace


def test_results_are_those_without_a_session() -> None:
    with session(TRACES):
        inside = build([analyze_trace(load(RECORDING))])
    assert inside == build([analyze_trace(load(RECORDING))])


def test_the_limit_and_the_name_are_those_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with session(TRACES):
        assert load(RECORDING).source == str(RECORDING)
        monkeypatch.chdir(RECORDING.parent)
        assert load(RECORDING.name).source == RECORDING.name
        with pytest.raises(UnreadableTrace):
            load(RECORDING, limit_bytes=1000)


def test_files_elsewhere_are_read_each_time(tmp_path: Path) -> None:
    copied = shutil.copy(RECORDING, tmp_path)
    with session(TRACES):
        assert load(copied) is not load(copied)


def test_an_inner_session_starts_empty_and_leaves_the_outer_one_as_it_was() -> None:
    with session(TRACES):
        trace = load(RECORDING)
        analysis = analyze_trace(trace)
        with session(TRACES):
            assert load(RECORDING) is not trace
            assert analyze_trace(trace) is not analysis
        assert load(RECORDING) is trace
        assert analyze_trace(trace) is analysis


def test_a_trace_from_elsewhere_is_analysed_each_time() -> None:
    trace = make_trace([Op(Kind.COMPUTE, 0, 100, launch=(0, 1))])
    with session(TRACES):
        assert analyze_trace(trace) is not analyze_trace(trace)


@pytest.mark.parametrize("within", [False, True], ids=["without a session", "after a session"])
def test_everything_goes_with_the_last_who_uses_it(within: bool) -> None:
    def references() -> list[weakref.ref[object]]:
        trace = load(RECORDING)
        build([analyze_trace(trace)])
        return [weakref.ref(trace), weakref.ref(trace.gpu_ops)]

    if within:
        with session(TRACES):
            remaining = references()
            assert all(reference() is not None for reference in remaining)
    else:
        remaining = references()
    gc.collect()
    assert [reference() for reference in remaining] == [None, None]
