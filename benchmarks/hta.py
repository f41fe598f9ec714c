"""Writes `docs/evaluation/hta.md`: our figures beside those of HolisticTraceAnalysis on the bundled recordings.

    python -m benchmarks.hta docs/evaluation/hta.md

Differences are proven: each of HTA's ways is reverted in turn, until its figures equal ours.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.data_files import csv_text
from overlapscope.analysis import analyze_trace
from overlapscope.plugins.hta.build import quiet, trace_analysis
from overlapscope.reading import load
from overlapscope.trace.model import Kind, Trace

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "traces"
TEXT = Path(__file__).with_name("hta_page.md")
"""The page around the tables."""

REASONS = ("R", "L", "S")
"""HTA's ways that make its figures differ, in the order in which they are taken back."""


class TemporalBreakdown(NamedTuple):
    """Times in nanoseconds; None without communication."""

    span_ns: int
    compute_ns: int
    idle_ns: int
    comm_compute_pct: float | None


def recordings() -> tuple[str, ...]:
    """Return the bundled recordings of one device, by name."""
    folders = (TRACES, TRACES / "ddp", TRACES / "known_causes", TRACES / "mixed_workloads")
    files = sorted(file for folder in folders for file in folder.glob("*.json.gz"))
    return tuple(file.relative_to(TRACES).as_posix().removesuffix(".json.gz") for file in files)


def _ours(trace: Trace) -> TemporalBreakdown:
    """Return overlapscope's figures."""
    (device,) = analyze_trace(trace).result.devices
    return TemporalBreakdown(
        device.span_ns, device.buckets.compute_ns, device.buckets.idle_ns, device.overlap.comm_compute_pct
    )


def _theirs(trace: Trace, our_figures: TemporalBreakdown) -> list[TemporalBreakdown | None]:
    """Return HTA's figures as they are, and with one more of `REASONS` reverted until they equal ours; None if HTA
    fails."""
    steps: list[TemporalBreakdown | None] = []
    for taken_back in _taken_back(trace):
        steps.append(taken_back)
        if _same(our_figures, taken_back):
            break
    return steps


def _taken_back(trace: Trace) -> Iterator[TemporalBreakdown | None]:
    whole = _without_steps(trace)
    yield _by_hta(trace, nanoseconds=False)
    yield _by_hta(trace, nanoseconds=True)
    yield _by_hta(whole, nanoseconds=True)
    yield _by_hta(replace(whole, syncs=whole.syncs.take(np.zeros(len(whole.syncs), np.bool_))), nanoseconds=True)


def _same(ours: TemporalBreakdown, other: TemporalBreakdown | None) -> bool:
    """Return whether two results are equal, to the nanosecond except for the rounding of HTA's sums, and to HTA's two
    decimals."""
    if other is None or any(abs(a - b) > 1 for a, b in zip(ours[:3], other[:3], strict=True)):
        return False
    a, b = ours.comm_compute_pct, other.comm_compute_pct
    return a is b if a is None or b is None else abs(a - b) <= 0.0051


def _without_steps(trace: Trace) -> Trace:
    """HTA looks for steps to leave out the last of them, and with it the ops whose launch is not recorded."""
    on_host, on_device = trace.annotations, trace.device_annotations
    return replace(
        trace,
        annotations=on_host.take(~on_host.named(_is_step)),
        device_annotations=on_device.take(~on_device.named(_is_step)),
    )


def _is_step(name: str) -> bool:
    return name.startswith("ProfilerStep")


def _by_hta(trace: Trace, *, nanoseconds: bool) -> TemporalBreakdown | None:
    analysis = trace_analysis(trace, nanoseconds=nanoseconds)
    try:
        with quiet():
            temporal = analysis.get_temporal_breakdown(visualize=False).iloc[0]
            communicates = bool((trace.gpu_ops.kind == Kind.COMM).any())
            overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0] if communicates else {}
    except AssertionError:
        return None
    span, compute, idle = (round(1000 * float(temporal[f"{part}_time(us)"])) for part in ("kernel", "compute", "idle"))
    pct = float(overlap.get("comp_comm_overlap_pctg", math.nan))
    return TemporalBreakdown(span, compute, idle, None if math.isnan(pct) else pct)


def _changed(steps: list[TemporalBreakdown | None]) -> str:
    """Return the reasons for a visible difference: undoing each one changes a figure."""
    letters = [
        letter
        for letter, before, after in zip(REASONS, steps, steps[1:], strict=False)
        if before is None or (after is not None and not _same(after, before))
    ]
    return ", ".join(letters) or "none"


FIGURE = (
    *("recording", "span", "span, HTA", "compute", "compute, HTA", "idle", "idle, HTA", "comm %", "comm %, HTA"),
    "why",
)


def _row(name: str, our_figures: TemporalBreakdown, hta: TemporalBreakdown | None, reasons: str) -> list[str]:
    def both(figure: Callable[[TemporalBreakdown], str]) -> tuple[str, str]:
        return figure(our_figures), figure(hta) if hta else "gives up"

    return [
        name,
        *both(lambda f: f"{f.span_ns / 1e6:,.3f}"),
        *both(lambda f: f"{f.compute_ns / 1e6:,.3f}"),
        *both(lambda f: f"{f.idle_ns / 1e6:,.3f}"),
        *both(lambda f: "" if f.comm_compute_pct is None else f"{f.comm_compute_pct:.2f}"),
        reasons,
    ]


def page() -> tuple[str, str]:
    """Return the page, and the CSV file of its figures."""
    rows, given_up, unlike = [], [], []
    for name in recordings():
        trace = load(TRACES / f"{name}.json.gz", progress=False, cache=False)
        if len(trace.devices) != 1:
            continue
        own_frame = _ours(trace)
        steps = _theirs(trace, own_frame)
        rows.append(_row(name, own_frame, steps[0], _changed(steps)))
        if steps[0] is None:
            given_up.append(f"`{name}`")
        if not _same(own_frame, steps[-1]):
            unlike.append(f"`{name}`")
    text = TEXT.read_text(encoding="utf-8")
    parts = {
        "verdict": f"are ours on {'all' if not unlike else len(rows) - len(unlike)} of these {len(rows)} recordings"
        + (f" (not on {', '.join(unlike)})" if unlike else ""),
        "crashes": f"HTA fails on {', '.join(given_up)}, because its rounded parts exceed the rounded whole."
        if given_up
        else "",
    }
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return re.sub(r"\n{3,}", "\n\n", text), csv_text(FIGURE, rows)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    text, figures = page()
    target.write_text(text, encoding="utf-8")
    target.with_suffix(".csv").write_text(figures, encoding="utf-8")
