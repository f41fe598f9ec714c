"""Recordings of four ranks on four H200s, in which it is known who makes whom wait (`tests/programs/ranks.py`)."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from overlapscope import load
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import judge

ARCHIVE = Path(__file__).parents[1] / "ranks.tar.xz"
MS = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def joined(paths: list[Path]) -> RanksReport:
    return report_on(rank for path in paths for rank in reduce(load(path)))


def of(folder: Path, variant: str) -> RanksReport:
    return joined(sorted((folder / variant).glob("*.json.gz")))


@pytest.mark.parametrize(("variant", "rank"), [("slow_gpu", 2), ("slow_host", 1), ("one_step", 3), ("groups", 3)])
def test_the_slow_rank_is_named(folder: Path, variant: str, rank: int) -> None:
    report = of(folder, variant)
    assert report.straggler is not None
    assert report.straggler.rank == rank
    assert report.clocks.status == "shared"
    assert not (report.missing or report.unreadable or report.duplicated)
    assert report.matching.unmatched == 0
    # All that the others waited was waited for some rank, except where that is within the error of arrivals.
    waited = sum(row.waited_ns or 0 for row in report.ranks)
    assert 0.99 * waited < sum(row.made_wait_ns or 0 for row in report.ranks) <= waited


def test_slowness_of_the_gpu_is_distinguished_from_slowness_of_the_host(folder: Path) -> None:
    """A rank that computes more has more compute than the others, and a rank that sleeps has more idle time."""
    more = {
        variant: next(item for item in of(folder, variant).worst if item.rank == rank).excess[0].name
        for variant, rank in (("slow_gpu", 2), ("slow_host", 1))
    }
    assert more == {"slow_gpu": "compute", "slow_host": "idle"}


def test_a_single_late_step_is_found(folder: Path) -> None:
    report = of(folder, "one_step")
    worst = report.meetings[0]
    assert worst.late_rank == 3
    assert worst.late_ns > 15 * MS
    assert worst.step in ("ProfilerStep#8", "ProfilerStep#9")
    assert worst.waiting_ranks == 3
    assert report.meetings[1].late_ns < 5 * MS


def test_in_a_pair_only_its_partner_waits(folder: Path) -> None:
    pair = [meeting for meeting in of(folder, "groups").meetings if meeting.group_ranks == "[2, 3]"]
    assert pair
    assert {meeting.late_rank for meeting in pair} == {3}
    assert {waiting.rank for meeting in pair for waiting in meeting.waiting} == {2}


def test_pairs_are_a_dimension_of_the_mesh_and_none_of_them_is_slow(folder: Path) -> None:
    report = of(folder, "groups")
    comm = report.communication
    assert comm.mesh is not None
    assert (comm.mesh.shape, comm.slow_groups) == ((2, 2), ())
    assert [(each.name, each.spans, each.groups) for each in comm.dimensions] == [
        ("default_pg", (0, 1), 1),
        ("allreduce groups of 2", (1,), 2),
    ]
    for place, dimension in enumerate(comm.dimensions):
        # Collectives of one kind run one after another.
        own = [row.time for row in comm.rows if row.dimension == place]
        assert dimension.time.busy_ns == sum(time.busy_ns for time in own)
        assert dimension.time.exposed_ns == sum(time.exposed_ns for time in own)
        assert dimension.time.waiting_ns == sum(time.waiting_ns for time in own)
    text = judge(report).text
    assert "Mesh: 2 x 2: 2 without groups of its own; allreduce groups of 2 across {0, 1}, {2, 3}." in text


@pytest.mark.parametrize("offset_ms", [-40, 7])
def test_a_clock_that_is_off_is_found_and_changes_no_other_rank(folder: Path, tmp_path: Path, offset_ms: int) -> None:
    true = of(folder, "slow_gpu")
    paths = []
    for path in sorted((folder / "slow_gpu").glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if path.name.startswith("rank3"):
            trace["baseTimeNanoseconds"] += offset_ms * MS
        paths.append(tmp_path / path.name.removesuffix(".gz"))
        paths[-1].write_text(json.dumps(trace))
    report = joined(paths)
    assert report.clocks.status == "estimated"
    offset, error = report.ranks[3].clock_offset_ns, report.ranks[3].clock_error_ns
    assert offset is not None and error is not None
    assert abs(offset - offset_ms * MS) <= error < 0.5 * MS
    assert report.straggler is not None
    assert report.straggler.rank == 2
    for row, true_row in zip(report.ranks, true.ranks, strict=True):
        assert row.waited_ns is not None and true_row.waited_ns is not None
        assert abs(row.waited_ns - true_row.waited_ns) <= row.meetings * 2 * error
