"""Tests of joint replays: what a change brings a whole job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope import load
from overlapscope.analysis.net_overlap import speed_lost
from overlapscope.analysis.timeline import build
from overlapscope.base.intervals import I64
from overlapscope.plugins.jobs.joint.buckets import Bucketed, rebucketed
from overlapscope.plugins.jobs.joint.changes import contended_replay, faster_transfers, issued_earlier, like_others
from overlapscope.plugins.jobs.joint.condense import condense
from overlapscope.plugins.jobs.joint.join import (
    JobReplay,
    JoinedJob,
    RankNetwork,
    RankSummary,
    Unpredictable,
    gather,
    replay_job,
    ties,
)
from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
from overlapscope.plugins.jobs.joint.summary import summarize
from overlapscope.prediction.base import prepare
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.predict import predict
from overlapscope.prediction.replay import Deadlock, replay
from overlapscope.ranks.result import Unreadable
from tests.plugins.jobs.joint_jobs import RanksProgram, Times, Turn, programs, simulated, summaries
from tests.support.helpers import TRACES, various
from tests.support.recordings import trace_of


def steps(program: RanksProgram, its: list[Times]) -> list[list[int]]:
    return [np.diff(rank.kernel_start).tolist() for rank in its]


def waited(program: RanksProgram, its: list[Times]) -> list[int]:
    """Time per step that each rank waits, in the turns that begin within its steps."""
    last = [
        max(
            its[member].arrived[[turn.collective for turn in program.turns[member]].index(number)] for member in members
        )
        for number, members in enumerate(program.members)
    ]
    result = []
    for rank, turns in enumerate(program.turns):
        begin, end = its[rank].kernel_start[0], its[rank].kernel_start[-1]
        waits = [
            last[turn.collective] - its[rank].arrived[number]
            for number, turn in enumerate(turns)
            if begin <= its[rank].arrived[number] < end
        ]
        result.append(sum(waits) // (len(turns) - 1))
    return result


def times_of(job: JoinedJob, parts: Sequence[RankNetwork], transfer_ns: I64) -> JobReplay:
    return replay_job(job, parts, ties(job, parts, transfer_ns))


def lengths(result: JobReplay) -> list[list[int]]:
    return [length.tolist() for length in result.lengths_ns]


def joined(program: RanksProgram) -> tuple[JoinedJob, list[Times]]:
    recorded = simulated(program)
    return gather(summaries(program, recorded)), recorded


@given(programs())
def test_without_a_change_the_joint_replay_is_the_recording(program: RanksProgram) -> None:
    job, recorded = joined(program)
    assert len(job.met) == len(program.members)
    result = times_of(job, [rank.recorded for rank in job.ranks], job.transfer_ns)
    assert lengths(result) == steps(program, recorded)
    assert list(result.waited_ns) == waited(program, recorded)


@given(programs(broadcasts=True))
def test_a_broadcast_is_waited_for_only_where_the_recording_allows_it(program: RanksProgram) -> None:
    job, recorded = joined(program)
    assert len(job.met) == len(program.members)
    result = times_of(job, [rank.recorded for rank in job.ranks], job.transfer_ns)
    assert lengths(result) == steps(program, recorded)
    kinds = job.met.kernels.kinds
    for meeting in range(len(job.met)):
        entries = slice(job.met.first[meeting], job.met.first[meeting + 1])
        needed, ends, starts = (column[entries] for column in (job.needed, job.met.end_ns, job.met.start_ns))
        if kinds[job.met.kind[meeting]].collective == "broadcast":
            assert needed.tolist() == [start <= min(ends) for start in starts.tolist()]
        else:
            assert needed.all()


def with_a_late_rank(late: int, *, alike: bool = False) -> RanksProgram:
    """Return a program of three ranks with broadcasts of rank 0, in which one rank computes longer or all alike."""
    collectives = range(6)
    turns = tuple(
        tuple(Turn(number, 10, 900 if rank == late and not alike else 50, 10, "kernel") for number in collectives)
        for rank in range(3)
    )
    everyone = ((0, 1, 2),) * len(collectives)
    return RanksProgram(everyone, (20,) * len(collectives), turns, roots=(None, 0, 0, 0, 0, None))


@pytest.mark.parametrize("late", [0, 2])
def test_only_the_root_of_a_broadcast_delays_the_others(late: int) -> None:
    program = with_a_late_rank(late)
    job, recorded = joined(program)
    parts = [rank.recorded for rank in job.ranks]
    before = times_of(job, parts, job.transfer_ns)
    assert lengths(before) == steps(program, recorded)
    parts[late] = like_others(job, parts, late, Stance.EXPECTED)
    after = times_of(job, parts, job.transfer_ns)
    alike = with_a_late_rank(late, alike=True)
    assert lengths(after) == steps(alike, simulated(alike))
    # A late root holds up the others in each turn, a late receiver only in the last one, an all-reduce.
    assert list(before.waited_ns) == {0: [0, 850, 850], 2: [170, 170, 0]}[late]


@given(programs(), st.sampled_from((2.0, 5.0, 0.5)))
def test_a_faster_network_is_what_a_simulation_of_it_gives(program: RanksProgram, factor: float) -> None:
    program = replace(program, transfer_ns=tuple(int(ns * 10 * factor) for ns in program.transfer_ns))
    job, _ = joined(program)
    faster = faster_transfers(job, job.transfer_ns, factor, Stance.BEST)
    changed = replace(program, transfer_ns=tuple(round(ns / factor) for ns in program.transfer_ns))
    truth = simulated(changed)
    result = times_of(job, [rank.recorded for rank in job.ranks], faster)
    assert lengths(result) == steps(changed, truth)
    assert list(result.waited_ns) == waited(changed, truth)


@given(programs())
def test_collectives_that_start_when_their_input_is_ready_are_what_a_simulation_gives(program: RanksProgram) -> None:
    job, _ = joined(program)
    earlier = [issued_earlier(rank.recorded, Stance.EXPECTED)[0] for rank in job.ranks]
    truth = simulated(program, prompt=True)
    result = times_of(job, earlier, job.transfer_ns)
    assert lengths(result) == steps(program, truth)
    assert list(result.waited_ns) == waited(program, truth)


@given(programs(alike=True), st.integers(0, 3))
def test_a_late_rank_that_works_like_the_others_is_what_a_simulation_gives(program: RanksProgram, late: int) -> None:
    late %= len(program.turns)
    job, _ = joined(program)
    parts = [rank.recorded for rank in job.ranks]
    parts[late] = like_others(job, parts, late, Stance.EXPECTED)
    others = [turns for rank, turns in enumerate(program.turns) if rank != late]

    turns = []
    for number, turn in enumerate(program.turns[late]):
        host, device = (
            min(1.0, median(work(its[number], number) for its in others) / max(1, work(turn, number)))
            for work in (_host_work, lambda turn, number: turn.kernel_ns)
        )
        first, second = turn.host_ns if number else 0, turn.before_launch_ns
        waits = [bool(number) and its[number - 1].then == "thread" for its in (program.turns[late], *others)]
        if host < 1 and len({*waits}) == 1:
            # Each piece takes the time of the others'.
            less = first - round(median(its[number].host_ns for its in others)) if number else 0
            later = second - round(median(its[number].before_launch_ns for its in others))
        else:
            # They have other pieces. The longer one is shortened first.
            excess = round((first + second) * (1 - host))
            less = min(first, excess) if first >= second else excess - min(second, excess)
            later = excess - less
        turns.append(
            replace(
                turn,
                host_ns=turn.host_ns - less,
                before_launch_ns=second - later,
                kernel_ns=round(turn.kernel_ns * device),
            )
        )
    changed = replace(
        program, turns=tuple(tuple(turns) if rank == late else its for rank, its in enumerate(program.turns))
    )
    result = times_of(job, parts, job.transfer_ns)
    for length, expected in zip(lengths(result), steps(changed, simulated(changed)), strict=True):
        assert length == pytest.approx(expected, abs=2 * len(turns))


def _host_work(turn: Turn, number: int) -> int:
    """Work of the host that the recording shows: the first call has none before it."""
    return turn.before_launch_ns + (turn.host_ns if number else 0)


LATENCY, SLOPE = 100, 30


@given(programs(alike=True), st.data())
def test_merged_buckets_are_what_a_simulation_of_them_gives(program: RanksProgram, data: st.DataObject) -> None:
    program = _in_buckets(program, data)
    job, _ = joined(program)
    made = rebucketed(job, [rank.recorded for rank in job.ranks], job.transfer_ns, 5, Stance.EXPECTED)
    # A bucket is added if the sum is then nearer to 5 bytes.
    size_of, size = dict[int, int](), 0
    for number, each in enumerate(program.bytes):
        size += each
        following = program.bytes[number + 1] if number + 1 < len(program.bytes) else 10
        if abs(size + following - 5) > abs(size - 5):
            size_of[number], size = size, 0
    assert (made.before, made.after) == (len(program.bytes), len(size_of))
    transfers = tuple(LATENCY + SLOPE * size_of.get(number, 0) for number in range(len(program.bytes)))
    turns = tuple(
        tuple(turn if turn.collective in size_of else replace(turn, collective=-1) for turn in its)
        for its in program.turns
    )
    truth = simulated(replace(program, turns=turns, transfer_ns=transfers))
    for length, expected in zip(lengths(replay_job(job, made.parts, made.tied)), steps(program, truth), strict=True):
        assert length == pytest.approx(expected, abs=2 * len(size_of))


def _in_buckets(program: RanksProgram, data: st.DataObject) -> RanksProgram:
    """Return the program with collectives of several sizes, which nothing needs before the last has been launched."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(program.members), max_size=len(program.members)))
    sizes[:2] = [1, 2]
    turns = tuple(
        (*(replace(turn, then="nothing") for turn in its[:-1]), replace(its[-1], then="thread"))
        for its in program.turns
    )
    transfers = tuple(LATENCY + SLOPE * size for size in sizes)
    return replace(program, turns=turns, bytes=tuple(sizes), transfer_ns=transfers)


