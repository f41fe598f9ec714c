"""What a check, an explanation of a budget and a baseline consist of when they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import NOTHING, clean, listed, plural
from overlapscope.budgets import words
from overlapscope.budgets.baseline import STEPS, Baseline, BaselineSeries, doubts, place
from overlapscope.budgets.explain import Explanation
from overlapscope.budgets.places import JudgedPlace
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.rulings import Ruling
from overlapscope.budgets.samples import series
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, FailureReason, Outcome, Status, cannot_be_judged
from overlapscope.documents import table
from overlapscope.documents.model import (
    Block,
    Card,
    Cards,
    Document,
    Heading,
    Items,
    Room,
    Section,
    Span,
    Text,
    Words,
    detail,
    panel,
)
from overlapscope.documents.table import Cell, Column, Table, Tone

COMMENT_BYTES: Final = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""
SUMMARY_BYTES: Final = 1_000_000
"""GitHub refuses a step's summary of more than 1 MiB."""
PAGE_BYTES: Final = 900_000
"""So that a page stays below 1 MB."""
MOST_STEPS: Final = 50
"""That an explanation lists at each place."""
_FEW_REASONS: Final = 2
"""Of each verdict, in the short form."""
_FEW_KEPT: Final = 10
"""Budgets that passed, in the short form."""
_SHORT: Final = ("skipped", "pass")
"""A line says it all: why something is skipped, a warning says once."""
_TONES: Final[dict[Status | Outcome, Tone]] = {"pass": "good", "fail": "poor"}
"""All else is fair."""
_LIMIT = 100
"""Of names in a baseline."""


# -- a check --------------------------------------------------------------------------------------


def log(result: CheckResult) -> Document:
    """The check in a terminal: the outcome, what failed and why, and what passed."""
    return Document(_title(result), (*_outcome(result), *_sections(result), *_kept(result)))


def page(result: CheckResult, room: Room, *, folded: bool = False) -> Document:
    """The check as a file is read: the outcome first. There is only so much room; what does not fit is counted.
    `folded`: what lies behind each verdict is shown by a click."""
    blocks: list[Block] = [Heading(_title(result), 1), *_outcome(result)]
    if result.warnings:
        said = [Items((words.prose(warning),)) for warning in result.warnings]
        count = room.part(8).fitting(said)
        blocks += [panel("Warnings", Items(tuple(item.items[0] for item in said[:count])), *_rest(said, count))]
    told = [verdict for verdict in result.verdicts if verdict.status != "pass"]
    blocks += _fitted(_table(told), room.part(4))
    sections = [replace(section, folded=folded) for section in _sections(result, full=True)]
    count = room.part(4).fitting(sections)
    blocks += [*sections[:count], *_rest(sections, count)]
    passed = [verdict for verdict in result.verdicts if verdict.status == "pass"]
    if passed:
        title = f"{len(passed):,} passed"
        blocks.append(panel(title, *_fitted(_table(passed), room.part(4)), folded=folded))
    blocks.append(Text(f"{result.tool.name} {result.tool.version}", tone="muted"))
    return Document(_title(result), tuple(blocks))


def _title(result: CheckResult) -> str:
    return f"overlapscope check: {words.OUTCOME[result.outcome]}"


def _outcome(result: CheckResult) -> Iterator[Block]:
    tone = _TONES.get(result.outcome, "fair")
    yield Text(words.prose(result.summary), tone, badge=words.OUTCOME[result.outcome])
    if result.program is not None:
        yield Text(words.prose(result.program), tone="muted")
    if len(result.sources) > 1:
        yield Text(words.judged(result), tone="muted")


def _kept(result: CheckResult) -> Iterator[Block]:
    short = [verdict for verdict in result.verdicts if verdict.status in _SHORT]
    if short:
        # The name of a budget says where and what is allowed.
        yield replace(_table(short).without(("on", "limit")), few=_FEW_KEPT)


def _has_reasons(verdict: BudgetVerdict) -> bool:
    return verdict.status in ("fail", "accepted") and bool(verdict.reasons)


def _table(verdicts: Iterable[BudgetVerdict]) -> Table:
    columns = (
        table.words("", heads=True),
        table.words("budget", flexible=True),
        table.words("on", flexible=True, id="on"),
        Column("value"),
        Column("limit", id="limit"),
    )
    lines = (
        (
            Cell(_word(verdict), tone=_tone(verdict)),
            words.name(verdict.budget),
            words.about(verdict.subject),
            *words.figures(verdict),
        )
        for verdict in verdicts
    )
    return Table("", columns, table.rows(lines))


