"""What a report of ranks says in sentences: the answer, what is missing, and how far the clocks can be believed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from statistics import median_low
from typing import Final, Literal

from msgspec import Struct

from overlapscope.base.words import Unit, clean, listed, percent, plural, unit_for
from overlapscope.ranks.result import LEAST_PCT, LateIn, Meeting, RankRow, RanksReport, Spread, Straggler

Level = Literal["good", "fair", "poor", "unknown", "unusable"]

TONES: Final[dict[Level, str]] = {
    "good": "good",
    "fair": "fair",
    "poor": "poor",
    "unknown": "fair",
    "unusable": "muted",
}
"""The palette's name of each level's colour."""

POOR_PCT = 5.0
"""A straggler that costs each of the others this share of their time or more."""
NAME_LIMIT = 120
_MOST_RANGES = 12
"""Runs of ranks that are named one by one."""
_MOST_FILES = 5
_MORE_STRAGGLERS = 3
_SHORT = 24
"""Ranks of a group are named where that takes no more characters."""
_FEW = 4
"""From so many ranks on the median says more than all of them do."""


class Verdict(Struct, frozen=True):
    """The answer: one word, the sentence that matters most, and what else is worth knowing."""

    level: Level
    first: str
    rest: tuple[str, ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join((self.first, *self.rest))


def judge(report: RanksReport) -> Verdict:
    """Who makes whom wait, what communication costs, and who is absent."""
    level, first = _waiting(report)
    rest = [*_more_stragglers(report), *_communication(report), *_absent(report)]
    if level == "good" and (report.missing or report.unreadable):
        # The one that all wait for may be among those that are not here.
        level = "fair"
    return Verdict(level, first, tuple(rest))


def _waiting(report: RanksReport) -> tuple[Level, str]:
    rows = [row for row in report.ranks if row.joined]
    joined = len(rows)
    if not report.ranks:
        return "unusable", "No rank could be read."
    if joined < 2:
        why = "There is only one rank" if joined else "No trace states its rank"
        return "unknown", f"{why}, so delays between ranks cannot be measured."
    straggler = report.straggler
    if straggler is not None:
        return "poor" if (straggler.lost_pct or 0) >= POOR_PCT else "fair", _straggler(report, straggler)
    if not report.matching.judged:
        reason = f"Delays between ranks cannot be measured: {_lower(clean(report.clocks.reason, 500))}"
        return "unknown", " ".join((reason, *_waited_for(rows)))
    if unjudged := _unjudged(report, rows):
        return "unknown", " ".join((unjudged, *_waited_for(rows)))
    said = f"The {joined:,} ranks are balanced: no rank delays the others by 1% of their time."
    if report.stragglers:
        most = report.stragglers[0]
        said = f"{said[:-1]}; rank {most.rank} delays them most, by {cost(report, most)}."
    return "good", said


def _unjudged(report: RanksReport, rows: Sequence[RankRow]) -> str | None:
    """Return why ranks can't be called balanced: much exposed communication that could not be compared."""
    most = max(rows, key=lambda row: row.unjudged_comm_pct)
    if most.unjudged_comm_pct < LEAST_PCT:
        return None
    return (
        f"The balance of the {len(rows):,} ranks is not judged: exposed communication that could not be compared "
        f"between ranks takes up to {percent(most.unjudged_comm_pct)} of the time (rank {most.rank})."
    )


def _waited_for(rows: Sequence[RankRow]) -> Iterator[str]:
    """Name a rank whose GPU idles while the others are in communication that could not be compared."""
    idle = max(rows, key=lambda row: row.idle_pct)
    others = [row for row in rows if row is not idle]
    usual_pct = median_low(row.idle_pct for row in others)
    unjudged_pct = median_low(row.unjudged_comm_pct for row in others)
    if min(idle.idle_pct - usual_pct, unjudged_pct - idle.unjudged_comm_pct) >= POOR_PCT:
        idle_share = f"{percent(idle.idle_pct)} of the time (others: {percent(usual_pct)})"
        yield (
            f"Rank {idle.rank}'s GPU is idle for {idle_share}, while the others spend {percent(unjudged_pct)} in such "
            "communication: they probably wait for it."
        )


def _straggler(report: RanksReport, late: Straggler) -> str:
    loses = (
        f"delays the other rank by up to {cost(report, late)}"
        if late.others == 1
        else f"delays each other rank by up to {cost(report, late)} on average"
    )
    often = f"it comes last in {late.last_in:,} of {plural(late.meetings, 'collective')}{_mostly(late)}"
    return f"Rank {late.rank} {loses}; {often}."