@given(programs(alike=True), st.data())
def test_divided_buckets_without_latency_take_as_long_if_their_parts_are_not_ready_earlier(
    program: RanksProgram, data: st.DataObject
) -> None:
    program = _in_buckets(program, data)
    program = replace(program, transfer_ns=tuple(size * 60 for size in program.bytes))
    job, recorded = joined(program)
    made = rebucketed(job, [rank.recorded for rank in job.ranks], job.transfer_ns, 1, Stance.WORST)
    assert made.after == sum(program.bytes)
    assert lengths(replay_job(job, made.parts, made.tied)) == steps(program, recorded)
    earlier = rebucketed(job, [rank.recorded for rank in job.ranks], job.transfer_ns, 1, Stance.EXPECTED)
    assert replay_job(job, earlier.parts, earlier.tied).step_ns <= replay_job(job, made.parts, made.tied).step_ns


def _all_reduces(sizes: tuple[int, ...], awaited: tuple[int, ...], ready_ns: int = 10) -> RanksProgram:
    """Return a program of two ranks with an all-reduce of each size; the awaited ones are waited for at once."""
    turns = tuple(
        Turn(number, 10, ready_ns, 10, "thread" if number in awaited else "nothing") for number in range(len(sizes))
    )
    return RanksProgram(((0, 1),) * len(sizes), tuple(50 + 10 * size for size in sizes), (turns, turns), sizes)


