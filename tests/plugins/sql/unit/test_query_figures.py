"""Tables of SQL have the figures of the report, of its findings, and of compared ranks."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from overlapscope.plugins.sql.engine import ask
from overlapscope.plugins.sql.formats import values
from overlapscope.plugins.sql.rows import fill
from overlapscope.plugins.sql.tables import TABLES
from overlapscope.ranks.comm_result import SlowGroup
from overlapscope.reading import load
from overlapscope.report.page import Page
from overlapscope.tools import QueriedTraces
from tests.support.comm_programs import COMM, MAIN, HostAct, play
from tests.support.helpers import US, recordings, tried, various
from tests.support.recordings import report_of, trace_of

ARCHIVE = Path(__file__).parents[3] / "ranks.tar.xz"


def rows_of(table: str, *recordings: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = fill(TABLES[table], QueriedTraces(tuple(map(trace_of, recordings)))).to_pylist()
    return rows


def test_a_step_has_the_figures_that_people_read() -> None:
    by_cause = {
        (row["source"], row["device"], row["subject"], row["cause"]): row["time_ns"]
        for row in rows_of("causes_per_step", *various())
    }
    devices = {
        (section.trace.source, device.device): device
        for recording in various()
        for section in Page(report_of(recording)).sections()
        if (device := section.device) is not None and section.steps
    }
    steps = rows_of("per_step", *various())
    assert {(row["source"], row["device"]) for row in steps} == devices.keys()
    for row in steps:
        source, device = row["source"], devices[row["source"], row["device"]]
        assert row["span_ns"] == device.span_ns and row["efficiency_pct"] == device.overlap.efficiency_pct
        assert {name: row[name] for name in asdict(device.buckets)} == asdict(device.buckets)
        assert {cause: by_cause[source, device.device, "idle", cause] for cause in device.idle_by_cause} == (
            device.idle_by_cause
        )


@pytest.mark.parametrize("recording", tried(recordings()), ids=lambda path: path.stem)
def test_findings_have_their_costs_and_savings_and_kernels_the_exposed_communication(recording: Path) -> None:
    findings = report_of(recording).findings
    saved = ("saved_ns", "saved_low_ns", "saved_high_ns")
    rows = rows_of("findings", recording)
    assert [[row[name] for name in ("device", "title", "cost_ns", *saved)] for row in rows] == [
        [each.device, each.title, each.cost_ns, *(each.saving and getattr(each.saving, name) for name in saved)]
        for each in findings
    ]
    kernels = rows_of("comm_kernels", recording)
    for device in report_of(recording).devices:
        exposed_ns = sum(row["exposed_ns"] for row in kernels if row["device"] == device.device)
        assert exposed_ns == device.buckets.exposed_comm_ns


def test_kernels_of_communication_have_their_lead_and_prefetch_depth() -> None:
    gather = HostAct("comm", COMM, 100 * US, name="ncclDevKernel_AllGather")
    program = [
        *(HostAct("compute", ns=500 * US), gather, HostAct("record", COMM), HostAct("compute", ns=500 * US)),
        *(HostAct("wait", MAIN), HostAct("compute", ns=500 * US)),
    ]
    played = play(program)
    statement = "SELECT lead_ns, prefetch_depth, exposed_ns, cause, began_by FROM comm_kernels"
    assert [*values(ask(QueriedTraces((played.trace,)), statement))] == [
        (played.ops[3].start - played.ops[1].end, 1, 0, None, "launch")
    ]


def test_compared_ranks_have_the_figures_of_their_report(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    job = QueriedTraces(tuple(map(load, sorted((tmp_path / "groups").glob("*.json.gz")))))
    comm = job.ranks.communication
    slow = SlowGroup(
        collective="allreduce", group="1", description="", group_ranks="[0, 2]", dimension=0, bytes=8, count=3,
        bus_gb_per_s=1.5, peers=1, peers_gb_per_s=3.0, lost_ns=7,
    )  # fmt: skip
    vars(job)["ranks"] = replace(job.ranks, communication=replace(comm, slow_groups=(slow,)))
    statement = "SELECT collective, process_group, dimension, busy_ns, bus_gb_per_s FROM group_collectives"
    assert [*values(ask(job, statement))] == [
        (row.collective, row.group, row.dimension, row.time.busy_ns, row.bus_gb_per_s) for row in comm.rows
    ]
    statement = "SELECT name, spans, mesh, groups, waiting_ns FROM mesh_dimensions"
    assert [*values(ask(job, statement))] == [
        (each.name, str([*each.spans]), "[2, 2]", each.groups, each.time.waiting_ns) for each in comm.dimensions
    ]
    (row,) = ask(job, "SELECT * FROM slow_groups").rows.to_pylist()
    assert {"group": row.pop("process_group"), **row} == asdict(slow)