def _fitted(whole: Table, room: Room) -> Iterator[Block]:
    """As many rows of a table as there is room for."""
    count = room.rows(whole)
    yield replace(whole, rows=whole.rows[:count])
    yield from _rest(whole.rows, count)


def _rest(all_of_them: Sequence[object], count: int) -> tuple[Block, ...]:
    left = len(all_of_them) - count
    return (Text(words.left_out(left), tone="muted"),) if left else ()


def _word(verdict: BudgetVerdict) -> str:
    """How a verdict stands, in a word; and that it does not count, where that matters."""
    if words.counted(verdict) or verdict.status not in ("fail", "unknown"):
        return "FAIL" if verdict.status == "fail" else verdict.status
    if verdict.status == "fail":
        return "warn (does not count)"
    return "unknown (warning)" if verdict.level == "warn" else "unknown (allowed)"


def _tone(verdict: BudgetVerdict) -> Tone:
    return "fair" if verdict.status == "fail" and not verdict.counts else _TONES.get(verdict.status, "fair")


def _sections(result: CheckResult, *, full: bool = False) -> Iterator[Section]:
    """One for each verdict that needs more than a line; `full` names what it was judged on in the title."""
    explained: set[str] = set()
    for alike in _by_reason(verdict for verdict in result.verdicts if verdict.status not in _SHORT):
        verdict = alike[0]
        blocks: tuple[Block, ...]
        if len(alike) > 1:
            rules = listed([other.metric for other in alike], len(alike))
            name, blocks = plural(len(alike), "rule"), (Text(f"{rules}: {words.prose(_why(verdict) or '')}"),)
        else:
            name = words.title(verdict) if full else words.name(verdict.budget)
            blocks = tuple(_verdict(verdict, explained))
        yield Section(blocks, f"{_word(verdict)} {name}", "panel", _tone(verdict))


def _by_reason(verdicts: Iterable[BudgetVerdict]) -> Iterable[list[BudgetVerdict]]:
    """The verdicts, those of rules that cannot be judged for the same reason together."""
    groups: dict[tuple[str, str], list[BudgetVerdict]] = {}
    for verdict in verdicts:
        why = _why(verdict)
        key = (verdict.budget, verdict.message) if why is None else (_word(verdict), why)
        groups.setdefault(key, []).append(verdict)
    return groups.values()


def _verdict(verdict: BudgetVerdict, explained: set[str]) -> Iterator[Block]:
    if verdict.value is not None or verdict.limit is not None:
        value, limit = words.figures(verdict)
        before = "" if verdict.baseline is None else show(verdict.baseline, verdict.unit)
        figures = {"value": value, "limit": limit, "baseline": before}
        yield Cards(tuple(Card(name, figure) for name, figure in figures.items() if figure))
    said, exception = words.prose(verdict.message), words.prose(verdict.exception or "")
    yield Text(said)
    if exception and exception not in said:
        yield Text(exception, tone="muted")
    if _has_reasons(verdict):
        reasons = verdict.reasons[: words.REASONS]
        yield Items(tuple(_reason(reason, explained) for reason in reasons), few=_FEW_REASONS)
        more = len(verdict.reasons) - len(reasons)
        if more:
            yield from detail("all reasons", (Text(f"{more} more; --format json lists all.", tone="muted"),))


def _why(verdict: BudgetVerdict) -> str | None:
    """The reason for which a rule cannot be judged; None for any other verdict."""
    why = verdict.message.removeprefix(cannot_be_judged(verdict.metric))
    return None if verdict.status != "unknown" or why == verdict.message else why


def _reason(reason: FailureReason, explained: set[str] | None) -> Words:
    """What lies behind a failure. What to change is said once for each rule in `explained`."""
    said = [Span(words.prose(reason.title), strong=True)]
    where = words.within(reason)
    said += [Span(f"at {where}", "muted")] if where else []
    said += [Span(line, detail=True) for line in _lines(reason.detail)]
    again = reason.rule is not None and explained is not None and reason.rule in explained
    if not again:
        said += [Span(line, "accent", detail=number > 0) for number, line in enumerate(_lines(reason.advice))]
    if reason.rule is not None:
        rule = words.name(reason.rule)
        said.append(Span(f"See {rule} above." if again else f"More: overlapscope explain {rule}", "muted"))
        if explained is not None:
            explained.add(reason.rule)
    return (said[0], *(replace(span, text=f"\n{span.text}") for span in said[1:]))


def _lines(text: str) -> list[str]:
    return [clean(line, words.PROSE_LIMIT) for line in text.split("\n") if line]