def _mostly(straggler: Straggler) -> str:
    waited = [late.made_wait_ns for late in straggler.collectives]
    if not waited or 2 * waited[0] < sum(waited):
        # It is about several.
        return ""
    return f", mostly in {collective(straggler.collectives[0])}"


def cost(report: RanksReport, late: Straggler) -> str:
    """What a rank costs each of the others: `1.2 ms a step (3.4%)`."""
    told = lost(report, late)
    return f"{told} ({percent(late.lost_pct)})" if late.lost_pct is not None else told


def lost(report: RanksReport, late: Straggler) -> str:
    """`1.2 ms a step`."""
    if late.lost_per_step_ns is None:
        return f"{_text(late.lost_ns)} over the recording"
    return f"{_text(late.lost_per_step_ns, unit_of(report))} a step"


def _more_stragglers(report: RanksReport) -> Iterator[str]:
    more = [late for late in report.stragglers[1:] if late.clear]
    if not more or report.straggler is None:
        return
    who = listed([f"rank {late.rank} ({percent(late.lost_pct)})" for late in more], _MORE_STRAGGLERS)
    yield f"{capital(who)} also {'delay' if len(more) > 1 else 'delays'} the others."


def _communication(report: RanksReport) -> Iterator[str]:
    shares = spread(report, "exposed comm share")
    if shares is None or not shares.max:
        return
    between = percent(shares.min) if shares.min == shares.max else f"{percent(shares.min)} to {percent(shares.max)}"
    if shares.ranks < _FEW or shares.min == shares.max:
        yield f"Exposed communication takes {between} of the time."
    else:
        yield f"Exposed communication takes {percent(shares.median)} of the median rank's time ({between})."


def _absent(report: RanksReport) -> Iterator[str]:
    absent = [
        *([f"{plural(len(report.missing), 'rank')} missing"] if report.missing else []),
        *([f"{plural(len(report.unreadable), 'trace')} unreadable"] if report.unreadable else []),
        *([f"{plural(len(report.duplicated), 'rank')} recorded more than once"] if report.duplicated else []),
    ]
    if absent:
        yield f"Incomplete: {listed(absent)}."


# -- what is not there ----------------------------------------------------------------------------


def doubts(report: RanksReport) -> tuple[str, ...]:
    """What is missing, unreadable or there twice, and what could not be known, one sentence each."""
    said = []
    if report.missing:
        expected = f" of {report.expected:,} expected" if report.expected is not None else ""
        said.append(f"Missing: {plural(len(report.missing), 'rank')}{expected}: {runs(report.missing)}.")
    for unreadable in report.unreadable[:_MOST_FILES]:
        name = f"rank {unreadable.rank}, " if unreadable.rank is not None else ""
        said.append(f"Unreadable: {name}{clean(unreadable.source, NAME_LIMIT)}: {clean(unreadable.reason, 500)}")
    said += _more(len(report.unreadable), "more unreadable trace")
    for twice in report.duplicated[:_MOST_FILES]:
        files = listed([clean(source, NAME_LIMIT) for source in twice.sources])
        used = f"{clean(twice.used, NAME_LIMIT)} is compared" if twice.used is not None else "none of them is compared"
        said.append(f"Recorded more than once: rank {twice.rank} in {files}; {used}.")
    said += _more(len(report.duplicated), "more rank", " recorded more than once")
    alike = _doubted_alike(report)
    for rows in alike[:_MOST_FILES]:
        first = rows[0]
        what = "Unusable" if first.trust == "unusable" else "Trust is degraded"
        why = f"; {row_name(first)}: {clean(first.doubts[0], 300)}" if first.doubts else "."
        said.append(f"{what}: {listed_rows(rows)}{why}")
    said += _more(len(alike), "more doubt")
    return (*said, *(clean(note, 1000) for note in report.notes))


def _doubted_alike(report: RanksReport) -> list[list[RankRow]]:
    """The rows that are not trusted, together where the first doubt about them is the same but for its numbers; what
    few have comes first, since it is what tells them from the others."""
    alike: defaultdict[tuple[str, str], list[RankRow]] = defaultdict(list)
    for row in report.ranks:
        if row.trust != "trusted":
            alike[row.trust, re.sub(r"\d+", "#", next(iter(row.doubts), ""))].append(row)
    return sorted(alike.values(), key=len)


