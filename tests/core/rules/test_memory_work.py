"""Tests of memory work in and between GPUs: peer copies, copies within a GPU, page migrations."""

from __future__ import annotations

import pytest

import overlapscope as ov
from overlapscope.plugins.nsys.rows import _copy_name
from overlapscope.rules.finding import Finding
from overlapscope.trace.model import Kind, Memory, Trace
from overlapscope.trace.op_names import kind, memory_kinds
from tests.support.helpers import MS, Op, make_trace

WITHIN, MIGRATION = "Memcpy DtoD (Device -> Device)", "Migration DtoH (Managed -> Managed)"


def recording(*between: Op) -> Trace:
    kernels = [Op(Kind.COMPUTE, at, at + 2 * MS, launch=(at - 100, at - 50)) for at in (MS, 9 * MS)]
    return make_trace([*kernels, *between])


def findings(trace: Trace) -> dict[str, Finding]:
    return {finding.rule: finding for finding in ov.analyze(trace).findings}


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (Op(Kind.P2P, 3 * MS, 6 * MS, launch=(2 * MS, 2 * MS + 1)), "peer-copy"),
        (Op(Kind.OTHER, 3 * MS, 6 * MS, name=WITHIN, launch=(2 * MS, 2 * MS + 1)), "device-copy"),
        (Op(Kind.OTHER, 3 * MS, 6 * MS, stream=-1, name=MIGRATION), "page-migration"),
    ],
)
def test_memory_work_that_runs_alone_is_reported_under_its_name(op: Op, rule: str) -> None:
    report = ov.analyze(recording(op))
    [device] = report.traces[0].devices
    assert {cause: ns for cause, ns in device.exposed_other_by_cause.items() if ns} == {rule: 3 * MS}
    assert {case.cause: case.time_ns for case in device.evidence if case.subject == "exposed-other"} == {rule: 3 * MS}
    found = {finding.rule: finding for finding in report.findings}
    assert "3.00 ms" in found[rule].title and not {"same-stream", "blocking-copy", "late-prefetch"} & set(found)


def test_memsets_and_hidden_copies_are_no_problem() -> None:
    fill = Op(Kind.OTHER, 3 * MS, 6 * MS, name="Memset (Device)", launch=(2 * MS, 2 * MS + 1))
    hidden = Op(Kind.P2P, MS, 3 * MS, stream=20, launch=(0, 1))
    assert not {"peer-copy", "device-copy", "page-migration"} & set(findings(recording(fill, hidden)))


def test_page_migrations_beside_kernels_count_since_they_stall_them() -> None:
    moved = Op(Kind.OTHER, MS, 2 * MS, stream=-1, name=MIGRATION)
    finding = findings(recording(moved))["page-migration"]
    assert finding.title.startswith("Pages of managed memory move between host and GPU for 1.00 ms")
    assert "cudaMemPrefetchAsync" in finding.advice


def test_a_page_migration_is_no_copy_and_needs_no_launch() -> None:
    names = [_copy_name(direction, 1, 2) for direction in (1, 2, 11, 12, 13)]
    assert [kind("gpu_memcpy", name) for name in names] == [Kind.H2D, Kind.D2H, *[Kind.OTHER] * 3]
    assert memory_kinds("gpu_memcpy", MIGRATION) == (Memory.MANAGED, Memory.MANAGED)
    early = Op(Kind.OTHER, 0, MS, stream=-1, name=MIGRATION)
    beside = [Op(Kind.OTHER, MS, 3 * MS, stream=-1, name=MIGRATION) for _ in range(2)]
    [trace] = ov.analyze(recording(early, *beside)).traces
    assert trace.devices[0].lead_in_ns == 0
    assert {check.id: check.status for check in trace.trust.checks if check.id in ("launches", "stream-order")} == {
        "launches": "ok",
        "stream-order": "ok",
    }
