"""Tests that HolisticTraceAnalysis agrees with us on figures of the same definition. `docs/evaluation/hta.md` explains
the others.

HTA (`traceinsight` 0.6) works on whole microseconds, leaves out the last `ProfilerStep` and counts `cuda_sync`
records that name a stream as GPU work. So it is given traces of whole microseconds without steps and syncs; then
every figure must be equal. `test_hta_docs.py` does the same on the originals, with HTA's ways taken back in turn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.reading import load
from tests.plugins.hta.recordings import rewritten

pytest.importorskip("hta", reason="compares with HolisticTraceAnalysis")
from hta.trace_analysis import TraceAnalysis as HtaAnalysis

TRACES = ("ddp/rank0", "ddp/rank1", "gpt2_train", "pipeline_1stream", "pipeline_3stream", "streamed1_pinned1")


class Hta(NamedTuple):
    span_us: float
    compute_us: float
    idle_us: float
    comm_compute_pct: float


def by_hta(path: Path) -> Hta:
    analysis = HtaAnalysis(trace_files={0: str(path)})
    (row,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    (overlap,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    return Hta(
        row["kernel_time(us)"],
        row["compute_time(us)"],
        row["idle_time(us)"],
        overlap["comp_comm_overlap_pctg"],
    )


def by_us(path: Path) -> Device:
    (device,) = analyze_trace(load(path)).result.devices
    return device


def without_steps_and_syncs(event: dict[str, Any]) -> dict[str, Any] | None:
    left_out = event.get("cat") == "cuda_sync" or str(event.get("name")).startswith("ProfilerStep")
    return None if left_out else event


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.filterwarnings("ignore")
def test_whole_microseconds_agree_exactly(name: str, tmp_path: Path) -> None:
    path = rewritten(name, tmp_path, change=without_steps_and_syncs)
    theirs, ours = by_hta(path), by_us(path)
    assert ours.span_ns == 1000 * theirs.span_us
    assert ours.buckets.compute_ns == 1000 * theirs.compute_us
    assert ours.buckets.idle_ns == 1000 * theirs.idle_us
    if ours.overlap.comm_compute_pct is None:
        assert math.isnan(theirs.comm_compute_pct)
    else:
        assert round(ours.overlap.comm_compute_pct, 2) == theirs.comm_compute_pct


@pytest.mark.filterwarnings("ignore")
def test_rounding_makes_hta_give_up_on_a_trace(tmp_path: Path) -> None:
    """Its rounded parts exceed the rounded whole, which it asserts against."""
    with pytest.raises(AssertionError):
        by_hta(rewritten("gpt2_train", tmp_path, whole_us=False, change=without_steps_and_syncs))
