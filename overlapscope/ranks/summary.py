"""Ranks that made others wait, spread of the figures, differences between steps, and ranks worth a look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median_high, median_low
from typing import Literal

import numpy as np

from overlapscope.analysis.facts import facts_of
from overlapscope.analysis.figures import Window
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.median import median_ns
from overlapscope.catalog.causes import CommCause, CopyCause, IdleCause
from overlapscope.ranks.reduced import COLUMN_OF_TIME, ComparedRank, ReducedRank, spent_ns
from overlapscope.ranks.result import (
    CauseTime,
    Excess,
    LateIn,
    Meeting,
    RankRow,
    RankSpread,
    StepSkew,
    Straggler,
    Waiting,
    WorstRank,
    by_steps,
)
from overlapscope.ranks.waits import RankWaits, sum_by
from overlapscope.rules.finding import Finding

# -- Ranks that made others wait ---------------------------------------------------------------------

STRAGGLERS = 20
MAX_MEETINGS = 20
MAX_WAITING_RANKS = 8
COLLECTIVES = 5


def find_stragglers(ranks: Sequence[ComparedRank], waits: RankWaits) -> tuple[Straggler, ...]:
    """Return the ranks that others waited for, the surest cost first, without passed-on time.

    All ranks must have a number.
    """
    pairs, count, made_wait = waits.pairs, len(ranks), waits.by_rank.made_wait_ns
    sure, cost_ns = (sum_by(pairs.late, each, count) for each in (pairs.sure_ns, pairs.exposed_ns - pairs.passed_on_ns))
    order = np.lexsort((np.arange(count), -made_wait, -cost_ns, -sure))
    late = [place for place in order.tolist() if made_wait[place]][:STRAGGLERS]
    if not late:
        return ()
    steps, median_ns = steps_met(waits), _median_ns(ranks, waits)
    return tuple(_straggler(ranks, waits, place, steps=steps, median_ns=median_ns) for place in late)


def unseen_pct(ranks: Sequence[ComparedRank], waits: RankWaits, stragglers: Sequence[Straggler]) -> float | None:
    """Return by how much a rank that isn't clearly a straggler may delay the others, as `Straggler.lost_pct`."""
    named = {(late.rank, late.device) for late in stragglers if late.clear}
    places = [place for place, rank in enumerate(ranks) if (rank.rank, rank.device) not in named]
    met = [place for place in places if waits.by_rank.judged[place]]
    median_ns = _median_ns(ranks, waits) if met else 0
    if not median_ns:
        return None
    made_wait_ns, others = waits.by_rank.max_made_wait_ns, waits.by_rank.others
    return max(100 * int(made_wait_ns[place]) / int(others[place]) / median_ns for place in met)


def _median_ns(ranks: Sequence[ComparedRank], waits: RankWaits) -> int:
    """Return the median rank's time that delays are compared with: its steps, or else the time after its lead-in.

    The steps in which a clock jumped have no known lengths.
    """
    steps, average = steps_met(waits), [rank.step_ns for rank in ranks if rank.step_ns is not None]
    if steps and average and not waits.torn:
        return steps * median_low(average)
    return int(median_low(np.maximum(waits.steps.end_ns - waits.steps.begin_ns, 0).tolist()))


def worst_meetings(ranks: Sequence[ComparedRank], waits: RankWaits) -> tuple[Meeting, ...]:
    """Return the meetings with the longest waits."""
    return tuple(_meeting(ranks, waits, number) for number in _costliest(waits, None)[:MAX_MEETINGS])


def _straggler(ranks: Sequence[ComparedRank], waits: RankWaits, place: int, *, steps: int, median_ns: int) -> Straggler:
    rank, pairs = ranks[place], waits.pairs.take(waits.pairs.late == place)
    others, lost = int(waits.by_rank.others[place]), int(waits.by_rank.lost_ns[place])
    return Straggler(
        rank=rank.rank or 0,
        source=rank.source,
        device=rank.device,
        made_wait_ns=int(pairs.waited_ns.sum()),
        made_wait_exposed_ns=int(pairs.exposed_ns.sum()),
        passed_on_ns=int(pairs.passed_on_ns.sum()),
        last_in=int(waits.by_rank.last_in[place]),
        meetings=int(waits.by_rank.judged[place]),
        others=others,
        lost_ns=lost,
        lost_pct=100 * lost / median_ns if median_ns else None,
        lost_per_step_ns=lost // steps if steps else None,
        sure_pct=100 * int(pairs.sure_ns.sum()) / others / median_ns if median_ns else None,
        waiting=_longest(ranks, pairs.waiting, pairs.waited_ns, pairs.exposed_ns),
        waiting_ranks=len(pairs),
        collectives=_collectives(waits, _costliest(waits, place)),
    )