def _rebucketed(program: RanksProgram, bucket_bytes: float) -> tuple[Bucketed, JoinedJob]:
    job, _ = joined(program)
    parts = [rank.recorded for rank in job.ranks]
    return rebucketed(job, parts, job.transfer_ns, bucket_bytes, Stance.EXPECTED), job


@pytest.mark.parametrize("bucket_bytes", [100, 1])
def test_all_reduces_that_are_waited_for_at_once_are_not_buckets(bucket_bytes: int) -> None:
    made, _ = _rebucketed(_all_reduces((3, 3, 3, 3), (1, 2, 3)), bucket_bytes)
    assert (made.before, made.after) == (2, 1 if bucket_bytes == 100 else 6)
    with pytest.raises(Unpredictable, match="unknown how buckets are filled"):
        _rebucketed(_all_reduces((3, 3, 3), (0, 1, 2)), bucket_bytes)


@pytest.mark.parametrize(
    ("sizes", "after"),
    [((249,) * 4, 4), ((200, 240, 200, 240), 4), ((120,) * 5, 3), ((124, 250), 1), ((126, 250), 2), ((370,) * 2, 2)],
)
def test_buckets_are_as_near_to_the_requested_size_as_they_can_be(sizes: tuple[int, ...], after: int) -> None:
    made, _ = _rebucketed(_all_reduces(sizes, (len(sizes) - 1,)), 250)
    assert (made.before, made.after) == (len(sizes), after)


