"""Prediction of a job's step from the summaries of its ranks.

If all ranks timed their steps without the profiler (plain steps), the job is predicted as it runs without it. For that,
the host work of every rank is shortened by once the overhead that its recording shows, then twice, and so on
(`prediction.overhead.lighter_ones`). If once gives the plain step, except for differences between runs, that job is
used. Otherwise, the prediction is interpolated linearly between the two jobs whose steps enclose the plain step, and
scaled by what is then still missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import quantile
from overlapscope.base.words import duration, listed, percent, plural
from overlapscope.plugins.jobs.joint.buckets import rebucketed
from overlapscope.plugins.jobs.joint.changes import (
    contended_replay,
    faster_transfers,
    issued_earlier,
    like_others,
    lost_speed,
)
from overlapscope.plugins.jobs.joint.join import (
    JobReplay,
    JoinedJob,
    RankNetwork,
    RankSummary,
    Ties,
    Unpredictable,
    doubts,
    gather,
    obstacles,
    replay_job,
    ties,
)
from overlapscope.plugins.jobs.joint.result import JointChange, JointRank, JointWhatIf
from overlapscope.prediction.base import MAX_ERROR_PCT
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.outcomes import KERNEL_UNCERTAINTY
from overlapscope.prediction.overhead import DIFFER
from overlapscope.prediction.replay import Deadlock
from overlapscope.prediction.result import Estimate
from overlapscope.prediction.steps import mean
from overlapscope.ranks.result import Unreadable
from overlapscope.ranks.summary import find_stragglers


class JobChanges(Struct, frozen=True):
    """Changes to the whole job."""

    no_straggler: bool = False
    issue_earlier: bool = False
    bandwidth: float | None = None
    """Speed of the network, as a multiple of the recorded speed."""
    bucket_mb: float | None = None
    """Size of the buckets of data-parallel training, in units of 2^20 bytes, as in PyTorch."""

    @property
    def any(self) -> bool:
        """True if there are changes."""
        return self != JobChanges()


def predict_job(
    summaries: Sequence[RankSummary | Unreadable], changes: JobChanges, numbers: Sequence[int] | None = None
) -> JointWhatIf:
    """Predict the step of a job.

    Args:
        summaries: A summary of each rank, with the interventions on single ranks.
        changes: Changes to the whole job.
        numbers: Ranks that the changes are limited to.

    Returns:
        The predicted step as an interval, or the reasons why there is none.
    """
    if reasons := tuple(obstacles(summaries)):
        return _refused(*reasons)
    job = gather([summary for summary in summaries if isinstance(summary, RankSummary)])
    if absent := [f"rank {number}" for number in numbers or () if number not in job.numbers]:
        return _refused(f"There is no trace of {listed(absent, 5)}.")
    if reasons := tuple(doubts(job)):
        return _refused(*reasons)
    try:
        parts = [rank.recorded for rank in job.ranks]
        before = replay_job(job, parts, ties(job, parts, job.transfer_ns))
    except Deadlock:
        return _refused("The ranks' collectives contradict each other: they wait for each other in a circle.")
    errors = [
        100 * quantile(np.abs(lengths - rank.lengths_ns) / np.maximum(rank.lengths_ns, 1), 0.5)
        for rank, lengths in zip(job.ranks, before.lengths_ns, strict=True)
    ]
    if max(errors) > MAX_ERROR_PCT:
        worst = job.numbers[int(np.argmax(errors))]
        return _refused(
            f"The joint replay's steps differ from the recorded ones by {percent(max(errors))} (median of rank "
            f"{worst}), more than {MAX_ERROR_PCT:g}%."
        )
    try:
        return _as_plain(job, before.step_ns, changes, numbers) or _predicted(_replayed(job), changes, numbers)
    except Deadlock:
        return _refused("With these changes, ranks wait for each other in a circle.")
    except Unpredictable as error:
        return _refused(str(error))


def _refused(*reasons: str) -> JointWhatIf:
    return JointWhatIf(
        valid=False,
        reasons=reasons,
        meetings=0,
        steps=0,
        recorded_step_ns=None,
        replayed_step_ns=None,
        predicted_step_ns=None,
        gain_ns=None,
        gain_pct=None,
        changes=(),
        ranks=(),
    )


def _replayed(job: JoinedJob) -> JobReplay:
    """Replay a job without changes."""
    parts = [rank.recorded for rank in job.ranks]
    return contended_replay(job, parts, ties(job, parts, job.transfer_ns), Stance.EXPECTED)


def _predicted(before: JobReplay, changes: JobChanges, numbers: Sequence[int] | None) -> JointWhatIf:
    job = before.job
    applied = _changes_on_ranks(job)
    late = _late(job, numbers) if changes.no_straggler else []
    after: dict[Stance, JobReplay] = {}
    for stance in Stance if changes.any or applied else ():
        parts, tied, done = _changed(job, changes, late, stance)
        after[stance] = contended_replay(job, parts, tied, stance)
        if stance == Stance.EXPECTED:
            applied += done
    step = None
    if any(change.touched for change in applied):
        step = _estimate({stance: each.step_ns for stance, each in after.items()}, _variation(job))
    elif after:
        after = dict.fromkeys(Stance, before)
        step = Estimate(value=before.step_ns, low=before.step_ns, high=before.step_ns)
    result = JointWhatIf(
        valid=True,
        reasons=(),
        meetings=len(job.met),
        steps=len(job.ranks[0].lengths_ns),
        recorded_step_ns=mean(np.array([mean(rank.lengths_ns) for rank in job.ranks])),
        replayed_step_ns=before.step_ns,
        predicted_step_ns=step,
        gain_ns=None,
        gain_pct=None,
        changes=tuple(applied),
        ranks=tuple(
            JointRank(
                rank=job.numbers[place],
                source=rank.reduced.source,
                recorded_step_ns=mean(rank.lengths_ns),
                replayed_step_ns=before.steps_ns[place],
                predicted_step_ns=_estimate({stance: each.steps_ns[place] for stance, each in after.items()})
                if after
                else None,
                waited_ns=before.waited_ns[place],
                predicted_waited_ns=after[Stance.EXPECTED].waited_ns[place] if after else None,
            )
            for place, rank in enumerate(job.ranks)
        ),
    )
    return _with_gain(result)


def _with_gain(result: JointWhatIf) -> JointWhatIf:
    before_ns, step = result.replayed_step_ns or 0, result.predicted_step_ns
    if step is None:
        return result
    gain = step.below(before_ns)
    return replace(result, gain_ns=gain, gain_pct=100 * gain.value / before_ns if before_ns else None)


def _estimate(by_stance: dict[Stance, int], variation: tuple[float, float] = (1.0, 1.0)) -> Estimate:
    """Return a step, as an interval that includes steps that are shorter at best and longer at worst by factors."""
    least, most = variation
    ends = [*by_stance.values(), round(by_stance[Stance.BEST] * least), round(by_stance[Stance.WORST] * most)]
    return Estimate(value=by_stance[Stance.EXPECTED], low=min(ends), high=max(ends))


def _variation(job: JoinedJob) -> tuple[float, float]:
    """Return the quartiles of the recorded steps, as multiples of their mean."""
    lengths = [rank.lengths_ns for rank in job.ranks]
    common = min(map(len, lengths))
    each = np.sort(np.mean([length[:common] for length in lengths], axis=0))
    aside = (len(each) - 1) // 4
    # Steps of no length have no variation.
    usual = each.mean()
    return (each[aside] / usual, each[len(each) - 1 - aside] / usual) if usual else (1.0, 1.0)


def _late(job: JoinedJob, numbers: Sequence[int] | None) -> list[int]:
    """Return the ranks to make as fast as the others: those that were asked for, else the latest."""
    if numbers is not None:
        return [place for place, number in enumerate(job.numbers) if number in numbers]
    late = find_stragglers([rank.reduced for rank in job.ranks], job.comparison.waits)
    if not late or not late[0].clear:
        return []
    return [job.numbers.index(late[0].rank)]


def _changes_on_ranks(job: JoinedJob) -> list[JointChange]:
    """Return the interventions on single ranks, each once, with the effect on the first rank that it applies to."""
    merged = []
    for number, first in enumerate(next((rank.changed for rank in job.ranks if rank.changed), ())):
        all_ranks = [(rank, rank.changed[number]) for rank in job.ranks if rank.changed]
        applied = [(rank, change) for rank, change in all_ranks if change.touched]
        what = f"Not applicable: nothing on {plural(len(all_ranks), 'rank')} to change."
        if applied:
            what = f"On {plural(len(applied), 'rank')}; on rank {applied[0][0].reduced.rank}: {applied[0][1].what}"
        merged.append(
            replace(
                first,
                touched=sum(change.touched for _, change in applied),
                what=what,
                assumptions=first.assumptions if applied else (),
            )
        )
    return merged


def _changed(
    job: JoinedJob, changes: JobChanges, late: Sequence[int], stance: Stance
) -> tuple[list[RankNetwork], Ties, list[JointChange]]:
    """Return the ranks' networks and their ties with the changes at a stance, and the changes.

    The `late` ranks take the median time of the others without a straggler.
    """
    parts = [rank.by_stance[stance] for rank in job.ranks]
    transfer = np.rint(job.transfer_ns * (1 + KERNEL_UNCERTAINTY.get(stance, 0.0))).astype(np.int64)
    applied = list[JointChange]()

    def add(change: str, title: str, touched: int, what: str, *assumptions: str) -> None:
        applied.append(JointChange(change=change, title=title, touched=touched, what=what, assumptions=assumptions))

    if changes.no_straggler:
        parts = [like_others(job, parts, place, stance) if place in late else part for place, part in enumerate(parts)]
        ranks = listed([f"rank {job.numbers[place]}" for place in late])
        what = f"Between collectives, {ranks} {'takes' if len(late) == 1 else 'take'} the median time of the others."
        what = what if late else "Not applicable: no rank makes the others wait for 1% of a step."
        assumed = ("The extra work isn't needed. At the high end, all ranks share that of the GPU.",) if late else ()
        add("no-straggler", "let the latest rank compute like the others", len(late), what, *assumed)
    if changes.issue_earlier:
        moved = [issued_earlier(part, stance) for part in parts]
        parts, count = [part for part, _ in moved], sum(count for _, count in moved)
        total = plural(sum(len(part.finish) for part in parts), "collective")
        what = f"{count:,} of {total} start when the last op that they wait for has ended."
        assumption = "The program can start a collective right after the op that makes its input."
        add("issue-earlier", "start collectives when their input is ready", count, what, assumption)
    if (times := changes.bandwidth) is not None:
        faster = faster_transfers(job, transfer, times, stance)
        was, now = (duration(mean(each) if len(each) else 0) for each in (transfer, faster))
        what, transfer = f"Transfers take {now} instead of {was} on average.", faster
        assumption = "Only the part of a transfer after the latency gets shorter."
        add(f"bandwidth {times:g}x", f"a network {times:g} times as fast", len(job.met), what, assumption)
    tied = ties(job, parts, transfer)
    if (size_mb := changes.bucket_mb) is not None:
        made = rebucketed(job, parts, transfer, size_mb * 2**20, stance)
        parts, tied = made.parts, made.tied
        in_steps = f" in {plural(made.steps, 'step')}" if made.steps else ""
        what = f"{plural(made.before, 'bucket')} become {made.after:,}{in_steps}."
        add(f"bucket-mb {size_mb:g}", f"buckets of {size_mb:g} MB", made.before, what, *_OF_BUCKETS)
    if applied and applied[-1].touched:
        applied[-1] = replace(applied[-1], assumptions=(*applied[-1].assumptions, _contention(job)))
    return parts, tied, applied


_OF_BUCKETS: Final = (
    "Gradients become ready evenly within a bucket.",
    "A transfer takes a latency and its bytes per bandwidth, as recorded transfers of the group do.",
)


def _contention(job: JoinedJob) -> str:
    """Return the assumption on compute beside collectives."""
    lost = lost_speed(job)
    share, ends = percent(100 * lost.usual), f"{percent(100 * lost.least)} to {percent(100 * lost.most)}"
    return (
        f"Compute loses {share} of its speed beside collectives ({ends}), "
        f"{'as recorded' if lost.recorded else 'which the recordings do not show'}."
    )


# -- A job without the profiler ----------------------------------------------------------------------


def _as_plain(job: JoinedJob, step_ns: int, changes: JobChanges, numbers: Sequence[int] | None) -> JointWhatIf | None:
    """Return the prediction for the plain program of a job; None if a rank's plain step is unknown.

    `step_ns` is the replayed step of the recorded job.
    """
    known = [rank.plain for rank in job.ranks if rank.plain is not None]
    if len(known) < len(job.ranks) or not step_ns:
        return None
    plain_ns = sum(plain.step_ns for plain in known) // len(known)
    recorded = _replayed(job)
    heavier, lighter = _around(recorded, plain_ns)
    above, below = heavier.step_ns, lighter.step_ns
    share = min(max((above - plain_ns) / (above - below), 0.0), 1.0) if above > below else 1.0
    scale = plain_ns / (above + share * (below - above))
    low, high = (
        sum(each) / len(each) / plain_ns
        for each in ([plain.low_ns for plain in known], [plain.high_ns for plain in known])
    )
    longer = _predicted(heavier, changes, numbers)
    shorter = longer if lighter is heavier else _predicted(lighter, changes, numbers)
    result = _between(longer, shorter, share, scale, (min(low, 1.0), max(high, 1.0)))
    step = result.predicted_step_ns
    if not changes.no_straggler or step is None:
        return result
    as_recorded = longer if heavier is recorded else _predicted(recorded, changes, numbers)
    if (gain := as_recorded.gain_ns) is None:
        return result
    # The late rank may owe as much of its delay to the profiler as a step is longer by it.
    slowest_ns = (result.replayed_step_ns or 0) - max(0, gain.low - max(0, step_ns - plain_ns))
    return _with_gain(replace(result, predicted_step_ns=replace(step, high=max(step.high, slowest_ns))))


def _around(recorded: JobReplay, plain_ns: int) -> tuple[JobReplay, JobReplay]:
    """Return jobs with more and with less host work than the plain program; the same twice if its step is alike."""
    job = recorded.job
    # Ranks with fewer lighter summaries keep their last.
    jobs = (
        replace(job, ranks=tuple(rank.lighter[min(number, len(rank.lighter) - 1)] for rank in job.ranks))
        for number in range(max(len(rank.lighter) for rank in job.ranks))
    )
    lighter = map(_replayed, jobs)
    longer, shorter = recorded, next(lighter, recorded)
    if abs(shorter.step_ns - plain_ns) <= DIFFER * plain_ns:
        return shorter, shorter
    if recorded.step_ns <= plain_ns:
        return recorded, recorded
    while shorter.step_ns > plain_ns and (tried := next(lighter, None)) is not None:
        longer, shorter = shorter, tried
    return longer, shorter


def _between(
    longer: JointWhatIf, shorter: JointWhatIf, share: float, scale: float, ends: tuple[float, float]
) -> JointWhatIf:
    """Return the figures at a share of the way from one prediction to the other, scaled; intervals also by `ends`."""

    def at(one: int, other: int) -> int:
        return round(scale * (one + share * (other - one)))

    def figure(one: int | Estimate | None, other: int | Estimate | None) -> int | Estimate | None:
        if isinstance(one, int) and isinstance(other, int):
            return at(one, other)
        if not isinstance(one, Estimate) or not isinstance(other, Estimate):
            return None
        value, (least, most) = at(one.value, other.value), ends
        low, high = round(at(one.low, other.low) * least), round(at(one.high, other.high) * most)
        return Estimate(value=value, low=min(value, low), high=max(value, high))

    def figures(one: JointWhatIf | JointRank, other: JointWhatIf | JointRank, *names: str) -> dict[str, Any]:
        return {name: figure(getattr(one, name), getattr(other, name)) for name in names}

    of_both = ("replayed_step_ns", "predicted_step_ns")
    ranks = tuple(
        replace(one, **figures(one, other, *of_both, "waited_ns", "predicted_waited_ns"))
        for one, other in zip(longer.ranks, shorter.ranks, strict=True)
    )
    return _with_gain(replace(longer, **figures(longer, shorter, *of_both), ranks=ranks, plain=True))