def steps_met(waits: RankWaits) -> int:
    """Return the number of steps that waits are of: those that all ranks judge, or else the most that a rank met in."""
    if waits.steps.names:
        return len(waits.steps.names)
    meetings = waits.meetings
    step = meetings.kernels.step[meetings.row]
    rank, _ = np.unique(np.stack([meetings.rank, step])[:, step >= 0], axis=1)
    return int(np.bincount(rank).max(initial=0))


def _costliest(waits: RankWaits, place: int | None) -> list[int]:
    """Return the numbers of the meetings with waits that count, the costliest first.

    With a place, only meetings in which that rank arrived last.
    """
    latest, counted = waits.latest, (waits.latest.waited_ns > 0) & waits.counted
    if place is not None:
        counted &= (waits.arrivals.rank[latest.row] == place) & (latest.together > 0)
    which = np.flatnonzero(counted)
    order = np.lexsort((which, -latest.waited_ns[which], -latest.exposed_ns[which]))
    numbers: list[int] = which[order].tolist()
    return numbers


def _longest(ranks: Sequence[ComparedRank], places: I64, waited: I64, exposed: I64) -> tuple[Waiting, ...]:
    """Return the ranks at these places that waited longest."""
    order = np.lexsort((places, -waited, -exposed))[:MAX_WAITING_RANKS]
    return tuple(
        Waiting(rank=ranks[int(places[row])].rank or 0, waited_ns=int(waited[row]), exposed_ns=int(exposed[row]))
        for row in order.tolist()
    )


def _collectives(waits: RankWaits, numbers: list[int]) -> tuple[LateIn, ...]:
    meetings, waited = waits.meetings, waits.latest.waited_ns[numbers]
    kind = meetings.kind[numbers]
    late_in = [
        LateIn(
            collective=recorded.collective,
            group=recorded.group,
            group_ranks=recorded.ranks,
            count=int((kind == number).sum()),
            made_wait_ns=int(waited[kind == number].sum()),
        )
        for number in distinct(kind).tolist()
        for recorded in [meetings.kernels.kinds[number]]
    ]
    return tuple(sorted(late_in, key=lambda late: -late.made_wait_ns)[:COLLECTIVES])


def _meeting(ranks: Sequence[ComparedRank], waits: RankWaits, number: int) -> Meeting:
    arrivals, latest, meetings, kernels = waits.arrivals, waits.latest, waits.meetings, waits.meetings.kernels
    entries = np.arange(meetings.first[number], meetings.first[number + 1])
    late = int(meetings.row[latest.row[number]])
    kind = kernels.kinds[int(kernels.kind[late])]
    entries = entries[arrivals.waited_ns[entries] > 0]
    waited, exposed = arrivals.waited_ns[entries], arrivals.exposed_ns[entries]
    step, elements = int(kernels.step[late]), int(kernels.elements[late])
    return Meeting(
        collective=kind.collective,
        group=kind.group,
        group_ranks=kind.ranks,
        group_size=kind.group_size if kind.group_size >= 0 else None,
        index=int(kernels.index[late]),
        step=f"ProfilerStep#{step}" if step >= 0 else None,
        elements=elements if elements >= 0 else None,
        late_rank=ranks[int(kernels.rank[late])].rank or 0,
        together=int(latest.together[number]),
        late_ns=int(latest.spread_ns[number]),
        error_ns=int(latest.error_ns[number]),
        waited_ns=int(latest.waited_ns[number]),
        waited_exposed_ns=int(latest.exposed_ns[number]),
        waiting=_longest(ranks, arrivals.rank[entries], waited, exposed),
        waiting_ranks=len(entries),
        window=Window(start_ns=int(kernels.start_ns[late]), end_ns=int(kernels.end_ns[late])),
    )