def test_a_bucket_that_is_merged_and_divided_has_even_pieces() -> None:
    """100 and 420 bytes make two pieces of 260. The first is ready with 160 of the 420, after 320 of 840 ns."""
    made, job = _rebucketed(_all_reduces((100, 420, 5), (1, 2), ready_ns=840), 320)
    assert (made.before, made.after) == (2, 2)
    first_ready, transfer = 10 + 840 + 320, 50 + 10 * 260
    last_kernel = first_ready + 2 * transfer + 10
    assert lengths(replay_job(job, made.parts, made.tied)) == [[840, last_kernel - 850]] * 2


@pytest.mark.parametrize(
    ("bucket_bytes", "work"), [(200, [0, 10 - 4, 10 - 3, 10, 10, 10]), (50, [0, 10, 10 + 7, 10, 10 + 7, 10])]
)
def test_the_host_launches_as_many_collectives_as_there_are_buckets(bucket_bytes: int, work: list[int]) -> None:
    """A launch takes 4 ns before and 3 ns after the call. Each collective has a kernel's launch 10 ns before it."""
    job, _ = joined(_all_reduces((100, 100, 5), (2,)))
    parts = [
        replace(rank.recorded, before_launch_ns=np.full(3, 4), after_launch_ns=np.full(3, 3)) for rank in job.ranks
    ]
    made = rebucketed(job, parts, job.transfer_ns, bucket_bytes, Stance.EXPECTED)
    assert made.parts[0].network.calls.before_ns.tolist()[:6] == work


def test_too_many_pieces_of_a_bucket_are_refused() -> None:
    job, _ = joined(_all_reduces((2**20, 2**20), (1,)))
    assert predict_job(job.ranks, JobChanges(bucket_mb=0.001)).valid
    for tiny in (0.00009, 1e-300, 5e-324):
        result = predict_job(job.ranks, JobChanges(bucket_mb=tiny))
        assert result.reasons == ("A bucket would be divided into more than 10,000 pieces; choose larger buckets.",)


def test_the_answer_counts_the_steps_that_have_the_buckets() -> None:
    job, _ = joined(_all_reduces((2**20,) * 3, (2,)))
    changed = predict_job(job.ranks, JobChanges(bucket_mb=4)).changes
    assert [change.what for change in changed] == ["3 buckets become 1 in 1 step."]


def test_a_single_bucket_does_not_show_when_its_parts_are_ready() -> None:
    turns = tuple(Turn(number, 10, 10, 10, "thread") for number in range(2))
    program = RanksProgram(((0, 1),) * 2, (50, 60), (turns, turns), (1, 2))
    job, _ = joined(program)
    with pytest.raises(Unpredictable, match="unknown how buckets are filled"):
        rebucketed(job, [rank.recorded for rank in job.ranks], job.transfer_ns, 1, Stance.EXPECTED)


def test_a_backward_passs_only_bucket_is_divided_if_its_ops_show_when_its_parts_are_ready() -> None:
    """600 bytes become ready evenly in 840 ns; a third of them takes 2050 ns, as long as recorded without latency."""
    turns = tuple(Turn(number, 10, 840, 10, "thread" if number else "nothing") for number in range(2))
    job, _ = joined(RanksProgram(((0, 1),) * 2, (6_150, 10), (turns, turns), (600, 5), roots=(None, 0)))
    parts = [replace(rank.recorded, filled_ns=np.array([840, -1])) for rank in job.ranks]
    made = rebucketed(job, parts, job.transfer_ns, 200, Stance.EXPECTED)
    assert (made.before, made.after) == (1, 3)
    ends = replay_job(job, made.parts, made.tied).end_ns[0][made.tied.finish[made.tied.rank == 0]]
    assert ends.tolist()[:3] == [10 + 280 + number * 2_050 for number in (1, 2, 3)]


