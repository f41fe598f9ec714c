"""Recordings of real collectives on H200s (`benchmarks.several_gpus`), of which the planted causes are known.

The archive has two programs of `scenarios/jobs`, and a sweep of collectives over sizes. `timed.json` has their times by
CUDA events, without a profiler.
"""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest

from overlapscope import load
from overlapscope.ranks.comm_result import GroupCollective
from overlapscope.ranks.comparison import compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import RanksReport

ARCHIVE = Path(__file__).parents[1] / "collectives.tar.xz"
RECORDED = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_allv",
}
"""Names that PyTorch records for the collectives of the sweep."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collectives")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "collectives"


def report(folder: Path) -> RanksReport:
    return report_on(rank for path in sorted(folder.glob("rank*.json")) for rank in reduce(load(str(path))))


def rows(report: RanksReport) -> dict[str, GroupCollective]:
    return {f"{row.collective} of {row.description}": row for row in report.communication.rows}


def test_uneven_all_to_alls_have_no_bandwidth(folder: Path) -> None:
    (row,) = rows(report(folder / "two-experts-skew")).values()
    assert row.time.unjudged_ns == 0 and row.bus_gb_per_s is None


def test_two_groups_of_the_same_ranks_have_a_row_each(folder: Path) -> None:
    each = rows(report(folder / "four-two_collectives-base"))
    large, small = each["allreduce of default_pg"], each["allreduce of small"]
    assert (large.ranks, large.group_ranks) == (4, "[0, 1, 2, 3]")
    assert small.bytes == 8192 * small.count and large.bytes == (256 << 20) * large.count
    assert small.time.exposed_ns == small.time.busy_ns


def test_bytes_and_busy_time_are_those_in_the_raw_files(folder: Path) -> None:
    """Sum up the kernels of the steps that both ranks have whole, by their times in the files."""
    path = folder / "two-bandwidth"
    result = report(path)
    assert result.communication.steps
    ranks = [reduce(load(str(path / f"rank{rank}.trace.json")))[0] for rank in range(2)]
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for rank in ranks:
        whole = [rank.steps.names.index(f"ProfilerStep#{number}") for number in (22, 23)]
        begin = int(rank.steps.start_ns[whole[0]])
        end = int(rank.steps.start_ns[whole[1]] + rank.steps.span_ns[whole[1]])
        raw = json.loads(Path(rank.source).read_bytes(), parse_float=str)
        for event in raw["traceEvents"]:
            args = event.get("args", {})
            if event.get("cat") != "kernel" or "Collective name" not in args:
                continue
            start = ns(event["ts"]) + raw["baseTimeNanoseconds"]
            inside = min(end, start + ns(event["dur"])) - max(begin, start)
            total = sums[args["Collective name"]]
            total[0] += begin <= start < end
            total[1] += max(inside, 0)
            if begin <= start < end:
                total[2] += 4 * max(args["In msg nelems"], args["Out msg nelems"])
    assert {row.collective: [row.count, row.time.busy_ns, row.bytes] for row in result.communication.rows} == sums


def ns(microseconds: str | int) -> int:
    whole, _, fraction = str(microseconds).partition(".")
    return 1000 * int(whole) + int(f"{fraction:0<3}"[:3])


def test_transfers_take_as_long_as_cuda_events_say(folder: Path) -> None:
    """Above 128 MiB the time between launches is negligible, and single calls are at most 5% off."""
    path = folder / "two-bandwidth"
    ranks = [reduce(load(str(path / f"rank{rank}.trace.json")))[0] for rank in range(2)]
    waits = compare(ranks).waits
    kernels, late = waits.meetings.kernels, waits.meetings.row[waits.latest.row]
    took: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for row in late.tolist():
        name, size = kernels.kinds[int(kernels.kind[row])].collective, int(kernels.bytes[row])
        took[name, size].append(int(kernels.end_ns[row] - kernels.start_ns[row]))
    compared = 0
    for timed in json.loads((path / "timed.json").read_bytes()):
        if timed["bytes"] > 128 << 20:
            each = took[RECORDED[timed["collective"]], int(timed["bytes"])]
            assert sum(each) / len(each) / 1000 == pytest.approx(timed["us"], rel=0.05)
            compared += 1
    assert compared == 8
