"""Tests of ranks joined into a report: real recordings of two ranks, with planted delays that must be detected."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope import load
from overlapscope.analysis.collectives import CommKind
from overlapscope.base.intervals import Intervals, union
from overlapscope.base.saved import encode
from overlapscope.commands.schema import schema_of
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.clocks import TIMESTAMP_ERROR_NS
from overlapscope.ranks.collectives import gather, match
from overlapscope.ranks.document import other_tables
from overlapscope.ranks.engine import reduce_each
from overlapscope.ranks.files import expand_urls
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.parts import from_json
from overlapscope.ranks.reduced import MAX_RANKS, ComparedRank, ReducedRank, collectives_only, reduce
from overlapscope.ranks.result import RanksReport, Unreadable
from overlapscope.ranks.verdict import judge
from tests.support.ranks_samples import counting_all_waits
from tests.support.ranks_schedules import CommKernel, as_by, made_rank
from tests.support.recordings import trace_of

TRACES = Path(__file__).parents[3] / "traces"
DDP = TRACES / "ddp"
US, MS = 1_000, 1_000_000
Events = list[dict[str, Any]]


def join(ranks: Iterable[ReducedRank | Unreadable], expected: int | None = None) -> RanksReport:
    return report_on(ranks, expected=expected)


@cache
def read(number: int) -> dict[str, Any]:
    """One rank's file. Not to be changed."""
    document: dict[str, Any] = json.loads(gzip.decompress((DDP / f"rank{number}.json.gz").read_bytes()))
    return document


@cache
def real(folder: str = "ddp") -> tuple[ReducedRank, ...]:
    return tuple(rank for path in sorted((TRACES / folder).glob("rank*.json.gz")) for rank in reduce(load(path)))


@pytest.mark.parametrize("recording", sorted(TRACES.glob("*/*.json.gz")), ids=lambda path: path.name)
def test_collectives_alone_are_those_of_the_whole_analysis(recording: Path) -> None:
    trace = trace_of(recording)
    if not trace.devices:
        return
    whole, alone = reduce(trace), collectives_only(trace)
    for rank, its in zip(whole, alone, strict=True):
        same = {name: getattr(rank, name) for name in ComparedRank.__struct_fields__}
        assert pickle.dumps(its) == pickle.dumps(ComparedRank(**same))
        assert its.step_ns == (rank.judged.span_ns if rank.judged is not None and rank.judged.steps else None)
        assert its.span_ns == sum(rank.window.buckets.named().values())


def planted(
    tmp_path: Path, number: int, *, name: str | None = None, change: Callable[[Events], object] = id, **top: Any
) -> ReducedRank:
    """Return a rank of the real job with something changed in its file."""
    document = read(number) | top
    events = [dict(event) for event in document["traceEvents"]]
    change([event for event in events if "nccl" in event.get("name", "").lower() and event.get("cat") == "kernel"])
    path = tmp_path / (name or f"planted{number}.json")
    path.write_bytes(msgspec.json.encode(document | {"traceEvents": events}))
    (rank,) = reduce(load(path))
    return rank


def on_one_clock(*ranks: ReducedRank) -> list[ReducedRank]:
    """Return ranks as if they were recorded into one file."""
    return [replace(rank, source=f"job.json@{rank.rank}") for rank in ranks]


def collectives(number: int) -> list[tuple[int, int, int]]:
    """Start, end and elements of the kernels that name their collective, from the file itself."""
    meetings = []
    for event in read(number)["traceEvents"]:
        if event.get("cat") == "kernel" and "Collective name" in event["args"]:
            start = round(event["ts"] * 1000)
            meetings.append((start, start + round(event["dur"] * 1000), event["args"]["In msg nelems"]))
    return sorted(meetings)


JUDGED = 18
"""Number of collectives in the two of three steps that both ranks judge, which are the first."""