def test_compute_that_a_change_puts_beside_a_collective_gets_longer() -> None:
    """The second kernel of each rank needs the first collective; without that, it runs beside it."""
    turns = tuple(Turn(number, 10, 1_000, 10, "kernel") for number in range(3))
    job, _ = joined(RanksProgram(((0, 1),) * 3, (5_000, 5_000, 5_000), (turns, turns)))
    parts = [rank.recorded for rank in job.ranks]
    free = [
        replace(part, network=replace(part.network, orders=part.network.orders.take(slice(0, 3)))) for part in parts
    ]
    for lost, length in ((0.0, 1_000), (0.5, 2_000)):
        job = replace(job, ranks=tuple(replace(rank, lost_speed=(lost,) * 3) for rank in job.ranks))
        after = contended_replay(job, free, ties(job, free, job.transfer_ns), Stance.EXPECTED)
        assert lengths(after) == [[1_000, length]] * 2
        same = contended_replay(job, parts, ties(job, parts, job.transfer_ns), Stance.EXPECTED)
        assert lengths(same) == lengths(times_of(job, parts, job.transfer_ns))


def test_a_rank_whose_recording_does_not_show_its_loss_loses_as_much_speed_as_the_others() -> None:
    turns = tuple(Turn(number, 10, 1_000, 10, "kernel") for number in range(3))
    job, _ = joined(RanksProgram(((0, 1),) * 3, (5_000, 5_000, 5_000), (turns, turns)))
    first, second = job.ranks
    job = replace(job, ranks=(replace(first, lost_speed=(0.15, 0.5, 0.5)), replace(second, lost_speed=None)))
    free = [
        replace(part, network=replace(part.network, orders=part.network.orders.take(slice(0, 3))))
        for part in (first.recorded, second.recorded)
    ]
    tied = ties(job, free, job.transfer_ns)
    assert lengths(contended_replay(job, free, tied, Stance.EXPECTED)) == [[1_000, 2_000]] * 2
    assert lengths(contended_replay(job, free, tied, Stance.BEST)) == [[1_000, round(1_000 / 0.85)]] * 2
    assert lengths(contended_replay(job, free, tied, Stance.WORST)) == [[1_000, 2_000]] * 2


def _event(category: str, name: str, start: int, length: int, thread: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


@pytest.mark.parametrize(("count", "blocks", "known"), [(12, 64, True), (2, 64, False), (12, 32, False)])
def test_lost_speed_compares_runs_of_a_kernel_and_grid(tmp_path: Path, count: int, blocks: int, known: bool) -> None:
    """A kernel takes 100 us apart from collectives and 150 us beside them."""
    events = []
    for number in range(count):
        begin = 1_000 * number
        for name, stream, start, length, grid in (
            ("gemm", 7, 0, 100, 64),
            ("gemm", 7, 300, 150, blocks),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 300, 200, 8),
        ):
            event = _event("kernel", name, begin + start, length, stream)
            events.append(event | {"args": {"device": 0, "stream": stream, "grid": [grid, 1, 1], "block": [128, 1, 1]}})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    lost = speed_lost(build(load(path), 0))
    assert lost == (pytest.approx((1 / 3, 1 / 3, 1 / 3)) if known else None)


@pytest.mark.parametrize("path", various(), ids=lambda path: path.name)
def test_a_reduced_network_gives_the_times_of_the_whole_graph(path: Path) -> None:
    trace = trace_of(path)
    if not len(trace.gpu_ops):
        pytest.skip("nothing ran on a GPU")
    base = prepare(trace, None)
    try:
        replay(base.graph)
    except Deadlock:
        pytest.skip("cannot be replayed")
    chosen = np.random.default_rng(0).random((3, max(len(base.graph.items), len(base.graph.calls)))) < 0.02
    items, calls = len(base.graph.items), len(base.graph.calls)
    reduced = condense(base.graph, base.replayed, chosen[0][:items], chosen[1][:calls], chosen[2][:items])
    replayed = replay(reduced.network)
    kept = np.flatnonzero(reduced.place >= 0)
    assert (replayed.end_ns[reduced.place[kept]] == base.replayed.end_ns[kept]).all()
    assert (replayed.call_start_ns == base.replayed.call_start_ns[reduced.call]).all()
    assert (replayed.call_end_ns == base.replayed.call_end_ns[reduced.call]).all()


