"""Tests of ranks from a report of Nsight Systems:

NCCL's kernels by their real names, in the schema of a real export.
"""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.result import RanksReport
from overlapscope.reading import expand
from tests.support.helpers import MS, TRACES

PROCESSES = (281477392629760, 281477409406976)
COMPUTE = "gemm"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL"
SEND = "ncclDevKernel_SendRecv"
US = 1_000


class LaunchedKernel(NamedTuple):
    """One kernel, and when its launch was called."""

    name: str
    device: int
    start: int
    end: int
    launched: int
    thread: int = 1


class Schema:
    """The tables of a real export, without their rows."""

    def __init__(self, folder: Path) -> None:
        path = folder / "real.sqlite"
        path.write_bytes(lzma.decompress((TRACES / "nsys" / "train_2gpu.sqlite.xz").read_bytes()))
        with closing(sqlite3.connect(path)) as real:
            self.statements = [sql for (sql,) in real.execute("SELECT sql FROM sqlite_schema WHERE type = 'table'")]

    def report(
        self, path: Path, kernels: Sequence[LaunchedKernel], processes: Sequence[int], steps: Sequence[int] = ()
    ) -> Path:
        """Return a report in which device N belongs to `processes[N]`. `steps` are the starts of a process's 10 ms
        ranges."""
        with closing(sqlite3.connect(path)) as database:
            for statement in self.statements:
                database.execute(statement)
            names = dict.fromkeys(["cudaLaunchKernel_v7000", *(kernel.name for kernel in kernels)])
            ids = {name: id for id, name in enumerate(names)}
            strings: list[dict[str, int | str]] = [{"id": id, "value": name} for name, id in ids.items()]
            strings += [
                {"id": 100 + id, "value": f"{name}(ncclDevKernelArgsStorage<(unsigned long)4096>)"}
                for name, id in ids.items()
            ]
            _insert(database, "StringIds", strings)
            for number, kernel in enumerate(kernels, 1):
                process = processes[kernel.device]
                ran = {"start": kernel.start, "end": kernel.end, "deviceId": kernel.device, "streamId": 7}
                named = {"demangledName": 100 + ids[kernel.name], "shortName": ids[kernel.name]}
                belongs = {"globalPid": process, "correlationId": number}
                _insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", [ran | named | belongs])
                call = {"start": kernel.launched, "end": kernel.launched + US, "nameId": 0, "correlationId": number}
                _insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", [call | {"globalTid": process + kernel.thread}])
            for number, start in enumerate(steps):
                range_: dict[str, int | str] = {
                    "start": start,
                    "end": start + 10 * MS - US,
                    "eventType": 59,
                    "text": f"step {number}",
                }
                _insert(database, "NVTX_EVENTS", [range_ | {"globalTid": processes[0] + 1}])
            database.commit()
        return path


def _insert(database: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, int | str]]) -> None:
    """Columns that must have a value and are given none have 0."""
    columns = list(database.execute(f"PRAGMA table_info({table})"))
    for row in rows:
        whole: dict[str, int | str] = {name: 0 for _, name, _, must, *_ in columns if must}
        whole.update(row)
        marks = ", ".join("?" * len(whole))
        database.execute(f"INSERT INTO {table} ({', '.join(map(repr, whole))}) VALUES ({marks})", [*whole.values()])


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    return Schema(tmp_path_factory.mktemp("schema"))


def ranks(path: Path) -> RanksReport:
    joined: list[ReducedRank] = []
    for part in expand(path):
        joined += reduce(ov.load(part, cache=False))
    return report_on(joined)


def job(devices: int, names: Sequence[str], steps: int = 4) -> list[LaunchedKernel]:
    """In each step of 10 ms each device computes, then meets the others in each of the collectives: device N comes N x
    100 us late, and all end together."""
    kernels = []
    for begin in range(10 * MS, (steps + 1) * 10 * MS, 10 * MS):
        for device in range(devices):
            kernels.append(LaunchedKernel(COMPUTE, device, begin + 100 * US, begin + 1 * MS, begin + 50 * US))
            for turn, name in enumerate(names):
                at = begin + (1 + turn) * MS
                kernels.append(
                    LaunchedKernel(name, device, at + device * 100 * US, at + 800 * US, begin + (60 + turn) * US)
                )
    return kernels


def waits(path: Path, before: int = 100 * MS) -> tuple[dict[int, int], dict[int, int]]:
    """Return each device's waits, and those it caused, over all collectives that end before a time, from the rows."""
    with closing(sqlite3.connect(path)) as database:
        met = database.execute(
            "SELECT end, deviceId, start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName "
            "WHERE value LIKE '%AllReduce%' OR value LIKE '%AllGather%' OR value LIKE '%ReduceScatter%'"
        ).fetchall()
    waited: dict[int, int] = {}
    caused: dict[int, int] = {}
    for end in {row[0] for row in met if row[0] < before}:
        came = {device: start for other, device, start in met if other == end}
        last = max(came, key=lambda device: came[device])
        for device, start in came.items():
            waited[device] = waited.get(device, 0) + came[last] - start
        caused[last] = caused.get(last, 0) + sum(came[last] - start for start in came.values())
    return waited, caused