def test_waits_of_two_real_ranks_are_those_that_their_files_say() -> None:
    waited, caused, last = [0, 0], [0, 0], [0, 0]
    pairs = list(zip(collectives(0), collectives(1), strict=True))
    for (start_a, end_a, size_a), (start_b, end_b, size_b) in pairs[:JUDGED]:
        assert size_a == size_b
        early = 0 if start_a < start_b else 1
        wait = min(abs(start_a - start_b), (end_a - start_a, end_b - start_b)[early])
        waited[early] += wait
        if abs(start_a - start_b) > TIMESTAMP_ERROR_NS:
            caused[1 - early] += wait
            last[1 - early] += 1
    report = join(on_one_clock(*real()))
    assert report.clocks.status == "shared"
    assert [row.waited_ns for row in report.ranks] == waited
    assert [row.made_wait_ns for row in report.ranks] == caused
    assert [row.last_in for row in report.ranks] == last
    # As files of two machines, whose clocks may differ, they are known less well.
    apart = join(real())
    error = apart.clocks.arrival_error_ns
    assert apart.clocks.status == "shared" and error is not None
    for row, true in zip(apart.ranks, waited, strict=True):
        assert abs((row.waited_ns or 0) - true) <= JUDGED * error
    assert report.matching.judged == report.matching.meetings == 27
    # Rank 1 recorded three kernels more, from before the first step.
    assert (report.matching.kernels, report.matching.matched, report.matching.unmatched) == (57, 54, 3)


@pytest.mark.parametrize(
    "folder",
    ["ddp", *(f"laboratory/fsdp_offload/{name}.traces" for name in ("offload", "offload_pageable", "resident"))],
)
def test_waits_are_as_long_as_the_time_that_stragglers_cause(folder: str) -> None:
    """Prefetched collectives are launched in another step than the one in which they make the rank wait."""
    report = join(real(folder))
    assert report.communication.steps
    waited_ns = sum(row.waited_exposed_ns or 0 for row in report.ranks)
    assert waited_ns == report.communication.exposed_by_cause["straggler"] > 0


def test_figures_of_each_rank_are_those_of_its_own_report() -> None:
    for reduced, row in zip(real(), join(real()).ranks, strict=True):
        assert (row.rank, row.source, row.device) == (reduced.rank, reduced.source, reduced.device)
        assert row.buckets == reduced.window.buckets
        assert row.span_ns == reduced.span_ns == sum(row.buckets.named().values())
        assert row.exposed_comm_ns == int((reduced.exposed_comm.ends - reduced.exposed_comm.starts).sum())
        assert row.waited_exposed_ns is not None and row.waited_ns is not None
        assert row.waited_exposed_ns <= min(row.waited_ns, row.exposed_comm_ns)


def test_the_one_who_makes_the_others_wait_is_named_with_where_and_whom() -> None:
    report = join(counting_all_waits())
    straggler = report.straggler
    assert straggler is not None
    assert (straggler.rank, [item.rank for item in straggler.waiting], straggler.others) == (0, [1], 1)
    assert straggler.lost_ns == straggler.made_wait_exposed_ns == report.ranks[1].waited_exposed_ns
    assert straggler.lost_per_step_ns == straggler.lost_ns // 2
    assert [collective.collective for collective in straggler.collectives] == ["allreduce"]
    assert straggler.collectives[0].group_ranks == "[0, 1]"
    worst = report.meetings[0]
    assert (worst.step, worst.index, worst.elements, worst.group_size) == ("ProfilerStep#3", 7, 7087872, 2)
    assert (worst.late_rank, worst.waiting[0].rank) == (0, 1)
    # Start of the late rank's kernel, in its own trace.
    start, end, _ = collectives(0)[7]
    base = read(0)["baseTimeNanoseconds"]
    assert (worst.window.start_ns, worst.window.end_ns) == (base + start, base + end)
    assert report.worst[0].rank == 0 and report.worst[0].why == ("makes-others-wait",)
    assert "idle" in [item.name for item in report.worst[0].excess]


