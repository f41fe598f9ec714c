"""Sentences of a report of ranks: the verdict, missing data, and the reliability of the clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from statistics import median_low
from typing import Final, Literal

from msgspec import Struct

from overlapscope.base.words import Unit, capital, clean, ends, listed, noun_for, number_runs, percent, plural, unit_for
from overlapscope.catalog.causes import CAUSES
from overlapscope.ranks.comm_words import NAME_LIMIT, collective, mesh_sentences
from overlapscope.ranks.parts import plugin_parts
from overlapscope.ranks.result import MIN_PCT, Duplicate, Meeting, RankRow, RankSpread, RanksReport, Straggler, rows_of
from overlapscope.trace.servers import file_parts

Level = Literal["good", "fair", "poor", "unknown", "unusable"]

POOR_PCT = 5.0
"""Minimum percentage of the others' time that a straggler must cost for the level `poor`."""
_MAX_RANGES = 12
"""Maximum number of runs of ranks that are listed."""
_MAX_FILES = 5
_MORE_STRAGGLERS = 3
_MAX_CAUSES = 3
_WORTH_NAMING = 0.05
"""Minimum share of a cause of exposed communication to be named."""
_MIN_RANKS_FOR_MEDIAN = 4
"""Minimum number of ranks for which the median says more than a range."""


class RanksVerdict(Struct, frozen=True):
    """The verdict on the ranks: one word, and sentences that say why."""

    level: Level
    lead: str
    """The most important sentence."""
    rest: tuple[str, ...]
    """Further sentences."""

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join((self.lead, *self.rest))


def judge(report: RanksReport) -> RanksVerdict:
    """Judge who delays whom, what communication costs, and which ranks are absent."""
    level, lead = _waiting(report)
    late, rest = report.straggler, list[str]()
    if late is not None:
        rest += _why_late(report, late)
        rest += (sentence for module, part in plugin_parts(report) for sentence in module.why_late(report, part))
        rest += [*_profiler(report, late), *_more_stragglers(report)]
        if not_compared := _not_compared(report):
            rest.append(f"There may be more delays: {not_compared}.")
    elif level == "unknown":
        rest += _waited_for(report)
    if report.matching.judged:
        rest += _plugin_sentences(report)
    rest += [*_communication(report), *mesh_sentences(report), *_absent(report)]
    if level == "good" and (report.missing or report.unreadable):
        # The rank that all others wait for may be an absent one.
        level = "fair"
    return RanksVerdict(level, lead, tuple(rest))


def _plugin_sentences(report: RanksReport) -> Iterator[str]:
    return (sentence for module, part in plugin_parts(report) for sentence in module.sentences(part))


def _waiting(report: RanksReport) -> tuple[Level, str]:
    joined = sum(row.joined for row in report.ranks)
    if not report.ranks:
        return "unusable", "No rank could be read."
    if joined < 2:
        why = "There is only one rank" if joined else "No trace states its rank"
        return "unknown", f"{why}, so delays between ranks cannot be measured."
    straggler, matching, clocks = report.straggler, report.matching, report.clocks
    if straggler is not None:
        poor = (straggler.lost_pct or 0) >= POOR_PCT and not _by_profiler(report, straggler)
        return "poor" if poor else "fair", _straggler(report, straggler)
    if not matching.judged:
        if by_plugins := " ".join(_plugin_sentences(report)):
            return "fair", by_plugins
        has_collectives = matching.kernels > matching.not_collective
        why = "no collective of theirs could be compared." if has_collectives else "there are no collectives."
        if clocks.status == "unknown":
            reason = clean(clocks.reason, 500)
            first = reason.partition(" ")[0]
            why = reason if first.isupper() and len(first) > 1 else reason[:1].lower() + reason[1:]
        return "unknown", f"Delays between ranks cannot be measured: {why}"
    ranks, unseen = f"the balance of the {joined:,} ranks", report.unseen_pct
    if doubt := _not_compared(report):
        return "unknown", f"{capital(ranks)} is not judged: {doubt}."
    if unseen is None:
        return "unknown", f"{capital(ranks)} is not judged: clocks jumped in all steps that they share."
    known = f"Arrivals at collectives are known to {_duration(clocks.arrival_error_ns or 0)}"
    if unseen >= POOR_PCT:
        hidden = f"{known}, so delays of up to {percent(unseen)} of the time may be hidden"
        return "unknown", f"{hidden}: {ranks} is not judged."
    if unseen >= MIN_PCT:
        return "fair", f"No rank is seen to delay the others. {known}: unseen delays take {percent(unseen)} at most."
    late = next((late for late in report.stragglers[:1] if late.sure_pct), None)
    most = "" if late is None else f"; rank {late.rank} delays them most, by {cost(report, late)}"
    return "good", f"The {joined:,} ranks are balanced: no rank delays the others by 1% of their time{most}."


