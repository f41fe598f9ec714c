"""No rank is named for an error of measurement: random jobs whose clocks are wrong, and two that are alike."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope import load
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import judge
from tests.fuzz.ranks import US, ClockedJob, InjectedDelay, JobAct, TrueTimes, WrongClock, write
from tests.fuzz.ranks import judge as judge_seed

STEADY = WrongClock(0, 0.0, 0, 0)
FAST = 823, 6723, 3237, 4248, 5762, 101343
"""Seeds of jobs in which clocks jump, messages wait, and delays are passed on. Each was once judged wrongly."""


@pytest.mark.parametrize("seed", [*range(6), *FAST])
def test_random_ranks_are_named_if_they_delay_the_others_by_more_than_the_error(seed: int, tmp_path: Path) -> None:
    outcome = judge_seed(seed, tmp_path)
    assert not (outcome.wrong or outcome.missed or outcome.hidden)
    assert outcome.judged


def test_nothing_is_compared_if_a_clock_jumped_back_over_the_steps_that_would_be(tmp_path: Path) -> None:
    outcome = judge_seed(300026, tmp_path)
    assert (outcome.met, outcome.judged, outcome.missed) == (25, 0, ())


def report(folder: Path, *clocks: WrongClock, late_ns: int = 0, ranks: int = 2) -> RanksReport:
    """Return the report of ranks that are alike, except that the last one may be late before each collective."""
    everyone = tuple(range(ranks))
    acts = (JobAct("compute", everyone, 800 * US), JobAct("allreduce", everyone, 250 * US)) * 4
    delays = tuple(InjectedDelay(ranks - 1, place, frozenset(range(8)), late_ns) for place in range(0, 8, 2))
    job = ClockedJob(ranks, 8, acts, delays, clocks, jitter=0.0, skew=0.01, noise=0.01, counted=False)
    paths = write(TrueTimes(job, random.Random(1)), folder)
    return report_on(rank for path in paths for rank in reduce(load(path, progress=False)))


@pytest.mark.parametrize("ahead_us", [-3_600_000_000, -130, -60, 0, 5, 60, 95, 130, 1_000])
def test_two_ranks_alike_are_not_told_apart_by_their_clocks(ahead_us: int, tmp_path: Path) -> None:
    found = report(tmp_path, STEADY, WrongClock(ahead_us * US, 0.0, 0, 0))
    assert found.stragglers == () and found.worst == ()
    assert all(row.made_wait_ns == row.last_in == 0 for row in found.ranks)
    assert judge(found).lead.startswith("No rank is seen to delay the others.")
    assert found.clocks.status == ("shared" if abs(ahead_us) < 20 else "estimated")


@pytest.mark.parametrize("ahead_us", [-60, 60, 3_600_000_000])
@pytest.mark.parametrize(("late_us", "named"), [(10, False), (60, True)])
def test_a_late_rank_is_named_from_where_the_error_ends(
    late_us: int, named: bool, ahead_us: int, tmp_path: Path
) -> None:
    """Collectives of 250 us relate the clocks to 16 us and 5 us, and their ends differ by some us."""
    found = report(tmp_path, STEADY, WrongClock(ahead_us * US, 0.0, 0, 0), late_ns=late_us * US)
    error = found.clocks.arrival_error_ns
    assert error is not None and 20 * US < error < 35 * US
    assert (found.straggler is not None) == named
    if found.straggler is not None:
        assert found.straggler.rank == 1
        sure, lost = found.straggler.sure_pct, found.straggler.lost_pct
        assert sure is not None and lost is not None and 1 <= sure < lost


def test_what_may_be_hidden_is_stated(tmp_path: Path) -> None:
    found = report(tmp_path, STEADY, STEADY)
    assert found.unseen_pct is not None and 1 < found.unseen_pct < 5
    assert judge(found).lead.startswith("No rank is seen to delay the others. Arrivals at collectives are known to ")


def test_a_jump_of_a_clock_leaves_out_its_step_and_the_report_says_so(tmp_path: Path) -> None:
    """The late rank is named by the other steps."""
    found = report(tmp_path, STEADY, WrongClock(0, 0.0, 3_000 * US, 20_000 * US), late_ns=100 * US)
    assert found.straggler is not None and found.straggler.rank == 1
    assert found.straggler.lost_per_step_ns == pytest.approx(4 * 100 * US, rel=0.1)
    assert found.met_steps < 7
    assert any(note.startswith("A clock jumped during the recording: ProfilerStep#") for note in found.notes)
    assert [rank.why for rank in found.worst] == [("makes-others-wait",)]


@pytest.mark.parametrize("jumps", [(0, 2_000), (2_000, 0), (0, -249)])
def test_nobody_is_named_for_a_jump_within_the_first_collective(jumps: tuple[int, int], tmp_path: Path) -> None:
    """Its ends don't show the jump, which makes one rank seem to come up to 2 ms later than the other."""
    found = report(tmp_path, *(WrongClock(0, 0.0, jump * US, 1_300 * US) for jump in jumps))
    assert found.straggler is None and [late.sure_pct for late in found.stragglers] == [0]
    most_us = max(row.made_wait_ns or 0 for row in found.ranks) / US
    assert most_us == pytest.approx(max(map(abs, jumps)), abs=10)


@pytest.mark.parametrize("first_ms", [-50, -700])
def test_a_step_that_an_earlier_one_follows_has_no_known_end(first_ms: int, tmp_path: Path) -> None:
    """All clocks jump back, even alike, so that the last step seems to end where the first one begins, 0.7 s later."""
    clocks = [WrongClock(0, 0.0, jump_ms * 1000 * US, 10_000 * US) for jump_ms in (first_ms, -700, -700)]
    found = report(tmp_path, *clocks, late_ns=100 * US, ranks=3)
    assert found.straggler is not None and found.straggler.rank == 2
    assert found.straggler.lost_pct == pytest.approx(100 * 4 * 100 / (4 * 1_150), rel=0.1)
    assert any(note.startswith("A clock jumped during the recording: ProfilerStep#") for note in found.notes)


def test_ranks_of_one_file_share_its_clock(tmp_path: Path) -> None:
    """Ends that always differ say nothing of a clock that is known to be one."""
    everyone = (0, 1)
    acts = (JobAct("compute", everyone, 800 * US), JobAct("allreduce", everyone, 250 * US)) * 4
    job = ClockedJob(2, 8, acts, (), (STEADY, STEADY), jitter=0.0, skew=0.02, noise=0.0, counted=False)
    paths = write(TrueTimes(job, random.Random(3)), tmp_path)
    ranks = [rank for path in paths for rank in reduce(load(path, progress=False))]
    one = report_on(replace(rank, source=f"job.nsys-rep@{rank.rank}") for rank in ranks)
    assert [row.clock_offset_ns for row in one.ranks] == [0, 0]
    assert one.clocks.arrival_error_ns == 5 * US
    assert one.stragglers == ()