def test_the_same_comes_of_any_order() -> None:
    unreadable = Unreadable(source="b/rank3.json", reason="It is cut.")
    ranks: list[ReducedRank | Unreadable] = [*real(), as_by(real()[0], source="another.json"), unreadable]
    reports = {encode(join(order)) for order in itertools.permutations(ranks)}
    assert len(reports) == 1


@pytest.mark.parametrize("ahead_ms", [-5000, -3, 2, 40])
def test_a_planted_offset_is_found_within_the_error(tmp_path: Path, ahead_ms: int) -> None:
    ahead = ahead_ms * MS
    shifted = planted(tmp_path, 1, baseTimeNanoseconds=read(1)["baseTimeNanoseconds"] + ahead)
    before, after = join(real()), join([real()[0], shifted])
    assert after.clocks.status == "estimated"
    row = after.ranks[1]
    assert row.clock_offset_ns is not None and row.clock_error_ns is not None
    assert row.clock_error_ns < 165 * US
    assert abs(row.clock_offset_ns - ahead) <= row.clock_error_ns
    # Waits are as exact as the clocks, in each of the meetings.
    for first, other in zip(before.ranks, after.ranks, strict=True):
        assert first.waited_ns is not None and other.waited_ns is not None
        assert abs(first.waited_ns - other.waited_ns) <= 27 * row.clock_error_ns
    assert all(row.made_wait_ns for row in after.ranks)


def test_a_planted_delay_is_charged_to_the_rank_that_has_it(tmp_path: Path) -> None:
    """Rank 0 reaches each collective 300 us earlier: it waits that much longer for rank 1, or rank 1 that much less."""

    def earlier(kernels: Events) -> None:
        for kernel in kernels:
            kernel["ts"] -= 300
            kernel["dur"] += 300

    before = join(on_one_clock(*real()))
    after = join(on_one_clock(planted(tmp_path, 0, change=earlier), real()[1]))
    waited = [0, 0]
    pairs = list(zip(collectives(0), collectives(1), strict=True))
    for (start_a, end_a, _), (start_b, _, _) in pairs[:JUDGED]:
        wait = start_b - (start_a - 300 * US)
        waited[0 if wait > 0 else 1] += min(abs(wait), end_a - start_a + 300 * US) if wait > 0 else -wait
    # Rank 0's kernels, lengthened to the left, now overlap: a wait in two of them counts once.
    assert after.ranks[0].waited_ns is not None and before.ranks[0].waited_ns is not None
    assert before.ranks[0].waited_ns + 7 * 300 * US < after.ranks[0].waited_ns <= waited[0]
    assert after.ranks[1].waited_ns == waited[1]
    assert waited[1] - JUDGED * TIMESTAMP_ERROR_NS <= (after.ranks[0].made_wait_ns or 0) <= waited[1]


def test_with_one_rank_missing_nothing_is_said_of_waiting() -> None:
    report = join([real()[1]])
    assert (report.world_size, report.expected, report.missing) == (2, 2, (0,))
    row = report.ranks[0]
    assert (row.waited_ns, row.made_wait_ns, row.last_in, row.meetings, row.clock_offset_ns) == (None,) * 3 + (0, None)
    assert report.clocks.status == "unknown"
    assert (report.straggler, report.stragglers, report.meetings, report.worst) == (None, (), (), ())
    assert join(real()).missing == ()
    assert join(real(), expected=4).missing == (2, 3)


def test_an_unreadable_rank_is_reported_and_not_called_missing() -> None:
    report = join([real()[0], Unreadable(source="logs/rank1.json", reason="It is no JSON.")])
    assert report.unreadable == (Unreadable(source="logs/rank1.json", reason="It is no JSON.", rank=1),)
    assert report.missing == ()


