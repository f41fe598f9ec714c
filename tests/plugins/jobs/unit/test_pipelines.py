"""Tests of messages between ranks and of pipelines, compared with simulated ones whose truth is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.base.saved import encode
from overlapscope.catalog.causes import CommCause
from overlapscope.plugins.jobs.part import PhaseTime
from overlapscope.plugins.jobs.ranks import pipeline_table, sentences
from overlapscope.ranks.comparison import Comparison, compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.parts import from_json
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import judge
from tests.plugins.jobs.played_pipelines import Act, PlayedPipeline, TrueMessage, batched, gpipe, one_f_one_b, play
from tests.support.helpers import MS

UNIT = 4000
"""All simulated times are multiples of this number of nanoseconds."""
GRID = UNIT // 4
"""Offsets that are found, and so phases, are multiples of this."""
Recorded = tuple[PlayedPipeline, list[ReducedRank], list[list[TrueMessage]], list[int]]


@st.composite
def recordings(draw: st.DrawFn, *, cut: bool = False) -> Recorded:
    """Pipelines of random lengths, by clocks that may be off. If cut, each rank's window may begin and end anywhere."""
    stages, microbatches, steps = draw(st.integers(2, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    random = draw(st.randoms(use_true_random=False))
    pipeline = play(
        draw(st.sampled_from([gpipe, one_f_one_b])),
        stages,
        microbatches,
        steps,
        lambda *_: UNIT * random.randint(5, 30),
        lambda: UNIT * random.randint(1, 10),
        eager=draw(st.booleans()),
        update=lambda _: UNIT * random.choice([0, random.randint(1, 40)]),
    )
    offsets = [0, *(UNIT * draw(st.sampled_from([0, 0, -350, 5_000_000])) for _ in range(stages - 1))]
    end = max(stop for steps in pipeline.steps for _, stop in steps) + 100 * UNIT
    windows = [
        (draw(st.integers(-50, end // 2)), draw(st.integers(end // 2, end))) if cut else (-UNIT, end)
        for _ in range(stages)
    ]
    ranks, truth = pipeline.ranks(offsets, windows, known_sizes=draw(st.booleans()))
    if not cut and draw(st.booleans()):
        ranks = [from_compute(rank, pipeline, offsets) for rank in ranks]
    return pipeline, ranks, truth, offsets


def from_compute(rank: ReducedRank, pipeline: PlayedPipeline, offsets: Sequence[int]) -> ReducedRank:
    """Return the rank with steps from their first compute, as on a device whose messages are on another stream."""
    place = rank.rank or 0
    steps = pipeline.steps[place]
    starts = [min(start for start, _ in pipeline.compute[place] if start >= begin) for begin, _ in steps]
    ends = [*starts[1:], steps[-1][1]]
    start_ns, end_ns = (np.array(times, np.int64) + offsets[place] for times in (starts, ends))
    return replace(rank, steps=replace(rank.steps, start_ns=start_ns, span_ns=end_ns - start_ns))


def paired(comparison: Comparison, truth: Sequence[Sequence[TrueMessage]]) -> list[tuple[TrueMessage, TrueMessage]]:
    """Return the true messages of both sides of each paired message."""
    every = [message for of_rank in truth for message in of_rank]
    ends = comparison.waits.messages.paired.ends
    return [(every[send], every[receive]) for send, receive in zip(*(rows.tolist() for rows in ends), strict=True)]


@given(recordings(cut=True))
def test_no_send_is_paired_with_the_receive_of_another_message(recorded: Recorded) -> None:
    _, ranks, truth, _ = recorded
    for send, receive in paired(compare(ranks), truth):
        assert send is receive


@given(recordings())
def test_every_message_of_whole_recordings_is_paired(recorded: Recorded) -> None:
    pipeline, ranks, truth, _ = recorded
    pairs = paired(compare(ranks), truth)
    assert len(pairs) == len(pipeline.messages)
    assert all(send is receive for send, receive in pairs)


@given(recordings())
def test_receives_that_are_started_a_step_ahead_are_not_paired_with_the_sends_of_their_step(recorded: Recorded) -> None:
    _, ranks, truth, _ = recorded
    last = ranks[-1]
    ahead = (last.messages.outgoing == 0)[np.argsort(last.messages.kernel)]
    step = last.comm.step - ahead
    ranks = [*ranks[:-1], replace(last, comm=replace(last.comm, step=step))]
    for send, receive in paired(compare(ranks), truth):
        assert send is receive


@given(recordings())
def test_clocks_found_from_messages_are_as_far_off_as_stated(recorded: Recorded) -> None:
    _, ranks, _, true = recorded
    offsets = compare(ranks).offsets
    for rank, offset in enumerate(true):
        bound = int(offsets.error_ns[rank])
        if bound >= 0:
            assert abs(offset - true[0] - int(offsets.offset_ns[rank])) <= bound


@given(recordings())
def test_a_kernel_waits_until_the_other_side_has_begun(recorded: Recorded) -> None:
    """Compare each kernel with its message, by plain arithmetic with the offsets that were found."""
    _, ranks, truth, true = recorded
    comparison = compare(ranks)
    waits, found = comparison.waits.messages, comparison.offsets.offset_ns.tolist()
    every = [(rank, message) for rank, of_rank in enumerate(truth) for message in of_rank]

    def seen(times: list[int], rank: int) -> list[int]:
        return [ns + true[rank] - found[rank] for ns in times]

    for kernel, waited in zip(waits.kernel.tolist(), waits.waited_ns.tolist(), strict=True):
        rank, message = every[kernel]
        send, receive = seen(message.send, message.source), seen(message.receive, message.target)
        if rank == message.source:
            expected = 0 if send[1] < receive[0] else min(max(receive[0] - send[0], 0), send[1] - send[0])
        else:
            expected = min(max(send[0] - receive[0], 0), receive[1] - receive[0])
        assert waited == expected


@given(recordings())
def test_a_batch_waits_until_the_last_of_the_other_sides_has_begun(recorded: Recorded) -> None:
    _, single, truth, _ = recorded
    ranks = [batched(rank) for rank in single]
    comparison = compare(ranks)
    waits, offset = comparison.waits.messages, comparison.offsets.offset_ns.tolist()
    kernels: dict[int, tuple[int, int]] = {}
    sides: defaultdict[int, list[TrueMessage]] = defaultdict(list)
    begin: dict[tuple[int, int, int, bool], int] = {}
    for rank, (each, messages) in enumerate(zip(ranks, truth, strict=True)):
        first = len(kernels)
        times = zip(each.comm.start_ns.tolist(), each.comm.end_ns.tolist(), strict=True)
        kernels |= {first + row: (start - offset[rank], end - offset[rank]) for row, (start, end) in enumerate(times)}
        for row, message in zip(each.messages.kernel.tolist(), messages, strict=True):
            sides[first + row].append(message)
            key = (message.source, message.target, message.number, message.source == rank)
            begin[key] = kernels[first + row][0]
    owners = [rank for rank, each in enumerate(ranks) for _ in range(len(each.comm))]
    for kernel, waited in zip(waits.kernel.tolist(), waits.waited_ns.tolist(), strict=True):
        start, end = kernels[kernel]
        expected = 0
        for message in sides[kernel]:
            sends = message.source == owners[kernel]
            other = begin[message.source, message.target, message.number, not sends]
            if not (sends and end < other):
                expected = max(expected, min(max(other - start, 0), end - start))
        assert waited == expected
    assert waits.paired.contradicted.any() or len(waits.kernel) == len(kernels)


def counted(pipeline: PlayedPipeline, offsets: Sequence[int], stage: int, step: int, schedule: str) -> list[PhaseTime]:
    """Count each moment of a stage's step by its phase, from true times.

    `offsets` are how far each rank's clock seems ahead of its true time, after the offsets that were found.
    """
    begin, end = pipeline.steps[stage][step]
    mine = [message for message in pipeline.messages if stage in (message.source, message.target)]
    ahead = [message for message in mine if message.step == step and message.source < message.target]
    returned = [message for message in mine if message.step == step and message.source > message.target]
    if stage == pipeline.stages - 1:
        sent_back = [message.send[0] for message in returned]
        warm = max(message.receive[1] for message in ahead if message.receive[1] <= min(sent_back))
        drain = max(sent_back)
    else:
        warm = min(message.receive[1] for message in returned if message.target == stage)
        drain = max(message.send[0] for message in ahead if message.source == stage)
    waits, ran = [], [message.send if message.source == stage else message.receive for message in mine]
    for message in mine:
        sides = (message.send, message.source), (message.receive, message.target)
        (own, _), (other, place) = sides if message.source == stage else sides[::-1]
        other_begins = other[0] + offsets[place] - offsets[stage]
        if message.target == stage or own[1] >= other_begins:
            waits.append((own[0], min(other_begins, own[1])))
    counts, idle = np.zeros((3, 3), np.int64), [0, 0, 0]
    for moment in range(begin, end, GRID):
        phase = 0 if moment < warm else 2 if schedule == "gpipe" or moment >= drain else 1
        computes = any(start <= moment < stop for start, stop in pipeline.compute[stage])
        waiting = any(start <= moment < stop for start, stop in waits)
        counts[phase, 0 if computes else 1 if waiting else 2] += GRID
        idle[phase] += 0 if computes or any(start <= moment < stop for start, stop in ran) else GRID
    return [
        PhaseTime(compute_ns=a, waiting_ns=b, other_ns=c, idle_ns=d)
        for (a, b, c), d in zip(counts.tolist(), idle, strict=True)
    ]


@given(recordings())
def test_the_phases_of_each_stage_are_those_of_a_count_of_every_moment_of_its_steps(recorded: Recorded) -> None:
    pipeline, ranks, _, true = recorded
    seen = np.array(true) - compare(ranks).offsets.offset_ns
    (found,) = joined(ranks).parts["jobs"].pipelines
    assert found.ranks == tuple(range(pipeline.stages))
    for step in found.steps:
        number = int(step.name.removeprefix("ProfilerStep#"))
        for place, stage in enumerate(step.stages):
            expected = counted(pipeline, seen.tolist(), place, number, found.schedule or "")
            assert [stage.warm_up, stage.steady, stage.drain] == expected


def test_compute_counts_in_a_single_step_if_the_steps_of_stages_overlap() -> None:
    played = play(one_f_one_b, 4, 4, 4, lambda *_: 10 * MS, lambda: 1000, update=lambda _: 5 * MS)
    # The last stage begins each step while the first one still computes in the step before.
    assert all(played.steps[3][step][1] < played.steps[0][step][1] for step in range(4))
    (found,) = joined(played.ranks([0] * 4)[0]).parts["jobs"].pipelines
    for place, steps in enumerate(played.steps):
        times = [step.stages[place] for step in found.steps]
        assert [time.compute_ns for time in times] == [80 * MS, 85 * MS, 85 * MS, 85 * MS]
        assert [time.length_ns for time in times] == [end - begin for begin, end in steps]
    assert found.bubble_pct == pytest.approx(
        100 - 100 * 4 * 335 * MS / sum(end - begin for steps in played.steps for begin, end in steps)
    )


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_messages_relate_the_clocks_of_sets_that_have_only_collectives_of_their_own(first: int, second: int) -> None:
    """Two replicas of two stages: those of a stage meet in collectives, on a machine with a clock of its own."""
    offsets = [0, 7_000 * MS + first]
    apart = [second * MS, 0]
    ranks = []
    for replica in range(2):
        played = play(one_f_one_b, 2, 4, 3, lambda *_: MS, lambda: 1000)
        made, _ = played.ranks([offset + apart[replica] for offset in offsets], meets=True)
        for stage, rank in enumerate(made):
            kinds = tuple(
                replace(kind, group=f"dp{stage}", group_size=2) if kind.collective == "allreduce" else kind
                for kind in rank.comm.kinds
            )
            messages = replace(rank.messages, peer=2 * (1 - stage) + replica + 0 * rank.messages.peer)
            number = 2 * stage + replica
            ranks.append(
                replace(rank, rank=number, source=str(number), comm=replace(rank.comm, kinds=kinds), messages=messages)
            )
    ranks.sort(key=lambda rank: rank.source)
    comparison = compare(ranks)
    found = comparison.offsets
    true = [offsets[number // 2] + apart[number % 2] - apart[0] for number in range(4)]
    assert found.reference.tolist() == [0, 0, 0, 0]
    for place, offset in enumerate(true):
        assert abs(int(found.offset_ns[place]) - offset) <= int(found.error_ns[place])
    assert [pipeline.ranks for pipeline in joined(ranks).parts["jobs"].pipelines] == [(0, 2), (1, 3)]


# -- Reports -------------------------------------------------------------------------------------------


def joined(ranks: Sequence[ReducedRank], **options: int) -> RanksReport:
    return report_on(ranks, **options)


def even(
    order: Callable[[int, int, int], list[Act]], stages: int, microbatches: int, *, slow: int = -1
) -> list[ReducedRank]:
    """Return a pipeline of equal stages and messages that take next to nothing; `slow` takes twice as long."""
    played = play(order, stages, microbatches, 3, lambda stage, _: (1 + (stage == slow)) * MS, lambda: 1000)
    return played.ranks([0] * stages)[0]


def replica(ranks: Sequence[ReducedRank]) -> list[ReducedRank]:
    """Return the ranks 0 and 1 of a pipeline as ranks 2 and 3."""
    return [
        replace(
            rank, rank=number + 2, source=f"other{number}", messages=replace(rank.messages, peer=rank.messages.peer + 2)
        )
        for number, rank in enumerate(ranks)
    ]


@pytest.mark.parametrize(("order", "name"), [(gpipe, "gpipe"), (one_f_one_b, "1f1b")])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 3)])
def test_even_stages_have_the_bubble_of_the_theory(
    order: Callable[[int, int, int], list[Act]], name: str, stages: int, microbatches: int
) -> None:
    (found,) = joined(even(order, stages, microbatches)).parts["jobs"].pipelines
    assert (found.schedule, found.microbatches, len(found.steps)) == (name, microbatches, 3)
    theory = 100 * (stages - 1) / (microbatches + stages - 1)
    assert found.theoretical_bubble_pct == pytest.approx(theory)
    # All stages begin the first step at the same time, and the last stage ends it first.
    times = [stage for step in found.steps[1:] for stage in step.stages]
    compute, length = sum(time.compute_ns for time in times), sum(time.length_ns for time in times)
    assert 100 * (length - compute) / length == pytest.approx(theory, abs=0.5)


def test_the_slowest_stage_is_named_with_what_even_stages_would_take() -> None:
    report = joined(even(one_f_one_b, 3, 8, slow=1))
    (found,) = report.parts["jobs"].pipelines
    assert found.longest_stage == 1
    # The stages compute 16, 32 and 16 ms a step.
    assert found.even_step_ns == (16 + 32 + 16) * MS * 10 // 8 // 3
    assert found.even_step_ns < min(stage.length_ns for stage in found.steps[0].stages)


def test_even_stages_are_not_said_to_take_longer_than_the_step() -> None:
    # Most compute belongs to no microbatch, so the bubble is smaller than in theory.
    played = play(gpipe, 4, 2, 3, lambda *_: MS, lambda: 1000, update=lambda stage: (60 + 10 * (stage == 0)) * MS)
    report = joined(played.ranks([0] * 4)[0])
    (found,) = report.parts["jobs"].pipelines
    assert found.theoretical_bubble_pct is not None and found.bubble_pct < found.theoretical_bubble_pct
    assert found.even_step_ns is None
    text = " ".join(sentences(report.parts["jobs"]))
    assert "Stage 0 (rank 0) bounds it" in text and "even stages" not in text


def test_steps_without_messages_are_left_out() -> None:
    def without(step: int) -> list[ReducedRank]:
        played = play(one_f_one_b, 2, 4, 3, lambda *_: MS, lambda: 1000)
        played.messages = [message for message in played.messages if message.step != step]
        return played.ranks([0] * 2)[0]

    def names(ranks: Sequence[ReducedRank]) -> list[list[str]]:
        return [[step.name[-1] for step in pipeline.steps] for pipeline in joined(ranks).parts["jobs"].pipelines]

    assert names(without(0)) == [["1", "2"]]
    assert names([*without(1), *replica(even(one_f_one_b, 2, 4))]) == [["0", "2"], ["0", "1", "2"]]


def test_nobody_is_a_straggler_for_the_order_of_a_pipeline() -> None:
    report = joined(even(one_f_one_b, 3, 8, slow=1))
    assert report.stragglers == ()
    assert all(row.exposed_comm_by_cause[CommCause.STRAGGLER] == 0 for row in report.ranks)
    assert report.matching.paired == report.matching.not_collective == report.matching.kernels


def test_the_first_stage_passes_on_its_waits_if_it_comes_last_to_a_collective_after_the_drain() -> None:
    played = play(one_f_one_b, 3, 8, 3, lambda *_: MS, lambda: 1000)
    report = joined(played.ranks([0] * 3, meets=True)[0])
    assert report.matching.judged == 3
    (late,) = report.stragglers
    # Each of the others would have waited for 1 or 2 ms of backward passes. The last meeting comes after the steps.
    assert (late.rank, late.last_in) == (0, 2)
    assert late.made_wait_exposed_ns == pytest.approx(2 * 3 * MS, rel=0.01)
    assert late.lost_ns == 0 and not late.clear


def test_a_pipeline_with_a_missing_stage_is_not_judged_and_the_report_says_why() -> None:
    ranks = even(one_f_one_b, 4, 4)
    report = joined([*ranks[:2], ranks[3]], expected=4)
    assert report.parts["jobs"].pipelines == () and report.missing == (2,)
    assert any(note.startswith("The pipeline of ranks 0, 1 is not judged: the other side of") for note in report.notes)
    (note,) = (note for note in report.notes if "kernels that send or receive are not judged" in note)
    assert "the other rank was not recorded" in note


def test_sizes_that_differ_are_not_paired() -> None:
    ranks = even(one_f_one_b, 2, 4)
    messages = ranks[1].messages
    size = messages.bytes.copy()
    size[5] = 1
    report = joined([ranks[0], replace(ranks[1], messages=replace(messages, bytes=size))])
    assert report.parts["jobs"].pipelines == ()
    assert any("sizes or times do not fit" in note for note in report.notes)


def test_ranks_that_exchange_messages_at_the_same_time_are_no_pipeline() -> None:
    # Each rank sends before it receives, as in an exchange of borders.
    played = play(one_f_one_b, 2, 1, 3, lambda *_: MS, lambda: 1000)
    backward = [message for message in played.messages if message.source == 1]
    for message, other in zip(backward, [each for each in played.messages if each.source == 0], strict=True):
        message.send, message.receive = list(other.send), list(other.receive)
    report = joined(played.ranks([0, 0])[0])
    assert report.matching.paired == 12
    assert report.parts["jobs"].pipelines == ()


def test_replicas_of_a_pipeline_are_pipelines_of_their_own() -> None:
    ranks = even(one_f_one_b, 2, 4)
    others = replica(even(one_f_one_b, 2, 4))
    assert [pipeline.ranks for pipeline in joined([*ranks, *others]).parts["jobs"].pipelines] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("part", [None, {}, {"experts": [], "pipelines": [{"ranks": "all"}]}])
def test_a_report_whose_part_is_wrong_is_refused(part: object) -> None:
    report = joined(even(one_f_one_b, 2, 4))
    with pytest.raises(msgspec.ValidationError):
        from_json(encode(replace(report, parts={"jobs": part})))


def test_the_report_in_json_has_everything_and_the_document_says_it() -> None:
    report = joined(even(one_f_one_b, 3, 8, slow=1))
    assert from_json(encode(report)) == report
    verdict = judge(report)
    assert verdict.lead.startswith("The stages of the pipeline of ranks 0 to 2 compute nothing for ")
    assert "1F1B with 8 microbatches: 20.0% in theory" in verdict.lead
    assert "Stage 1 (rank 1) bounds it: it computes 32.00 ms a step, the mean stage 21.33 ms." in verdict.lead
    table = pipeline_table(report.parts["jobs"].pipelines)
    assert [column.title for column in table.columns][:3] == ["stage", "rank", "compute ms"]
    assert [row.cells[2].text for row in table.rows] == ["16.00", "32.00", "16.00"]
    assert "(p-1)/(m+p-1)" in table.note


def test_an_unknown_order_of_messages_has_no_theoretical_bubble() -> None:
    def two_forward(stage: int, stages: int, microbatches: int) -> list[Act]:
        acts: list[Act] = []
        for number in range(0, microbatches, 2):
            acts += [("F", number), ("F", number + 1), ("B", number), ("B", number + 1)]
        return acts

    report = joined(even(two_forward, 2, 4))
    (found,) = report.parts["jobs"].pipelines
    assert (found.schedule, found.microbatches, found.theoretical_bubble_pct) == (None, None, None)
    assert "the order of its messages is of no known schedule" in judge(report).lead