def _not_compared(report: RanksReport) -> str:
    """Return the largest share of exposed communication that was not compared; nothing if it is small."""
    most = max((row for row in report.ranks if row.joined), key=lambda row: row.unjudged_comm_pct)
    if most.unjudged_comm_pct < MIN_PCT:
        return ""
    return (
        "exposed communication that could not be compared between ranks takes up to "
        f"{percent(most.unjudged_comm_pct)} of the time (rank {most.rank})"
    )


def _waited_for(report: RanksReport) -> Iterator[str]:
    """Name a rank that idles while the others are in collectives that could not be compared."""
    shares = [(100 * row.buckets.idle_ns / row.span_ns, row) for row in report.ranks if row.joined and row.span_ns]
    if len(shares) < 2 or report.matching.kernels == report.matching.not_collective:
        # A stage of a pipeline that waits for messages doesn't wait for a slow rank.
        return
    *others, (idle_pct, idle) = sorted(shares, key=lambda share: share[0])
    usual_pct = median_low(share for share, _ in others)
    unjudged_pct = median_low(row.unjudged_comm_pct for _, row in others)
    if min(idle_pct - usual_pct, unjudged_pct - idle.unjudged_comm_pct) >= POOR_PCT:
        yield (
            f"Rank {idle.rank}'s {noun_for([idle.device_name])} is idle for {percent(idle_pct)} of the time (others: "
            f"{percent(usual_pct)}), while the others spend {percent(unjudged_pct)} in communication that could not be "
            "compared: they probably wait for it."
        )


def _straggler(report: RanksReport, late: Straggler) -> str:
    whom, average = ("the other rank", "") if late.others == 1 else ("each other rank", " on average")
    waited, mostly = [each.made_wait_ns for each in late.collectives], ""
    # Otherwise several collectives share the cost.
    if waited and 2 * waited[0] >= sum(waited):
        mostly = f", mostly in {collective(report, late.collectives[0])}"
    often = f"it comes last in {late.last_in:,} of {plural(late.meetings, 'collective')}{mostly}"
    return f"Rank {late.rank} delays {whom} by up to {cost(report, late)}{average}; {often}."


_DOES_LONGER: Final = {
    "bucket": "Rank {rank} computes {longer}",
    "idle": "Rank {rank}'s {gpu} is idle {longer}, by {cause}",
    "exposed-copy": "Rank {rank}'s copies are exposed {longer}, by {cause}",
}


def _why_late(report: RanksReport, late: Straggler) -> Iterator[str]:
    """State the main difference of the costliest straggler from the median rank, in the same steps."""
    for rank in report.worst:
        # The other buckets are the sums of their causes.
        reasons = [excess for excess in rank.excess if excess.kind != "bucket" or excess.name == "compute"]
        if (rank.rank, rank.device) == (late.rank, late.device) and reasons and rank.over == "steps":
            most = max(reasons, key=lambda excess: excess.more_ns)
            than = "the other rank" if late.others == 1 else "the median rank"
            does = _DOES_LONGER[most.kind].format(
                rank=rank.rank,
                longer=f"{_duration(most.more_ns, unit_of(report))} a step longer than {than}",
                cause=clean(most.name, 60),
                gpu=noun_for(row.device_name for row in report.ranks),
            )
            cause = None if most.kind == "bucket" else CAUSES[most.kind].get(most.name)
            places = (each.where for each in rank.findings if cause is not None and each.rule == cause.rule)
            at = next((where.line for where in places if where is not None), None)
            yield f"{does}{f', mostly at {clean(at, 80)}' if at else ''}."


def _profiler(report: RanksReport, late: Straggler) -> Iterator[str]:
    """State how much of a delay may come from the profiler, whose cost differs between ranks."""
    steps = _usual_steps(report)
    if late.lost_per_step_ns is None or steps is None:
        return
    recorded, plain = steps
    if 100 * (recorded - plain) >= POOR_PCT * recorded:
        unit = unit_of(report)
        part = "all" if _by_profiler(report, late) else f"up to {_duration(recorded - plain, unit)}"
        yield (
            f"Without the profiler a step takes {unit.text(plain)}, in the recording {unit.text(recorded)}, so {part} "
            "of this delay may be the profiler's."
        )


def _by_profiler(report: RanksReport, late: Straggler) -> bool:
    """Return whether the recording made steps longer by as much as this rank delays the others."""
    steps = _usual_steps(report)
    return steps is not None and late.lost_per_step_ns is not None and steps[0] - steps[1] >= late.lost_per_step_ns