@pytest.mark.parametrize("changes", [(), ("no-sync cudaStreamSynchronize",), ("graph step",), ("pin", "non-blocking")])
@pytest.mark.parametrize("rank", [0, 1])
def test_with_one_rank_the_joint_replay_is_its_own(rank: int, changes: tuple[str, ...]) -> None:
    trace = trace_of(TRACES / "ddp" / f"rank{rank}.json.gz")
    summary = summarize(trace, changes, None)
    assert isinstance(summary, RankSummary)
    job = gather([summary])
    own = predict(trace, changes)
    assert own.result.recorded_predicted_step_ns is not None
    result = times_of(job, [summary.by_stance[Stance.EXPECTED]], job.transfer_ns)
    assert result.step_ns == own.result.recorded_predicted_step_ns


def test_joined_ranks_of_a_job_give_back_their_recordings() -> None:
    job = gather([_summarized(rank) for rank in range(2)])
    result = times_of(job, [rank.recorded for rank in job.ranks], job.transfer_ns)
    assert lengths(result) == [rank.lengths_ns.tolist() for rank in job.ranks]


def _summarized(rank: int) -> RankSummary:
    summary = summarize(trace_of(TRACES / "ddp" / f"rank{rank}.json.gz"), (), None)
    assert isinstance(summary, RankSummary)
    return summary


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ((0,), "The traces of 1 rank (1) are missing"),
        ((0, 0), "2 traces are of rank 0; give one of them."),
    ],
)
def test_a_job_with_missing_or_repeated_ranks_is_refused(ranks: tuple[int, ...], reason: str) -> None:
    result = predict_job([_summarized(rank) for rank in ranks], JobChanges(no_straggler=True))
    assert not result.valid and result.predicted_step_ns is None
    assert any(sentence.startswith(reason) for sentence in result.reasons)


def test_of_different_world_sizes_each_missing_rank_is_counted_once() -> None:
    first, second = joined(_all_reduces((1, 1), (0, 1)))[0].ranks
    second = replace(second, reduced=replace(second.reduced, rank=5, world_size=4))
    assert predict_job([first, second], JobChanges()).reasons == (
        "The traces of 3 ranks (1, 2 and 3) are missing, and the other ranks wait for these.",
    )


def test_names_in_reasons_have_no_line_breaks() -> None:
    unfit = predict_job([Unreadable(source="a\n# Title\nb.json", reason="it has no steps.")], JobChanges())
    assert unfit.reasons == ("a\\n# Title\\nb.json: it has no steps.",)
    job, _ = joined(_all_reduces((1, 1, 1), (0, 1, 2)))
    nameless = replace(job.ranks[0], reduced=replace(job.ranks[0].reduced, rank=None, source="a\nb.json"))
    assert predict_job([nameless], JobChanges()).reasons[0].startswith("a\\nb.json doesn't state its rank")
    sent = []
    for rank in job.ranks:
        comm = rank.reduced.comm
        kinds = (*comm.kinds, replace(comm.kinds[0], collective="send\n# Title"))
        kind = np.append(comm.kind[:1], np.full(len(comm) - 1, len(comm.kinds)))
        sent.append(replace(rank, reduced=replace(rank.reduced, comm=replace(comm, kinds=kinds, kind=kind))))
    reasons = predict_job(sent, JobChanges()).reasons
    assert len(reasons) == 1 and "(1 send\\n# Title)" in reasons[0]


def test_a_change_of_several_ranks_names_all_of_them() -> None:
    job, _ = joined(_all_reduces((1, 1, 1), (0, 1, 2)))
    changed = predict_job(job.ranks, JobChanges(no_straggler=True), [0, 1]).changes
    assert changed[0].what == "Between collectives, rank 0 and rank 1 take the median time of the others."
    assert predict_job(job.ranks, JobChanges(), [99, 1]).reasons == ("There is no trace of rank 99.",)
