"""Tests of copies between two GPUs of a process: what each source states of them, and where they are counted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.facts import means
from overlapscope.base.saved import encode
from overlapscope.catalog.measures import FIELD_OF_LENGTH, PARTS_OF_SPAN
from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.export import chrome_trace
from overlapscope.report.model import Report
from overlapscope.timeline.details import op as details_of
from overlapscope.trace.model import GpuOps, Kind, Trace
from tests.core.reading.test_reader import call, document, event, write
from tests.support.helpers import MS, TRACES, US, Op, make_trace
from tests.support.recordings import lanes_of, report_of, trace_of
from tests.support.schemas import validate
from tests.support.xspace import Plane, xspace

TWO_DEVICES = TRACES / "mixed_workloads" / "model_on_two_devices.json.gz"
PEER, WITHIN = "Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"
BETWEEN = {"fromDevice": 0, "inDevice": 0, "toDevice": 1}


def sides(ops: GpuOps) -> list[tuple[Kind, int, int]]:
    """Return kind, source and target of each op."""
    columns = (ops.kind.tolist(), ops.source_device.tolist(), ops.target_device.tolist())
    return [(Kind(kind), source, target) for kind, source, target in zip(*columns, strict=True)]


# -- Sources ---------------------------------------------------------------------------------------


def read(path: Path, *events: dict[str, Any]) -> Trace:
    return ov.load(write(path / "trace.json", document([*events])), progress=False, cache=False)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        (PEER, BETWEEN, (Kind.P2P, 0, 1)),
        (PEER, {}, (Kind.P2P, -1, -1)),
        (PEER, {"fromDevice": 2}, (Kind.P2P, 2, -1)),
        (WITHIN, BETWEEN, (Kind.P2P, 0, 1)),
        (PEER, BETWEEN | {"toDevice": 0}, (Kind.OTHER, 0, 0)),
        (PEER, BETWEEN | {"toDevice": 4294967295}, (Kind.P2P, 0, -1)),
        (WITHIN, {}, (Kind.OTHER, -1, -1)),
        ("Memcpy HtoD (Pinned -> Device)", BETWEEN, (Kind.H2D, 0, 1)),
    ],
)
def test_the_devices_that_kineto_states_decide_and_otherwise_the_name(
    tmp_path: Path, name: str, args: dict[str, int], expected: tuple[Kind, int, int]
) -> None:
    ops = read(tmp_path, event("gpu_memcpy", name, 5, 1, args={"stream": 7, "bytes": 4096, **args})).gpu_ops
    assert (sides(ops), ops.bytes.tolist()) == ([expected], [4096])


@pytest.mark.parametrize(
    ("called", "category", "name", "kind"),
    [
        ("hipMemcpyPeerAsync", "gpu_memcpy", WITHIN, Kind.P2P),
        ("hipMemcpyPeer", "kernel", "__amd_rocclr_copyBuffer", Kind.P2P),
        ("hipMemcpy3DPeerAsync", "kernel", "MEMORY_COPY_DEVICE_TO_DEVICE", Kind.P2P),
        ("hipMemcpyPeerAsync", "kernel", "gemm", Kind.COMPUTE),
        ("hipMemcpyDtoDAsync", "gpu_memcpy", WITHIN, Kind.OTHER),
        ("hipMemcpyAsync", "kernel", "CopyDeviceToDevice", Kind.OTHER),
    ],
)
def test_the_call_shows_peer_copies_of_rocm_which_has_one_name_for_both(
    tmp_path: Path, called: str, category: str, name: str, kind: Kind
) -> None:
    op = event(category, name, 5, 1, args={"device": 0, "stream": 0, "correlation": 4})
    assert sides(read(tmp_path, call(1, 2, 4, called), op).gpu_ops) == [(kind, -1, -1)]


def nsys_copies(folder: Path, *copies: tuple[int | None, ...]) -> Trace:
    """Return a trace of nsys with copies of 5 ns, each of a size, kind, source and target."""
    columns = (
        "start, end, deviceId, streamId, correlationId, srcKind, dstKind, bytes, copyKind, srcDeviceId, dstDeviceId"
    )
    with closing(sqlite3.connect(folder / "report.sqlite")) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns})")
        rows = [(10 * n, 10 * n + 5, 0, 7, n, 2, 2, *copy) for n, copy in enumerate(copies, 1)]
        database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * 11)})", rows)
    return ov.load(folder / "report.sqlite")


def test_a_report_of_nsight_systems_states_the_devices(tmp_path: Path) -> None:
    stated = [(10, 0, 1), (8, 1, 0), (8, 1, 1), (10, None, None), (8, None, None), (13, 0, 1), (1, None, None)]
    assert sides(nsys_copies(tmp_path, *((64, *each) for each in stated)).gpu_ops) == [
        (Kind.P2P, 0, 1),
        (Kind.P2P, 1, 0),
        (Kind.OTHER, 1, 1),
        (Kind.P2P, -1, -1),
        (Kind.OTHER, -1, -1),
        (Kind.P2P, 0, 1),
        (Kind.H2D, -1, -1),
    ]


def test_a_report_of_nsight_systems_cannot_state_a_size_that_no_link_moves(tmp_path: Path) -> None:
    trace = nsys_copies(tmp_path, (50_000, 10, 0, 1), (70_000, 10, 0, 1), (70_000, 8, 0, 1), (70_000, 8, 0, 0))
    assert trace.gpu_ops.bytes.tolist() == [50_000, -1, -1, 70_000]
    assert trace.damage.impossible_sizes == {"other": 2}


@pytest.mark.parametrize(
    ("name", "details_of_copy", "expected"),
    [
        ("MemcpyP2P", "kind_src:device kind_dst:device size:64 dest:1 async:1", (Kind.P2P, 2, 1)),
        ("MemcpyP2P", "kind_src:device kind_dst:device size:64", (Kind.P2P, -1, -1)),
        ("MemcpyP2P", "", (Kind.P2P, -1, -1)),
        ("MemcpyD2D", "kind_src:device kind_dst:device size:64 dest:2 async:1", (Kind.OTHER, -1, -1)),
    ],
)
def test_xla_states_where_a_peer_copy_of_a_device_goes(
    tmp_path: Path, name: str, details_of_copy: str, expected: tuple[Kind, int, int]
) -> None:
    stream = {(5, "Stream #5(MemcpyP2P)"): [(name, 10 * US, US, {"memcpy_details": details_of_copy})]}
    path = tmp_path / "any.xplane.pb"
    path.write_bytes(xspace(Plane("/device:GPU:2", stream, {"gpu_device_name": "GPU 2"})))
    assert sides(ov.load(path, progress=False, cache=False).gpu_ops) == [expected]


def test_a_written_trace_keeps_the_devices(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        event("gpu_memcpy", WITHIN, 5, 1, args={"stream": 7, **BETWEEN}),
        event("gpu_memcpy", PEER, 7, 1, args={"stream": 7, **BETWEEN, "toDevice": 0}),
        call(8, 1, 4, "hipMemcpyPeerAsync"),
        event("gpu_memcpy", WITHIN, 9, 1, args={"device": 0, "stream": 7, "correlation": 4}),
    )
    (tmp_path / "again.json").write_bytes(b"".join(chrome_trace.blocks(trace, packed=False)))
    again = ov.load(tmp_path / "again.json", progress=False, cache=False)
    assert sides(again.gpu_ops) == sides(trace.gpu_ops) == [(Kind.P2P, 0, 1), (Kind.OTHER, 0, 0), (Kind.P2P, -1, -1)]


@pytest.mark.parametrize(("size", "kept"), [(9_000_000, True), (20_000_000, False)])
@pytest.mark.parametrize("how", ["by name", "by devices", "by call"])
def test_a_size_that_no_link_between_devices_can_move_is_forgotten(
    how: str, size: int, kept: bool, tmp_path: Path
) -> None:
    name, stated = (PEER if how == "by name" else WITHIN), (BETWEEN if how == "by devices" else {"device": 0})
    args = {"stream": 7, "bytes": size, "correlation": 4, **stated}
    within = event("gpu_memcpy", WITHIN, 8, 1, args={"device": 0, "stream": 7, "bytes": size})
    calls = [call(1, 2, 4, "hipMemcpyPeerAsync")] if how == "by call" else []
    trace = read(tmp_path, *calls, event("gpu_memcpy", name, 5, 1, args=args), within, event("kernel", "k", 9.5, 1))
    assert trace.gpu_ops.bytes.tolist()[:2] == [size if kept else -1, size]
    assert trace.damage.impossible_sizes == ({} if kept else {"other": 1})


# -- Figures ---------------------------------------------------------------------------------------


def test_peer_copies_are_listed_apart_from_those_between_host_and_device() -> None:
    ops = [
        Op(Kind.COMPUTE, 0, 4 * MS),
        Op(Kind.H2D, 1 * MS, 6 * MS, stream=13, size=5_000_000),
        Op(Kind.P2P, 3 * MS, 8 * MS, stream=14, size=500_000_000),
    ]
    (device,) = analyze_trace(make_trace(ops)).result.devices
    figures = device.overlap
    assert (figures.p2p_ns, figures.exposed_p2p_ns, figures.copy_ns) == (5 * MS, 4 * MS, 5 * MS)
    # The engines are those of copies between host and device.
    assert (figures.serial_ns, figures.busy_ns, figures.ideal_ns) == (9 * MS, 6 * MS, 5 * MS)
    # A nanosecond with both kinds of copies counts as exposed copy.
    assert (device.buckets.exposed_copy_ns, device.buckets.exposed_other_ns) == (2 * MS, 2 * MS)
    listed = [(group.direction, group.time_ns, group.exposed_ns, group.gb_per_s) for group in device.copies]
    assert listed == [("h2d", 5 * MS, 2 * MS, 1.0), ("p2p", 5 * MS, 4 * MS, 100.0)]


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).map(sorted), min_size=1, max_size=5))
@example([[0, 1, 1], [1, 1, 1]])
def test_an_average_step_has_no_more_peer_copies_than_memory_work(steps: list[list[int]]) -> None:
    names = ("exposed_p2p", "p2p", "other")
    others = dict.fromkeys(("span", *PARTS_OF_SPAN, *FIELD_OF_LENGTH), np.zeros(len(steps), np.int64))
    rounded = means(others | dict(zip(names, np.array(steps).T, strict=True)))
    exposed, peers, other = (rounded[name] for name in names)
    assert exposed <= peers <= other


def as_written(report: Report) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(encode(report))
    return written


def test_the_json_report_has_size_speed_devices_and_exposed_time() -> None:
    written = as_written(report_of(TWO_DEVICES))
    validate(written, schema_of("report"))
    truth = trace_of(TWO_DEVICES).gpu_ops
    for device in written["traces"][0]["devices"]:
        (group,) = [group for group in device["copies"] if group["direction"] == "p2p"]
        mine = truth.take((truth.kind == Kind.P2P) & (truth.device == device["device"]))
        time_ns = int((mine.end_ns - mine.start_ns).sum())
        assert (group["source_device"], group["target_device"]) == (device["device"], 1 - device["device"])
        assert (group["count"], group["bytes"], group["time_ns"]) == (4, 4 << 26, time_ns)
        assert group["gb_per_s"] == pytest.approx((4 << 26) / time_ns)
        assert group["exposed_ns"] == time_ns == device["overlap"]["p2p_ns"] == device["overlap"]["exposed_p2p_ns"]
        assert sum(device["buckets"].values()) == device["span_ns"]


def test_the_report_lists_them_with_their_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "-v", str(TWO_DEVICES)]) == 0
    out = capsys.readouterr().out
    assert [" ".join(line.split()) for line in out.splitlines() if line.startswith("p2p  ")] == [
        "p2p device 0 to 1 7 1 67.1 MB 392.0 0.17 0.17",
        "p2p device 1 to 0 145 1 67.1 MB 388.0 173.0 173.0",
    ]
    assert "P p2p" in out


def test_the_timeline_says_between_which_devices() -> None:
    lanes = lanes_of(TWO_DEVICES)
    lane = next(lane for lane in lanes.lanes if lane.kind == "stream" and lane.device == 0)
    ops = lanes.device(0).timeline.ops
    row = next(row for row in range(len(lane.source)) if ops.kind[lane.source[row]] == Kind.P2P)
    facts = dict(map(tuple, details_of(lanes, lane.id, row)["facts"]))
    assert facts["devices"] == "0 to 1" and facts["exposed"] == "171.1 us (100%)"


# -- Budgets ---------------------------------------------------------------------------------------


def test_budgets_of_copies_are_about_those_between_host_and_device() -> None:
    result = ov.check(report_of(TWO_DEVICES), {"budgets": {"copy_bandwidth": {"min": "100 GB/s"}}})
    reasons = [reason.title for verdict in result.verdicts for reason in verdict.reasons]
    assert reasons and all(title.startswith("h2d") for title in reasons)