@pytest.mark.parametrize("devices", [2, 3])
def test_gpus_of_one_process_are_joined_by_their_collectives(schema: Schema, tmp_path: Path, devices: int) -> None:
    kernels = job(devices, [ALL_REDUCE, ALL_GATHER])
    path = schema.report(tmp_path / "report.sqlite", kernels, [PROCESSES[0]] * devices)
    report = ranks(path)
    assert [(row.rank, row.device, row.joined) for row in report.ranks] == [(n, n, True) for n in range(devices)]
    waited, caused = waits(path, before=40 * MS)
    assert {row.rank: row.waited_ns for row in report.ranks} == waited
    assert {row.rank: row.made_wait_ns for row in report.ranks if row.made_wait_ns} == caused
    assert report.clocks.status == "shared"
    assert report.matching.matched == report.matching.kernels == 8 * devices
    assert "One process drives all these GPUs, so each is taken for the rank of its number." in report.notes
    assert not any("without a rank" in note for note in report.notes)


def test_the_command_says_which_gpu_delays_the_others(
    schema: Schema, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = schema.report(tmp_path / "report.sqlite", job(4, [ALL_REDUCE]), [PROCESSES[0]] * 4)
    assert main(["ranks", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("Rank 3 delays each other rank by up to")
    assert f"it comes last in 4 of 4 collectives, mostly in {ALL_REDUCE}." in printed
    assert "exposed-comm (rank 3)" in printed and "cpu-ops" not in printed


def test_a_gpu_without_collectives_is_shown_beside_the_ranks(schema: Schema, tmp_path: Path) -> None:
    kernels = [*job(2, [ALL_REDUCE]), LaunchedKernel(COMPUTE, 2, 20 * MS, 30 * MS, 19 * MS)]
    report = ranks(schema.report(tmp_path / "report.sqlite", kernels, [PROCESSES[0]] * 3))
    assert [(row.rank, row.device) for row in report.ranks] == [(0, 0), (1, 1), (None, 2)]
    assert report.matching.meetings == 4
    assert "1 GPU without collectives: shown, but not compared with the others." in report.notes


def test_gpus_of_several_reports_have_no_rank_by_their_numbers(schema: Schema, tmp_path: Path) -> None:
    joined: list[ReducedRank] = []
    for name in ("a", "b"):
        path = schema.report(tmp_path / f"{name}.sqlite", job(2, [ALL_REDUCE]), [PROCESSES[0]] * 2)
        joined += reduce(ov.load(path, cache=False))
    assert {(row.rank, row.joined) for row in report_on(joined).ranks} == {(None, False)}


def test_steps_of_one_thread_do_not_part_the_collectives_of_another(schema: Schema, tmp_path: Path) -> None:
    # The thread with the steps launches for the first GPU a step ahead, another thread for the second right in time.
    kernels = [
        kernel._replace(launched=kernel.start - 5 * US, thread=2)
        if kernel.device
        else kernel._replace(launched=kernel.launched - 10 * MS)
        for kernel in job(2, [ALL_REDUCE])
    ]
    path = schema.report(tmp_path / "report.sqlite", kernels, [PROCESSES[0]] * 2, steps=range(0, 50 * MS, 10 * MS))
    assert len(ov.analyze(ov.load(path, cache=False)).devices[0].steps) == 4
    report = ranks(path)
    assert report.clocks.status == "shared"
    assert {row.rank: row.waited_ns for row in report.ranks} == waits(path, before=30 * MS)[0]


def test_collectives_that_cannot_be_the_same_are_left_out(schema: Schema, tmp_path: Path) -> None:
    # One file has one clock: equal in number and 10 ms apart, they are not each other's.
    kernels = [k for k in job(2, [ALL_REDUCE]) if k.device or k.name == COMPUTE or k.start < 40 * MS]
    kernels = [k for k in kernels if not k.device or k.name == COMPUTE or k.start >= 20 * MS]
    report = ranks(schema.report(tmp_path / "report.sqlite", kernels, [PROCESSES[0]] * 2))
    assert report.matching.meetings == 0
    assert all(row.waited_ns is None for row in report.ranks)
    assert any("do not end together" in note for note in report.notes)


def test_processes_of_a_report_are_joined_by_real_kernels_names(schema: Schema, tmp_path: Path) -> None:
    names = [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND]
    path = schema.report(tmp_path / "report.sqlite", job(2, names), PROCESSES)
    report = ranks(path)
    assert [(row.rank, Path(row.source).name) for row in report.ranks] == [
        (0, "report.sqlite@0"),
        (1, "report.sqlite@1"),
    ]
    assert {row.rank: row.waited_ns for row in report.ranks} == waits(path, before=40 * MS)[0]
    matching = report.matching
    assert (matching.by, matching.not_collective, matching.meetings, matching.judged) == ("kernel-names", 8, 16, 12)
    assert (
        "4 collectives in which not every rank waits for every other (broadcast, reduce, uneven all-to-all) are "
        in (" ".join(report.notes))
    )
    assert not any("One process" in note for note in report.notes)