def test_two_traces_of_one_rank_keep_their_rows_and_one_is_compared(tmp_path: Path) -> None:
    again = planted(tmp_path, 1, name="a.json")
    assert again.rank == 1
    report = join([*real(), again])
    assert [(row.rank, row.joined) for row in report.ranks] == [(0, True), (1, True), (1, False)]
    (duplicate,) = report.duplicated
    assert duplicate.rank == 1
    assert duplicate.sources[0] == min(again.source, real()[1].source)
    assert [row.source for row in report.ranks if row.joined][1] == duplicate.sources[0]
    assert set(duplicate.sources) == {again.source, real()[1].source}
    assert report.stragglers[0].made_wait_ns == join(real()).stragglers[0].made_wait_ns
    twice = join([*real(), real()[1]])
    assert twice.duplicated[0].sources == (real()[1].source,) * 2
    assert [row.joined for row in twice.ranks] == [True, True, False]


def test_without_a_rank_inside_the_name_tells_it_and_without_either_it_is_shown_alone(tmp_path: Path) -> None:
    named = planted(tmp_path, 1, name="job_rank_1.json", distributedInfo={})
    nameless = planted(tmp_path, 1, name="worker.json", distributedInfo={})
    assert join([real()[0], named]).matching.judged == 27
    report = join([real()[0], nameless])
    assert [(row.rank, row.joined) for row in report.ranks] == [(0, True), (None, False)]
    assert any("without a rank" in note for note in report.notes)


def test_kernels_without_a_word_are_matched_by_name_and_it_is_reported(tmp_path: Path) -> None:
    def silent(kernels: Events) -> None:
        for kernel in kernels:
            kernel["args"] = {
                key: value for key, value in kernel["args"].items() if key in ("device", "stream", "correlation")
            }

    report = join([planted(tmp_path, number, change=silent) for number in (0, 1)])
    assert report.matching.by == "kernel-names"
    assert report.matching.judged == 27
    assert [row.made_wait_ns for row in report.ranks] == [row.made_wait_ns for row in join(real()).ranks]
    assert any("matched by name" in note for note in report.notes)


def test_kernels_of_the_lead_in_are_not_reported_as_unmatched() -> None:
    kind = CommKind("allreduce", "0", "[0, 1]", 2)
    bare = CommKind("ncclDevKernel_AllReduce_Sum_f32_RING_LL", recorded=False)

    def ranks(*more: CommKernel) -> list[ReducedRank]:
        early = [CommKernel(bare, 0, US), CommKernel(bare, 2 * US, 3 * US)]
        steps = [CommKernel(kind, at * MS, at * MS + 10 * US, step=at) for at in (1, 2, 3)]
        first, second = (made_rank(n, [*early[n:], *steps, *(() if n else more)], judged_from=5 * US) for n in range(2))
        return [first, second]

    report = join(ranks())
    assert report.matching.unmatched == 3
    assert not any("could not be matched" in note for note in report.notes)
    notes = join(ranks(CommKernel(bare, 4 * MS, 5 * MS))).notes
    assert any(note.startswith("1 of 7 communication kernels could not be matched between ranks") for note in notes)


