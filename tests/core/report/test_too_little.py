"""Percentages of next to nothing, and bandwidths of next to no bytes, decide nothing and are not shown."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.report.model import Report
from overlapscope.report.page import Page
from overlapscope.report.tables import figures
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind, Memory
from tests.support.helpers import MS, TRACES, US, Host, Op, make_trace

C, H2D, D2H = Kind.COMPUTE, Kind.H2D, Kind.D2H
PINNED, PAGEABLE, DEVICE = Memory.PINNED, Memory.PAGEABLE, Memory.DEVICE


def steps(copy_us: int, size: int, *, count: int = 6) -> Report:
    """Return steps of 10 ms of compute after an exposed copy."""
    ops, notes = [], []
    for step in range(count):
        at = step * 20 * MS
        notes.append(Host(f"ProfilerStep#{step}", at, at + 20 * MS))
        ops.append(Op(H2D, at + 1 * MS - copy_us * US, at + 1 * MS, launch=(at + 1, at + 2), size=size))
        ops.append(Op(C, at + 1 * MS, at + 11 * MS, launch=(at + 3, at + 4)))
    return ov.analyze(make_trace(ops, annotations=notes))


def status(report: Report, metric: str, limit: dict[str, str]) -> tuple[str, str]:
    (verdict,) = ov.check(report, {"budgets": {metric: limit}}).verdicts
    return verdict.status, verdict.message


def test_the_json_report_stays_exact() -> None:
    overlap = steps(10, 1000).devices[0].overlap
    assert (overlap.efficiency_pct, overlap.hidden_copy_pct, overlap.copy_ns) == (0, 0, 60 * US)


def shown(report: Report) -> list[list[str]]:
    """The first figures of overlap."""
    (section,) = Page(report).sections()
    assert section.device is not None
    return figures(section, section.device).texts()[:2]


def test_no_figure_is_a_percentage_of_next_to_nothing() -> None:
    assert shown(steps(10, 1000)) == [["overlap efficiency", "n/a"], ["hidden copy share", "n/a"]]
    assert shown(steps(900, 1000)) == [["overlap efficiency", "0%"], ["hidden copy share", "0%"]]


@pytest.mark.parametrize("metric", ["efficiency_pct", "hidden_copy_pct", "exposed_copy_pct"])
def test_a_budget_on_a_percentage_of_next_to_nothing_is_unknown(metric: str) -> None:
    limit = {"max": "10%"} if metric == "exposed_copy_pct" else {"min": "80%"}
    verdict_status, why = status(steps(10, 1000), metric, limit)
    assert verdict_status == "unknown" and "0.1% of the time" in why
    assert status(steps(900, 1000), metric, limit)[0] == "fail"


def test_a_diff_has_no_percentage_of_next_to_nothing() -> None:
    (device,) = ov.diff(steps(10, 1000), steps(900, 1000)).devices
    efficiency = next(item for item in device.figures.overlap if item.name == "overlap efficiency")
    assert (efficiency.before, efficiency.after, efficiency.beyond_noise) == (None, 0, None)


def test_a_budget_on_bandwidth_is_not_judged_by_copies_of_a_few_bytes() -> None:
    limit = {"min": "10 GB/s"}
    verdict_status, why = status(steps(10, 16), "copy_bandwidth", limit)
    assert verdict_status == "unknown" and "latency" in why
    assert status(steps(900, 1 << 20), "copy_bandwidth", limit)[0] == "fail"
    assert status(steps(90, 1 << 20), "copy_bandwidth", limit)[0] == "pass"


def pageable(others: Sequence[Op]) -> str:
    """Return the detail of `pageable-memory` for four uploads of 1 GB/s beside other copies."""
    ops = [
        Op(H2D, at * MS, at * MS + 8 * MS, source=PAGEABLE, launch=(at * MS - 9 * US, at * MS + 8 * MS), size=8 << 20)
        for at in range(0, 40, 10)
    ]
    compute = [Op(C, at * MS + 8 * MS, at * MS + 9 * MS, launch=(at * MS, at * MS + 1)) for at in range(0, 40, 10)]
    (finding,) = (
        finding
        for finding in ov.analyze(make_trace([*ops, *compute, *others])).findings
        if finding.rule == "pageable-memory"
    )
    return finding.detail


def pinned(kind: Kind, size: int) -> Op:
    source, target = (PINNED, DEVICE) if kind == H2D else (DEVICE, PINNED)
    return Op(
        kind,
        50 * MS,
        50 * MS + 160 * US,
        launch=(49 * MS, 49 * MS + 1),
        size=size,
        stream=9,
        source=source,
        target=target,
    )


def test_a_slow_upload_is_set_beside_a_large_pinned_upload_only() -> None:
    assert "H2D at 1.0 GB/s (pinned memory in this recording: up to 52.4 GB/s)" in pageable([pinned(H2D, 8 << 20)])
    assert "H2D at 1.0 GB/s. Because" in pageable([pinned(H2D, 16)])
    assert "H2D at 1.0 GB/s. Because" in pageable([pinned(D2H, 8 << 20)])


@pytest.mark.parametrize(("orphan_at", "outcome"), [(0.4, "fail"), (0.95, "inconclusive"), (1.0, "inconclusive")])
def test_a_check_is_inconclusive_where_the_lead_in_takes_nearly_all(orphan_at: float, outcome: str) -> None:
    ops, notes = [], []
    for step in range(8):
        at = step * 20 * MS
        notes.append(Host(f"ProfilerStep#{step}", at, at + 20 * MS))
        ops.append(Op(H2D, at + 1, at + 10 * MS, launch=(at, at + 10 * MS), source=PAGEABLE, target=DEVICE))
        ops.append(Op(C, at + 10 * MS, at + 19 * MS, launch=(at + 10 * MS + 1, at + 10 * MS + 2)))
    at = round(orphan_at * 159 * MS)
    report = ov.analyze(make_trace([Op(C, at, at + US, correlation=1), *ops], annotations=notes))
    assert ov.check(report).outcome == outcome
    assert ov.check(report, {"forbid": ["pageable-memory"]}).outcome == outcome
    (section,) = Page(report).sections()
    assert "no overlap problems" not in judge(section).text.lower()


def test_a_verdict_that_all_copies_are_exposed_does_not_say_that_there_are_no_problems() -> None:
    ops = [
        Op(kind, at + 11 * MS * step, at + 11 * MS * step + length, launch=(number, number + 1))
        for step in range(6)
        for number, (kind, at, length) in enumerate(((H2D, 0, MS // 5), (C, MS // 5, 10_800 * US)), 2 * step)
    ]
    (section,) = Page(ov.analyze(make_trace(ops))).sections()
    verdict = judge(section)
    assert verdict.level == "good"
    assert "copies run alone for 1.20 ms (1.8%)" in verdict.text


def test_a_lead_in_that_takes_nearly_all_of_a_recording_without_steps_is_inconclusive(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress((TRACES / "further" / "training" / "naive.json.gz").read_bytes()))
    events = [event for event in document["traceEvents"] if "ProfilerStep" not in event.get("name", "")]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    begin, end = min(kernel["ts"] for kernel in kernels), max(kernel["ts"] for kernel in kernels)
    orphan = json.loads(json.dumps(kernels[0])) | {"ts": begin + 0.97 * (end - begin), "dur": 1}
    orphan["args"]["correlation"] = 1
    document["traceEvents"] = [*events, orphan]
    (tmp_path / "x.json").write_text(json.dumps(document))
    assert main(["check", str(tmp_path / "x.json")]) == 3