# -- one budget explained -------------------------------------------------------------------------


def explanation(explanations: Iterable[Explanation]) -> Document:
    """All there is to know about some budgets."""
    blocks: list[Block] = []
    for explained in explanations:
        verdict = explained.verdict
        blocks.append(
            Section((Text(words.prose(verdict.message)),), f"{_word(verdict)} {words.name(verdict.budget)}", "panel")
        )
        for title, said in (
            ("Metric", f"{verdict.metric}: {explained.meaning}."),
            ("Limit", explained.limit),
            ("How it is judged", explained.way),
        ):
            blocks += [panel(title, Text(words.prose(said)))] if said else []
        blocks += [
            _values(name, ruling, ruling.place) for name, ruling in explained.rulings if ruling.place is not None
        ]
        if verdict.reasons:
            blocks.append(panel("Why", Items(tuple(_reason(reason, None) for reason in verdict.reasons))))
    return Document("overlapscope check", tuple(blocks))


def _values(name: str, ruling: Ruling, where: JudgedPlace) -> Table:
    """What one place had, sample by sample."""
    budget, unit = where.budget, where.budget.what.unit
    samples = series(where.samples, budget.what, budget.direction)
    numbers = iter(distinct(samples.numbers, unit) if samples.numbers else ())
    cells = [next(numbers) if value is not None else NOTHING for value in samples.values]
    lines = [(clean(sample, words.NAME_LIMIT), cell) for sample, cell in zip(samples.names, cells, strict=True)]
    notes = []
    if len(lines) > MOST_STEPS:
        notes.append(f"{len(lines) - MOST_STEPS:,} more are not listed.")
    if budget.sample == "step" and where.device is not None:
        left_out = len(where.device.steps) - len(where.samples)
        if left_out:
            notes.append(f"{plural(left_out, 'step')} left out: cut by the recording, warm-up, or skipped.")
    if ruling.baseline is not None and ruling.low is not None and ruling.high is not None:
        low, high = distinct((ruling.low, ruling.high), unit)
        notes.append(f"The baseline is {show(ruling.baseline, unit)}; the change lies between {low} and {high} (99%).")
    if not lines:
        notes.append(f"{ruling.sentence}.")
    columns = (table.words(name or "Values", heads=True), Column("value"))
    return Table(name or "Values", columns, table.rows(lines[:MOST_STEPS]), " ".join(notes))


# -- a baseline -----------------------------------------------------------------------------------


def baseline_document(baseline: Baseline) -> Document:
    """Where a baseline was made, and the typical value of each metric."""
    blocks: list[Block] = [_made_on(baseline)]
    blocks += [_metrics(baseline, device.rank, device.device) for device in baseline.devices]
    blocks += map(Text, doubts(baseline))
    return Document("overlapscope baseline", tuple(blocks))


def _made_on(baseline: Baseline) -> Table:
    made = baseline.environment
    recorded = [name.replace("_", " ") for name, given in sorted(made.flags.items()) if given]
    lines = (
        ("GPU", ", ".join(clean(name, _LIMIT) for name in made.gpus) or NOTHING),
        ("ranks", NOTHING if made.world_size is None else str(made.world_size)),
        ("torch", clean(made.torch or NOTHING, _LIMIT)),
        ("CUDA", clean(made.cuda or NOTHING, _LIMIT)),
        ("driver's CUDA", clean(made.driver or NOTHING, _LIMIT)),
        ("also recorded", clean(", ".join(recorded), _LIMIT) or "nothing"),
        ("written by", f"{clean(baseline.tool.name, _LIMIT)} {clean(baseline.tool.version, _LIMIT)}"),
    )
    return Table("Made on", (table.words("made on", heads=True), table.words("", flexible=True)), table.rows(lines))


def _metrics(baseline: Baseline, rank: int | None, device: int) -> Table:
    title = place(rank, device)
    lines = (
        (
            _series_name(series),
            STEPS if series.scope == STEPS else clean(series.scope, _LIMIT),
            f"{len(series.values):,}",
            clean(series.typical, _LIMIT),
        )
        for series in baseline.series
        if (series.rank, series.device) == (rank, device)
    )
    columns = (table.words(title, heads=True), table.words("of", flexible=True), Column("count"), Column("median"))
    return Table(title, columns, table.rows(lines))


def _series_name(series: BaselineSeries) -> str:
    way = f"{series.direction} " if series.direction else ""
    return f"{way}{series.metric}{f', {clean(series.cause, _LIMIT)}' if series.cause else ''}"