def _usual_steps(report: RanksReport) -> tuple[int, int] | None:
    """Return the median rank's average step in the recording and without the profiler; None if that was not timed."""
    timed = [
        (row.judged.span_ns, row.plain_step_ns)
        for row in report.ranks
        if row.joined and row.judged is not None and row.judged.steps and row.plain_step_ns is not None
    ]
    return (median_low(each[0] for each in timed), median_low(each[1] for each in timed)) if timed else None


def cost(report: RanksReport, late: Straggler) -> str:
    """Return the cost of a rank to each of the others, such as `1.2 ms a step (3.4%)`."""
    if late.lost_per_step_ns is None:
        time = f"{_duration(late.lost_ns)} over the recording"
    else:
        time = f"{_duration(late.lost_per_step_ns, unit_of(report))} a step"
    return f"{time} ({percent(late.lost_pct)})" if late.lost_pct is not None else time


def _more_stragglers(report: RanksReport) -> Iterator[str]:
    if more := [f"rank {late.rank} ({percent(late.lost_pct)})" for late in report.stragglers[1:] if late.clear]:
        also = f"also {'delay' if len(more) > 1 else 'delays'} the others"
        yield f"{capital(listed(more, _MORE_STRAGGLERS))} {also}."


def _communication(report: RanksReport) -> Iterator[str]:
    """State the share of exposed communication and its main causes."""
    shares = spread(report, "exposed comm share")
    if shares is None or not shares.max:
        return
    low, high = percent(shares.min), percent(shares.max)
    part = f"{ends(low, high)} of the time"
    if shares.ranks >= _MIN_RANKS_FOR_MEDIAN and low != high:
        part = f"{percent(shares.median)} of the median rank's time ({ends(low, high)})"
    communication = report.communication
    longest = sorted(communication.exposed_by_cause.items(), key=lambda item: -item[1])[:_MAX_CAUSES]
    whole = communication.time.exposed_ns
    named = [f"{cause} {percent(100 * ns / whole)}" for cause, ns in longest if ns >= _WORTH_NAMING * whole > 0]
    yield f"Exposed communication takes {part}.{f' Its causes: {listed(named)}.' if named else ''}"


def _server_parts(twice: Duplicate) -> tuple[str, ...]:
    """Return the kinds of the files in which a server writes a rank's recording; empty for several recordings."""
    return file_parts([PurePath(source).name for source in twice.sources])


def _absent(report: RanksReport) -> Iterator[str]:
    again = sum(not _server_parts(twice) for twice in report.duplicated)
    counts = (
        (len(report.missing), "rank", "missing"),
        (len(report.unreadable), "trace", "unreadable"),
        (again, "rank", "recorded more than once"),
    )
    if absent := [f"{plural(count, noun)} {what}" for count, noun, what in counts if count]:
        yield f"Incomplete: {listed(absent)}."


# -- Missing data ----------------------------------------------------------------------------------


def doubts(report: RanksReport) -> tuple[str, ...]:
    """Return one sentence for each rank that is missing, unreadable, duplicated or doubtful, and for each note."""
    sentences = []
    if report.missing:
        expected = f" of {report.expected:,} expected" if report.expected is not None else ""
        sentences.append(f"Missing: {plural(len(report.missing), 'rank')}{expected}: {runs(report.missing)}.")
    for unreadable in report.unreadable[:_MAX_FILES]:
        name = f"rank {unreadable.rank}, " if unreadable.rank is not None else ""
        sentences.append(f"Unreadable: {name}{clean(unreadable.source, NAME_LIMIT)}: {clean(unreadable.reason, 500)}")
    sentences += _more(len(report.unreadable), "more unreadable trace")
    divided = Counter(server_parts for twice in report.duplicated if (server_parts := _server_parts(twice)))
    for kinds, count in divided.items():
        sentences.append(
            f"{plural(count, 'rank')} {'has' if count == 1 else 'have'} a file for each of {listed(kinds)}, as a "
            f"server writes them; those of {kinds[0]} are compared."
        )
    again = [twice for twice in report.duplicated if not _server_parts(twice)]
    for twice in again[:_MAX_FILES]:
        files = listed([clean(source, NAME_LIMIT) for source in twice.sources])
        used = clean(twice.sources[0], NAME_LIMIT)
        sentences.append(f"Recorded more than once: rank {twice.rank} in {files}; {used} is compared.")
    sentences += _more(len(again), "more rank", " recorded more than once")
    doubted: defaultdict[tuple[str, str], list[RankRow]] = defaultdict(list)
    for row in report.ranks:
        if row.trust != "trusted":
            doubted[row.trust, next(iter(row.doubt_ids), "")].append(row)
    # A property of few ranks distinguishes them from the others.
    alike = sorted(doubted.values(), key=len)
    for rows in alike[:_MAX_FILES]:
        first = rows[0]
        what = "Unusable" if first.trust == "unusable" else "Some figures may be wrong"
        whose = f"{capital(row_name(first))}: " if len(rows) > 1 else ""
        why = f". {whose}{clean(first.doubts[0], 300)}" if first.doubts else "."
        more = f" (overlapscope explain {first.doubt_ids[0]})" if first.doubt_ids else ""
        sentences.append(f"{what}: {_listed_rows(rows)}{why}{more}")
    sentences += _more(len(alike), "more doubt")
    return (*sentences, *(clean(note, 1000) for note in report.notes))