MAX_WORST_RANKS = 8
OF_EACH = 3
"""Maximum number of ranks named for each reason."""
MAX_EXCESSES = 5
MAX_FINDINGS = 3
MAX_CAUSES = 4
MIN_SHARE = 0.01
"""Minimum excess to report, as a share of the time compared."""
SLOW_STEP_RATIO = 1.05
"""Minimum length of a slow step, as a multiple of the median rank's step."""
INEFFICIENT_PCT = 5.0
"""Minimum distance below the median rank's efficiency at which a rank is inefficient, in percentage points."""

Why = Literal["makes-others-wait", "slowest-steps", "least-efficient"]


def top_causes(rank: ReducedRank) -> tuple[CauseTime, ...]:
    """Return the main causes of a rank's exposed copy and idle time, with their time in an average step."""
    judged = rank.judged
    if judged is None:
        return ()
    times = [
        *(CauseTime(subject="exposed-copy", cause=c, time_ns=ns) for c, ns in judged.exposed_copy_by_cause.items()),
        *(CauseTime(subject="idle", cause=c, time_ns=ns) for c, ns in judged.idle_by_cause.items()),
    ]
    explained = [time for time in times if time.time_ns and time.cause not in (CopyCause.LEAD_IN, IdleCause.LEAD_IN)]
    return tuple(sorted(explained, key=lambda time: (-time.time_ns, time.subject, time.cause))[:MAX_CAUSES])


def spreads(rows: Sequence[RankRow]) -> tuple[RankSpread, ...]:
    """Return each figure over the ranks that have it; `rows` have the figures that people read."""
    result: list[RankSpread] = []

    def add(name: str, unit: Literal["ns", "pct"], values: Iterable[float | None]) -> None:
        values_by_rank = sorted(
            (value, row.rank)
            for value, row in zip(values, rows, strict=True)
            if value is not None and row.rank is not None
        )
        if values_by_rank:
            result.append(_spread(name, unit, values_by_rank))

    add("step" if by_steps(rows) else "time", "ns", [row.span_ns for row in rows])
    names = list(rows[0].buckets.named()) if rows else []
    for name in names:
        add(name, "ns", [row.buckets.named()[name] for row in rows])
    add("waited", "ns", [row.waited_ns for row in rows])
    add("waited exposed", "ns", [row.waited_exposed_ns for row in rows])
    add("made wait", "ns", [row.made_wait_ns for row in rows])
    add("efficiency", "pct", [row.efficiency_pct for row in rows])
    add("hidden copy", "pct", [row.hidden_copy_pct for row in rows])
    add("exposed comm share", "pct", [row.exposed_comm_pct for row in rows])
    add("idle share", "pct", [100 * row.buckets.idle_ns / row.span_ns if row.span_ns else None for row in rows])
    return tuple(result)