def test_kernels_without_a_word_of_several_groups_are_not_taken_for_one() -> None:
    """Ranks 0 and 1 meet, and ranks 2 and 3, and the pairs drift apart and together again."""
    bare = CommKind("ncclDevKernel_AllReduce_Sum_f32_RING_LL", recorded=False)
    pairs = [[0, 40, 80, 120], [0, 43, 78, 120]]
    ranks = [
        made_rank(
            rank, [CommKernel(bare, at * MS, at * MS + 100 * US, step=step) for step, at in enumerate(pairs[rank // 2])]
        )
        for rank in range(4)
    ]
    report = join(ranks)
    assert (report.matching.judged, report.matching.by, report.clocks.status) == (0, "none", "unknown")
    assert any("do not end together" in note for note in report.notes)
    together = join(ranks[:2])
    assert (together.matching.judged, together.clocks.status) == (4, "shared")


def test_a_collective_whose_kernels_do_not_end_together_is_not_judged_and_it_is_reported(tmp_path: Path) -> None:
    def corrupt(kernels: Events) -> None:
        kernels[5]["dur"] += 4000

    report = join([planted(tmp_path, 0, change=corrupt), real()[1]])
    assert report.clocks.status == "shared"
    assert (report.matching.meetings, report.matching.judged) == (27, 26)
    assert any("do not end together" in note for note in report.notes)


@pytest.mark.parametrize(
    "folder", ["laboratory/ddp_training/no_overlap.traces", "laboratory/fsdp_offload/offload.traces"]
)
def test_other_real_jobs_have_one_clock_and_match_in_full(folder: str) -> None:
    report = join(real(folder))
    assert report.clocks.status == "shared"
    assert report.matching.unmatched == 0
    assert 0 < report.matching.judged < report.matching.meetings
    assert any("lead-in" in note for note in report.notes)


@pytest.mark.parametrize(
    "folder", ["ddp", "laboratory/ddp_training/ddp.traces", "laboratory/fsdp_offload/resident.traces"]
)
def test_real_kernels_of_one_collective_end_within_a_quarter_of_the_shortest(folder: str) -> None:
    """The bounds of clocks assume that they end within its whole length."""
    ranks = real(folder)
    met = match(gather(ranks), len(ranks)).symmetric()
    end, start = met.kernels.end_ns[met.row], met.kernels.start_ns[met.row]
    first = met.first[:-1]
    apart = np.maximum.reduceat(end, first) - np.minimum.reduceat(end, first)
    assert len(first) >= 27
    assert (4 * apart <= np.minimum.reduceat(end - start, first)).all()


def test_steps_are_compared_over_the_ranks_that_have_them_whole() -> None:
    report = join(real())
    assert report.step_names == ("ProfilerStep#3", "ProfilerStep#4")
    for number, skew in enumerate(report.steps):
        spans = [row.step_spans_ns[number] for row in report.ranks]
        assert (skew.min_ns, skew.max_ns) == (min(map(int, filter(None, spans))), max(map(int, filter(None, spans))))
        assert spans[skew.slowest_rank] == skew.max_ns
    short = made_rank(2, steps=[("ProfilerStep#4", 7), ("ProfilerStep#10", 9)])
    report = join([*real(), short])
    assert report.step_names == ("ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#10")
    assert report.ranks[2].step_spans_ns == (None, 7, 9)
    assert [step.ranks for step in report.steps] == [2, 3, 1]


@pytest.mark.parametrize(
    "folder", ["ddp", "laboratory/ddp_training/no_overlap.traces", "laboratory/fsdp_offload/offload.traces"]
)
def test_process_groups_are_measured_over_the_judged_steps(folder: str) -> None:
    report = join(real(folder))
    steps = [row.judged for row in report.ranks if row.judged is not None]
    assert [step.steps for step in steps] == [report.communication.steps] * len(report.ranks)
    # A mean is off by up to half a nanosecond for each of its steps.
    for total, means in (
        (report.communication.time.busy_ns, [step.engines.comm_ns for step in steps]),
        (report.communication.time.exposed_ns, [step.buckets.exposed_comm_ns for step in steps]),
    ):
        count = report.communication.steps
        assert abs(total - count * sum(means)) <= count * len(steps)


def many(ranks: int, late: int, *, by: int = MS) -> list[ReducedRank]:
    """Return a job in which one rank comes late to every collective."""
    kind = CommKind("allreduce", "0", "[0, 1, ...]", ranks)
    return [
        made_rank(
            rank,
            [
                CommKernel(
                    kind, step * 10 * MS + (by if rank == late else 0), step * 10 * MS + by + 100 * US, step=step
                )
                for step in range(4)
            ],
            window=(-5 * MS, 45 * MS),
            steps=[(f"ProfilerStep#{step}", 10 * MS + (rank == 3)) for step in range(4)],
            world_size=ranks,
        )
        for rank in range(ranks)
    ]


def test_among_many_the_late_one_is_found_and_lists_stay_short() -> None:
    report = join(many(200, late=77))
    assert report.straggler is not None
    straggler = report.straggler
    assert (straggler.rank, straggler.last_in, straggler.others, straggler.waiting_ranks) == (77, 4, 199, 199)
    assert straggler.made_wait_ns == 4 * 199 * MS
    assert (straggler.lost_ns, straggler.lost_per_step_ns, straggler.lost_pct) == (4 * MS, MS, 10.0)
    assert len(straggler.waiting) == 8 and len(report.stragglers) == 1
    assert len(report.ranks) == 200
    (late_in,) = straggler.collectives
    assert (late_in.count, late_in.made_wait_ns) == (4, 4 * 199 * MS)
    waited = {spread.name: spread for spread in report.spreads}["waited"]
    assert (waited.min, waited.median, waited.max, waited.min_rank) == (0, 4 * MS, 4 * MS, 77)
    assert [(step.slowest_rank, step.max_ns - step.min_ns) for step in report.steps] == [(3, 1)] * 4


def of_several_machines(ahead_ns: Sequence[int], *, late: int, by_ns: int) -> list[ReducedRank]:
    """Return the two real ranks on each of several machines with separate clocks, and a rank that comes late.

    In step 4 all others come that much earlier to the first collective, and wait.
    """
    size = 2 * len(ahead_ns)
    ranks = []
    for number in range(size):
        rank, ahead = real()[number % 2], ahead_ns[number // 2]
        comm, steps = rank.comm, rank.steps
        start = comm.start_ns.copy()
        first = int(np.flatnonzero(comm.step == 4)[0])
        if number != late:
            start[first] -= by_ns
        begin, end = rank.exposed_comm
        waiting = union(np.append(begin, start[first]), np.append(end, comm.end_ns[first]))
        kinds = tuple(
            replace(kind, ranks="[0, 1, ...]", group_size=size) if kind.recorded else kind for kind in comm.kinds
        )
        ranks.append(
            replace(
                rank,
                rank=number,
                world_size=size,
                source=f"host{number // 2}/rank{number}.json",
                judged_from_ns=rank.judged_from_ns + ahead,
                end_ns=rank.end_ns + ahead,
                steps=replace(steps, start_ns=steps.start_ns + ahead),
                comm=replace(comm, kinds=kinds, start_ns=start + ahead, end_ns=comm.end_ns + ahead),
                exposed_comm=Intervals(waiting.starts + ahead, waiting.ends + ahead),
            )
        )
    return ranks


def test_on_several_machines_the_late_one_is_found_by_clocks_that_are_milliseconds_apart() -> None:
    ahead = [0, 7 * MS, -3 * MS, 40 * MS, -900 * MS, 2 * MS, MS // 2, -MS // 2]
    ranks = of_several_machines(ahead, late=9, by_ns=20 * MS)
    report = join(ranks)
    assert report.clocks.status == "estimated"
    assert report.matching.judged == 27
    for row in report.ranks:
        assert row.rank is not None and row.clock_offset_ns is not None and row.clock_error_ns is not None
        assert abs(row.clock_offset_ns - ahead[row.rank // 2]) <= row.clock_error_ns < 300 * US
    straggler = report.straggler
    assert straggler is not None
    assert (straggler.rank, straggler.waiting_ranks, straggler.others) == (9, 15, 15)
    worst = report.meetings[0]
    assert (worst.late_rank, worst.step, worst.index) == (9, "ProfilerStep#4", 9)
    assert worst.waiting[-1].exposed_ns > 20 * MS - 300 * US
    assert straggler.made_wait_ns > 15 * (20 * MS - 300 * US)


def test_a_lateness_that_costs_nothing_makes_no_straggler() -> None:
    report = join(many(4, late=1, by=20 * US))
    assert report.stragglers[0].rank == 1
    assert report.straggler is None
    # This is within the error of arrivals.
    assert join(many(4, late=1, by=10 * US)).stragglers == ()


def test_what_is_stated_is_not_trusted() -> None:
    absurd = [made_rank(0, world_size=MAX_RANKS + 1), made_rank(1, world_size=-5)]
    assert (join(absurd).world_size, join(absurd).missing) == (None, ())
    differing = join([made_rank(0, world_size=4), made_rank(1, world_size=4), made_rank(2, world_size=8)])
    assert (differing.world_size, differing.missing) == (4, (3,))
    assert any("different world sizes (4, 8)" in note for note in differing.notes)


@pytest.mark.parametrize("rank", [-1, 2**31, 10**30])
def test_a_number_that_can_be_no_rank_is_none(tmp_path: Path, rank: int) -> None:
    odd = planted(tmp_path, 1, distributedInfo={"rank": rank, "world_size": 2})
    report = join([real()[0], odd])
    assert [row.rank for row in report.ranks] == [0, None]
    assert from_json(encode(report)) == report


def test_steps_with_absurd_numbers_are_no_steps(tmp_path: Path) -> None:
    document = json.dumps(read(1)).replace("ProfilerStep#4", "ProfilerStep#" + "4" * 30)
    path = tmp_path / "rank1.json"
    path.write_text(document)
    report = join([real()[0], *reduce(load(path))])
    assert [len(name) for name in report.step_names] == [14, 14]
    assert (report.matching.meetings, report.matching.unmatched) == (18, 3 + 2 * 9)


def test_a_trace_without_gpu_work_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(UnreadableTrace, match="no GPU activity"):
        reduce(load(path))


def test_a_reduced_rank_travels_and_is_small() -> None:
    for rank in real():
        packed = pickle.dumps(rank)
        assert len(packed) < Path(rank.source).stat().st_size / 4
        assert encode(join([pickle.loads(packed)])) == encode(join([rank]))


def test_the_report_is_read_back_as_it_was() -> None:
    report = join([*real(), Unreadable(source="x", reason="y")])
    assert from_json(encode(report)) == report
    assert set(schema_of("ranks")["$defs"]["RanksReport"]["properties"]) == set(msgspec.to_builtins(report))


def test_a_part_of_a_plugin_that_is_not_here_is_kept_and_not_shown() -> None:
    report = join(real())
    other = from_json(encode(replace(report, parts=report.parts | {"other": {"seen": [1, 2]}})))
    assert other.parts["other"] == {"seen": [1, 2]}
    assert judge(other) == judge(report) and other_tables(other) == other_tables(report)


def test_no_ranks_are_a_report_too() -> None:
    report = join([], expected=2)
    assert (report.ranks, report.missing, report.clocks.status) == ((), (0, 1), "unknown")


def test_sentences_are_whole(tmp_path: Path) -> None:
    shifted = planted(tmp_path, 1, baseTimeNanoseconds=read(1)["baseTimeNanoseconds"] + 3 * MS)
    reports: Sequence[RanksReport] = [join(real()), join([real()[0], shifted]), join([]), join([made_rank(0)])]
    for report in reports:
        for sentence in (report.clocks.reason, *report.notes):
            assert sentence[0].isupper() or sentence[0].isdigit()
            assert sentence.endswith(".")


def test_exposed_communication_is_searched_for_waiting_once_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ReducedRank.blocking_comm.fget  # type: ignore[attr-defined]
    searched: list[str] = []

    def counted(rank: ReducedRank) -> Intervals:
        searched.append(rank.source)
        blocking: Intervals = found(rank)
        return blocking

    monkeypatch.setattr(ReducedRank, "blocking_comm", property(counted))
    report_on(real())
    assert sorted(searched) == [rank.source for rank in real()]


def test_files_too_small_for_a_trace_start_no_processes(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"rank{number}.json").write_bytes(b"[{}]nope")
    outcomes = list(reduce_each(reduce_any, expand_urls(tmp_path), workers=2))
    assert len(outcomes) == 20 and all(isinstance(outcome, Unreadable) for outcome in outcomes)