def _more(count: int, noun: str, suffix: str = "") -> list[str]:
    others = count - _MAX_FILES
    return [f"{plural(others, noun)}{suffix}; the JSON names all."] if others > 0 else []


def runs(ranks: Sequence[int]) -> str:
    """Return ranks as text, such as `3, 8 to 15, 17`; `and more` if there are too many."""
    texts = number_runs(ranks)
    return f"{', '.join(texts[:_MAX_RANGES])}{' and more' if len(texts) > _MAX_RANGES else ''}"


def _listed_rows(rows: Sequence[RankRow]) -> str:
    """Return the names of some rows: the ranks as runs of numbers, and files of others by name, the first few."""
    ranks = {row.rank for row in rows if row.joined and row.rank is not None}
    names = dict.fromkeys(row_name(row) for row in rows if not row.joined or row.rank is None)
    numbers = [f"rank{'s' if len(ranks) > 1 else ''} {listed(number_runs(ranks), _MAX_FILES)}"] if ranks else []
    return listed([*numbers, *names], _MAX_FILES)


# -- Clocks ----------------------------------------------------------------------------------------


def clocks(report: RanksReport) -> tuple[str, ...]:
    """Return sentences on the clocks, and on what could be compared."""
    state, matching = report.clocks, report.matching
    offset, error = (_duration(ns or 0) for ns in (state.largest_offset_ns, state.largest_error_ns))
    if state.status == "shared":
        head = f"The clocks agree within {error}."
    elif state.status == "estimated":
        head = f"Clocks differ by up to {offset} and were aligned with rank {state.reference_rank} to within {error}."
    else:
        head = "The offsets between the clocks are unknown, so arrival times cannot be compared."
    sentences = [head, clean(state.reason, 1000)]
    if matching.kernels:
        sentences.append(
            f"{matching.matched:,} of {plural(matching.kernels, 'communication kernel')} were matched in "
            f"{plural(matching.meetings, 'collective')}; arrival times are known in {matching.judged:,} of these."
        )
    if state.arrival_error_ns is not None:
        error = _duration(state.arrival_error_ns)
        sentences.append(f"The time between two arrivals is known to {error} (the median collective).")
    if matching.paired:
        sentences.append(f"{plural(matching.paired, 'kernel')} that send or receive were paired.")
    return tuple(sentence for sentence in sentences if sentence)


# -- Names and units -------------------------------------------------------------------------------


def row_name(row: RankRow, *, device: bool = False) -> str:
    """Return a row's name.

    It is `rank 5`, with the file where another trace of that rank is compared, or the file alone where the rank is
    unknown.
    """
    file = clean(PurePath(row.source).name, NAME_LIMIT)
    name = file if row.rank is None else f"rank {row.rank}" if row.joined else f"rank {row.rank} ({file})"
    return f"{name}, device {row.device}" if device else name


def late_name(meeting: Meeting) -> str:
    """Return the rank that arrived last, as far as the clocks tell."""
    if not meeting.together:
        return "unknown"
    more = meeting.together - 1
    return f"rank {meeting.late_rank}{f' or {more} more' if more else ''}"


def spread(report: RanksReport, name: str) -> RankSpread | None:
    """Return a figure over all ranks; None if no rank has it."""
    return next((figure for figure in report.spreads if figure.name == name and figure.ranks), None)


def unit_of(report: RanksReport) -> Unit:
    """Return one unit for times of steps, or for whole windows if there are no steps."""
    longest = max((step.max_ns for step in report.steps), default=0)
    return unit_for(longest or max((row.span_ns for row in rows_of(report)), default=0))


def _duration(ns: int, unit: Unit | None = None) -> str:
    """Return a time in the given unit, or in the best one where it would have too few digits."""
    return (unit if unit is not None and 10 * ns >= unit.ns else unit_for(ns)).text(ns)
