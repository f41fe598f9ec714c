"""Predictions for a job without the profiler: its hosts' work is shortened until the job's step is the plain one.

All ranks are shortened alike, first by one, two... times the overhead that each recording shows, as
`prediction.overhead.lighter_ones` yields them. The overhead itself is used if that gives the plain step within the
differences between runs. Otherwise the step is nearly linear in it, so predictions are made for these, and interpolated
to the one that gives the plain step. The rest is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from overlapscope.plugins.jobs.joint.join import JobTimes, JoinedJob
from overlapscope.plugins.jobs.joint.result import JointRank, JointWhatIf
from overlapscope.prediction.overhead import DIFFER
from overlapscope.prediction.result import Estimate


class _TimedJob(NamedTuple):
    """A job, and its times without changes."""

    job: JoinedJob
    times: JobTimes


def as_plain(
    job: JoinedJob,
    step_ns: int,
    timed: Callable[[JoinedJob], JobTimes],
    predicted: Callable[[JoinedJob, JobTimes], JointWhatIf],
    *,
    no_straggler: bool,
) -> JointWhatIf | None:
    """Return the prediction for the plain program; None if a rank's plain step is unknown.

    Args:
        job: The recorded job.
        step_ns: Its replayed step.
        timed: Returns the times of a job without changes.
        predicted: Returns the prediction for a job with these times.
        no_straggler: True if it is of a job without its late rank, which the profiler may have made late.
    """
    known = [rank.plain for rank in job.ranks if rank.plain is not None]
    if len(known) < len(job.ranks) or not step_ns:
        return None
    plain_ns = sum(plain.step_ns for plain in known) // len(known)
    recorded = _TimedJob(job, timed(job))
    heavier, lighter = _around(recorded, timed, plain_ns)
    above, below = heavier.times.step_ns, lighter.times.step_ns
    share = min(max((above - plain_ns) / (above - below), 0.0), 1.0) if above > below else 1.0
    scale = plain_ns / (above + share * (below - above))
    low, high = (
        sum(each) / len(each) / plain_ns
        for each in ([plain.low_ns for plain in known], [plain.high_ns for plain in known])
    )
    longer = predicted(*heavier)
    shorter = longer if lighter is heavier else predicted(*lighter)
    result = _between(longer, shorter, share, scale, (min(low, 1.0), max(high, 1.0)))
    if not no_straggler:
        return result
    as_recorded = longer if heavier is recorded else predicted(*recorded)
    return _if_recording_delays(result, as_recorded, step_ns - plain_ns)


def _around(recorded: _TimedJob, timed: Callable[[JoinedJob], JobTimes], plain_ns: int) -> tuple[_TimedJob, _TimedJob]:
    """Return jobs with more and with less host work than the plain program; the same twice if its step is alike."""
    lighter = (_TimedJob(each, timed(each)) for each in _lighter(recorded.job))
    longer, shorter = recorded, next(lighter, recorded)
    if abs(shorter.times.step_ns - plain_ns) <= DIFFER * plain_ns:
        return shorter, shorter
    if recorded.times.step_ns <= plain_ns:
        return recorded, recorded
    while shorter.times.step_ns > plain_ns and (tried := next(lighter, None)) is not None:
        longer, shorter = shorter, tried
    return longer, shorter


def _lighter(job: JoinedJob) -> Iterator[JoinedJob]:
    """Yield the job with ever less host work. Ranks with fewer such summaries keep their last."""
    for number in range(max(len(rank.lighter) for rank in job.ranks)):
        yield replace(job, ranks=tuple(rank.lighter[min(number, len(rank.lighter) - 1)] for rank in job.ranks))


def _if_recording_delays(result: JointWhatIf, recorded: JointWhatIf, overhead_ns: int) -> JointWhatIf:
    """Return the result for a late rank that may owe as much of its delay to recording as a step is longer by it."""
    step, gain, before_ns = result.predicted_step_ns, recorded.gain_ns, _step_ns(result)
    if step is None or gain is None:
        return result
    step = replace(step, high=max(step.high, before_ns - max(0, gain.low - max(0, overhead_ns))))
    return replace(result, predicted_step_ns=step, gain_ns=step.below(before_ns))


def _step_ns(result: JointWhatIf) -> int:
    return result.replayed_step_ns or 0


def _between(
    longer: JointWhatIf, shorter: JointWhatIf, share: float, scale: float, ends: tuple[float, float]
) -> JointWhatIf:
    """Return the figures at a share of the way from one prediction to the other, scaled; intervals also by `ends`."""

    def at(one: int, other: int) -> int:
        return round(scale * (one + share * (other - one)))

    def estimate(one: Estimate | None, other: Estimate | None) -> Estimate | None:
        if one is None or other is None:
            return None
        return Estimate(
            value=at(one.value, other.value),
            low=min(at(one.value, other.value), round(at(one.low, other.low) * ends[0])),
            high=max(at(one.value, other.value), round(at(one.high, other.high) * ends[1])),
        )

    def rank(one: JointRank, other: JointRank) -> JointRank:
        waits = (one.predicted_waited_ns, other.predicted_waited_ns)
        return replace(
            one,
            replayed_step_ns=at(one.replayed_step_ns, other.replayed_step_ns),
            waited_ns=at(one.waited_ns, other.waited_ns),
            predicted_step_ns=estimate(one.predicted_step_ns, other.predicted_step_ns),
            predicted_waited_ns=None if waits[0] is None or waits[1] is None else at(waits[0], waits[1]),
        )

    before, step = (
        at(_step_ns(longer), _step_ns(shorter)),
        estimate(longer.predicted_step_ns, shorter.predicted_step_ns),
    )
    gain = None if step is None else step.below(before)
    return replace(
        longer,
        replayed_step_ns=before,
        predicted_step_ns=step,
        gain_ns=gain,
        gain_pct=None if gain is None or not before else 100 * gain.value / before,
        ranks=tuple(map(rank, longer.ranks, shorter.ranks)),
        plain=True,
    )