def _more(count: int, noun: str, behind: str = "") -> list[str]:
    left = count - _MOST_FILES
    return [f"{plural(left, noun)}{behind}; the JSON names all."] if left > 0 else []


def runs(ranks: Sequence[int]) -> str:
    """`3, 8 to 15, 17`: ascending numbers, at least one; those that follow one another as one."""
    edges = [0, *(place for place, (rank, after) in enumerate(pairwise(ranks), 1) if after != rank + 1), len(ranks)]
    told = []
    for start, end in pairwise(edges):
        first, last = ranks[start], ranks[end - 1]
        told += [f"{first} to {last}"] if last > first + 1 else [str(rank) for rank in ranks[start:end]]
    left = len(told) - _MOST_RANGES
    return f"{', '.join(told[:_MOST_RANGES])}{' and more' if left > 0 else ''}"


def listed_rows(rows: Sequence[RankRow]) -> str:
    """The first few by name, each once, and how many more there are."""
    return listed(dict.fromkeys(map(row_name, rows)), _MOST_FILES)


# -- clocks ---------------------------------------------------------------------------------------


def clocks(report: RanksReport) -> tuple[str, ...]:
    """How the clocks stand to one another, and what could be compared."""
    state, matching = report.clocks, report.matching
    if state.status == "estimated":
        offset = "" if state.largest_offset_ns is None else f" by up to {_text(state.largest_offset_ns)}"
        head = f"Clocks differ{offset} and were aligned with rank {state.reference_rank}."
    elif state.status == "shared":
        head = "The ranks share one clock."
    else:
        head = "The offsets between the clocks are unknown, so arrival times cannot be compared."
    said = [head, clean(state.reason, 1000)]
    if matching.kernels:
        said.append(
            f"{matching.matched:,} of {plural(matching.kernels, 'communication kernel')} were matched in "
            f"{plural(matching.meetings, 'collective')}; arrival times are known in {matching.judged:,} of these."
        )
    return tuple(sentence for sentence in said if sentence)


# -- names and units ------------------------------------------------------------------------------


def row_name(row: RankRow, *, device: bool = False) -> str:
    """`rank 5`, with its file where another trace of that rank is compared; the file alone where no rank is known."""
    file = clean(PurePath(row.source).name, NAME_LIMIT)
    name = file if row.rank is None else f"rank {row.rank}" if row.joined else f"rank {row.rank} ({file})"
    return f"{name}, device {row.device}" if device else name


def collective(met: LateIn | Meeting) -> str:
    """`allreduce`, `allreduce of group dp [0, 8]`."""
    ranks = clean(met.group_ranks)
    whose = [clean(met.group, 40), ranks if len(ranks) <= _SHORT else ""]
    group = " ".join(filter(None, whose))
    return f"{clean(met.collective, 80)}{f' of group {group}' if group else ''}"


def meeting_name(meeting: Meeting) -> str:
    """`allreduce of group dp, no. 12`: counted from 0, as in the JSON."""
    return f"{collective(meeting)}, no. {meeting.index}"


def late_name(meeting: Meeting) -> str:
    """Who came last, as far as the clocks tell."""
    if not meeting.together:
        return "unknown"
    more = meeting.together - 1
    return f"rank {meeting.late_rank}{f' or {more} more' if more else ''}"


def step_note(report: RanksReport, drawn: int) -> str:
    """What the map of steps shows, and how many steps of the report are in it."""
    said = "How much longer than the median rank each rank took for each step."
    count = len(report.steps)
    return (
        f"{said} It shows the {drawn:,} of {count:,} steps in which the ranks differ most." if drawn < count else said
    )


def spread(report: RanksReport, name: str) -> Spread | None:
    """A figure over all ranks; None where no rank has it."""
    return next((known for known in report.spreads if known.name == name and known.ranks), None)


def unit_of(report: RanksReport) -> Unit:
    """One unit for what is said of steps, or of the whole windows where there is none."""
    step = max((known.max_ns for known in report.steps), default=0)
    return unit_for(step or max((row.span_ns for row in report.ranks), default=0))


def _text(ns: int, unit: Unit | None = None) -> str:
    """A time in the given unit, in its own where it would read badly."""
    own = unit_for(ns)
    return (unit if unit is not None and 100 * ns >= unit.ns else own).text(ns)


def capital(text: str) -> str:
    """A text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def _lower(sentence: str) -> str:
    """A sentence as the end of another."""
    first = sentence.partition(" ")[0]
    return sentence if first.isupper() and len(first) > 1 else sentence[:1].lower() + sentence[1:]