def _spread(name: str, unit: Literal["ns", "pct"], values_by_rank: list[tuple[float, int]]) -> RankSpread:
    def at(pct: int) -> float:
        return values_by_rank[(len(values_by_rank) - 1) * pct // 100][0]

    return RankSpread(
        name=name,
        unit=unit,
        ranks=len(values_by_rank),
        min=values_by_rank[0][0],
        p25=at(25),
        median=at(50),
        p75=at(75),
        p95=at(95),
        max=values_by_rank[-1][0],
        min_rank=values_by_rank[0][1],
        max_rank=min(rank for value, rank in values_by_rank if value == values_by_rank[-1][0]),
    )


def step_skew(rows: Sequence[RankRow], names: Sequence[str]) -> tuple[StepSkew, ...]:
    """Return each step over the ranks that judge it."""
    skews = []
    for number, name in enumerate(names):
        spans = sorted(
            (span, row.rank) for row in rows if (span := row.step_spans_ns[number]) is not None and row.rank is not None
        )
        if spans:
            skews.append(
                StepSkew(
                    name=name,
                    ranks=len(spans),
                    min_ns=spans[0][0],
                    median_ns=median_ns(span for span, _ in spans),
                    max_ns=spans[-1][0],
                    slowest_rank=min(rank for span, rank in spans if span == spans[-1][0]),
                    fastest_rank=spans[0][1],
                )
            )
    return tuple(skews)


def worst_ranks(
    ranks: Sequence[ReducedRank], rows: Sequence[RankRow], stragglers: Sequence[Straggler], *, torn: bool
) -> tuple[WorstRank, ...]:
    """Return the ranks worth a look, those that make others wait first, and their excess time.

    Args:
        ranks: The ranks compared.
        rows: Their rows, in the same order, with the figures that people read.
        stragglers: Ranks that make others wait.
        torn: True if clocks jumped, so that lengths of steps may be wrong.
    """
    if len(ranks) < 2:
        return ()
    place = {(row.source, row.device): number for number, row in enumerate(rows)}
    late = [place[straggler.source, straggler.device] for straggler in stragglers if straggler.clear]
    slow = sorted((-row.span_ns, number) for number, row in enumerate(rows)) if by_steps(rows) and not torn else []
    weak = sorted(
        (row.efficiency_pct, number) for number, row in enumerate(rows) if row.efficiency_pct is not None and not torn
    )
    why = defaultdict[int, list[Why]](list)
    for number in late[:OF_EACH]:
        why[number].append("makes-others-wait")
    for step, number in slow[:OF_EACH]:
        if step < SLOW_STEP_RATIO * median_high(slow)[0]:
            why[number].append("slowest-steps")
    for efficiency, number in weak[:OF_EACH]:
        if efficiency < median_low(weak)[0] - INEFFICIENT_PCT:
            why[number].append("least-efficient")
    over, names, times = _compared(ranks)
    median = np.sort(times, axis=0)[(len(ranks) - 1) // 2]
    return tuple(
        WorstRank(
            rank=rows[number].rank or 0,
            source=rows[number].source,
            device=rows[number].device,
            why=tuple(reasons),
            excess=_excess(names, times[number], median),
            over=over,
            top_causes=rows[number].top_causes,
            findings=_findings(ranks[number], rows[number]),
        )
        for number, reasons in list(why.items())[:MAX_WORST_RANKS]
    )


def _findings(rank: ReducedRank, row: RankRow) -> tuple[Finding, ...]:
    """Return a rank's findings, but not on communication that mostly waits for another rank: joining shows that."""
    causes = (CommCause.STRAGGLER, CommCause.MESSAGE_WAIT)
    waits = 2 * sum(row.exposed_comm_by_cause.get(cause, 0) for cause in causes) > row.exposed_comm_ns
    return tuple(finding for finding in rank.findings if not (waits and finding.rule == "exposed-comm"))[:MAX_FINDINGS]


_Name = tuple[Literal["bucket", "exposed-copy", "idle"], str]


def _compared(ranks: Sequence[ReducedRank]) -> tuple[Literal["steps", "window"], list[_Name], I64]:
    """Return the time each rank (row) spent on each thing (column).

    It is of an average of the steps that all ranks have, or of the time after the lead-in if there are none.
    """
    names, common = list(COLUMN_OF_TIME), set.intersection(*(set(rank.steps.judged_names()) for rank in ranks))
    if not common:
        return "window", names, spent_ns(facts_of([rank.judged or rank.window for rank in ranks]))
    means = []
    for rank in ranks:
        compared = np.array([name in common for name in rank.steps.names], np.bool_) & rank.steps.judged
        means.append(np.rint(rank.spent_ns[compared].mean(axis=0)).astype(np.int64))
    return "steps", names, np.stack(means)


def _excess(names: Sequence[_Name], times: I64, median: I64) -> tuple[Excess, ...]:
    # The first five columns are the buckets, which add up to the time compared.
    least = max(1, round(MIN_SHARE * int(median[:5].sum())))
    excesses = [
        Excess(kind=kind, name=name, time_ns=time_ns, median_ns=usual)
        for (kind, name), time_ns, usual in zip(names, times.tolist(), median.tolist(), strict=True)
        if time_ns - usual >= least and name != CopyCause.LEAD_IN
    ]
    return tuple(sorted(excesses, key=lambda excess: -excess.more_ns)[:MAX_EXCESSES])
