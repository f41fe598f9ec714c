"""Documents of a check and of an explained budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import NOTHING, clean, listed, plural
from overlapscope.budgets import words
from overlapscope.budgets.places import JudgedPlace, place_words, series
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.settings import Budget
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, FailureReason, Outcome, Status
from overlapscope.documents import table
from overlapscope.documents.model import (
    Block,
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
from overlapscope.report.model import Report

COMMENT_BYTES: Final = 60_000
"""Size limit of a comment; GitHub refuses more than 65,536 characters."""
SUMMARY_BYTES: Final = 1_000_000
"""Size limit of a step's summary; GitHub refuses more than 1 MiB."""
PAGE_BYTES: Final = 900_000
"""Size limit of a page's body, so that the whole page stays below 1 MB."""
MAX_STEPS: Final = 50
"""Maximum number of steps that an explanation lists for a place."""
_FEW_REASONS: Final = 2
"""Maximum number of reasons for a verdict in the short form."""
_FEW_KEPT: Final = 10
"""Maximum number of passed budgets in the short form."""
_MAX_SOURCES: Final = 8
"""Maximum number of judged traces to name."""
_SHORT: Final = ("skipped", "pass")
"""Statuses that need only a line. A warning explains once why budgets are skipped."""
_TONES: Final[dict[Status | Outcome, Tone]] = {"pass": "good", "fail": "poor"}
"""Tones by status. All others are fair."""


# -- Checks ---------------------------------------------------------------------------------------


def log(result: CheckResult) -> Document:
    """Return the check for a terminal: the outcome, failures with reasons, and what passed."""
    short = _table(verdict for verdict in result.verdicts if verdict.status in _SHORT)
    # The name of a budget already states its place and its limit.
    kept = [replace(short.without(("on", "limit")), few=_FEW_KEPT)] if short.rows else []
    return Document(_title(result), (*_outcome(result), *_sections(result), *kept))


def page(result: CheckResult, room: Room, *, folded: bool = False) -> Document:
    """Return the check as a page. Entries that don't fit into the room are counted.

    `folded`: whether the details of each verdict are hidden until a click.
    """
    blocks: list[Block] = [Heading(_title(result), 1), *_outcome(result)]
    if result.warnings:
        warnings = [Items((words.prose(warning),)) for warning in result.warnings]
        count = room.part(8).fitting(warnings)
        items = Items(tuple(warning.items[0] for warning in warnings[:count]))
        blocks.append(panel("Warnings", items, *_rest(warnings, count)))
    blocks += _fitted(_table(verdict for verdict in result.verdicts if verdict.status != "pass"), room.part(4))
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
    if result.files:
        yield Text(f"Judged by {listed(words.name(file) for file in result.files)}.", tone="muted")
    tone = _TONES.get(result.outcome, "fair")
    yield Text(words.prose(result.summary), tone, badge=words.OUTCOME[result.outcome])
    yield Text(
        words.prose(result.program or "Figures are of the recording, which the profiler makes slower."), tone="muted"
    )
    if len(result.sources) > 1:
        names = [words.name(PurePath(source).name) for source in result.sources]
        yield Text(f"{plural(len(names), 'trace')} were judged: {listed(names, _MAX_SOURCES)}.", tone="muted")


def _table(verdicts: Iterable[BudgetVerdict]) -> Table:
    return table.table_of(
        verdicts,
        (table.words("", heads=True), _state),
        (table.words("budget", flexible=True), lambda verdict: words.name(verdict.budget)),
        (table.words("on", flexible=True, id="on"), lambda verdict: words.about(verdict.subject)),
        (Column("value"), lambda verdict: words.figures(verdict)[0]),
        (Column("limit", id="limit"), lambda verdict: words.figures(verdict)[1]),
    )


def _fitted(whole: Table, room: Room) -> Iterator[Block]:
    """Yield a table with the rows that fit, and a note about the others."""
    count = room.rows(whole)
    yield replace(whole, rows=whole.rows[:count])
    yield from _rest(whole.rows, count)


def _rest(all_of_them: Sequence[object], count: int) -> tuple[Block, ...]:
    omitted = len(all_of_them) - count
    are = "is" if omitted == 1 else "are"
    text = f"{omitted:,} more {are} left out here; --format json has all."
    return (Text(text, tone="muted"),) if omitted else ()


def _state(verdict: BudgetVerdict) -> Cell:
    """Return a verdict's status, with a note if it is bad and doesn't count."""
    counts = words.counted(verdict)
    if verdict.status == "fail":
        return Cell("FAIL", tone="poor") if counts else Cell("warn (does not count)", tone="fair")
    if verdict.status == "unknown" and not counts:
        return Cell("unknown (warning)" if verdict.level == "warn" else "unknown (allowed)", tone="fair")
    return Cell(verdict.status, tone=_TONES.get(verdict.status, "fair"))


def _sections(result: CheckResult, *, full: bool = False) -> Iterator[Section]:
    """Yield a section for each verdict that needs more than a line. `full`: whether titles name the subject.

    Rules that can't be judged for the same reason share a section.
    """
    explained: set[str] = set()
    told = [verdict for verdict in result.verdicts if verdict.status not in _SHORT]
    unknown: dict[tuple[str, str], list[str]] = {}
    for verdict in told:
        if verdict.unknown_because:
            unknown.setdefault((_state(verdict).text, verdict.unknown_because), []).append(verdict.metric)
    for verdict in told:
        state, because = _state(verdict), verdict.unknown_because
        rules = unknown.pop((state.text, because), []) if because else [verdict.metric]
        if because and len(rules) > 1:
            text = Text(f"{listed(rules, len(rules))}: {words.prose(because)}.")
            yield Section((text,), f"{state.text} {plural(len(rules), 'rule')}", "panel", state.tone)
        elif rules:
            name = words.title(verdict) if full else words.name(verdict.budget)
            yield Section(tuple(_verdict(verdict, explained)), f"{state.text} {name}", "panel", state.tone)


def _verdict(verdict: BudgetVerdict, explained: set[str]) -> Iterator[Block]:
    message, exception = words.prose(verdict.message), words.prose(verdict.exception or "")
    yield Text(message)
    if exception and exception not in message:
        yield Text(exception, tone="muted")
    if verdict.status in ("fail", "accepted"):
        reasons = verdict.reasons[: words.MAX_SHOWN_REASONS]
        yield Items(tuple(_reason(reason, explained) for reason in reasons), few=_FEW_REASONS)
        more = len(verdict.reasons) - len(reasons)
        if more:
            yield from detail("all reasons", (Text(f"{more} more; --format json lists all.", tone="muted"),))


def _reason(reason: FailureReason, explained: set[str] | None) -> Words:
    """Return a reason as words. The advice of each rule is given once, and the rule added to `explained`."""
    spans = [Span(words.prose(reason.title), strong=True)]
    where = words.within(reason)
    spans += [Span(f"at {where}", "muted")] if where else []
    spans += [Span(line, detail=True) for line in _lines(reason.detail)]
    again = reason.rule is not None and explained is not None and reason.rule in explained
    if not again:
        spans += [Span(line, "accent", detail=number > 0) for number, line in enumerate(_lines(reason.advice))]
    if reason.rule is not None:
        rule = words.name(reason.rule)
        spans.append(Span(f"See {rule} above." if again else f"More: overlapscope explain {rule}", "muted"))
        if explained is not None:
            explained.add(reason.rule)
    return (spans[0], *(replace(span, text=f"\n{span.text}") for span in spans[1:]))


def _lines(text: str) -> list[str]:
    return [clean(line, words.PROSE_LIMIT) for line in text.split("\n") if line]


# -- Explanations ---------------------------------------------------------------------------------


def explanation(report: Report, judged: Iterable[tuple[Budget, BudgetVerdict, Sequence[JudgedPlace]]]) -> Document:
    """Return explanations of budgets: where each limit is from, how it is judged, and all values."""
    blocks: list[Block] = []
    for budget, verdict, places in judged:
        title = f"{_state(verdict).text} {words.name(verdict.budget)}"
        blocks.append(panel(title, Text(words.prose(verdict.message))))
        for title, text in (
            ("Metric", f"{verdict.metric}: {budget.measure.meaning}."),
            ("Limit", budget.origin),
            ("How it is judged", _way(budget)),
        ):
            blocks += [panel(title, Text(words.prose(text)))] if text else []
        blocks += [_values(place_words(report, place.subject), budget, place) for place in places]
        if verdict.reasons:
            blocks.append(panel("Why", Items(tuple(_reason(reason, None) for reason in verdict.reasons))))
    return Document("overlapscope check", tuple(blocks))


def _way(budget: Budget) -> str:
    """Return `the median of the steps, of the worst rank and device`."""
    if budget.sample == "window":
        parts = ["the whole window after the lead-in"]
    else:
        samples = "occurrences of the range" if budget.sample == "occurrence" else "steps"
        parts = [f"{'the ' if budget.aggregate[0] != 'p' else ''}{budget.aggregate} of the {samples}"]
    parts.append("of the worst rank and device" if budget.ranks == "worst" else "each rank and device separately")
    if budget.skip_steps:
        parts.append(f"without the first {plural(budget.skip_steps, 'step')}")
    if budget.relative:
        parts.append("it fails only if the change exceeds the limit and the noise floor, and is unlikely to be chance")
    return ", ".join(parts)


def _values(name: str, budget: Budget, place: JudgedPlace) -> Table:
    """Return the values of one place, sample by sample."""
    unit, samples = budget.measure.unit, series(place.samples, budget.measure, budget.direction)
    numbers = iter(distinct(samples.numbers, unit) if samples.numbers else ())
    cells = [next(numbers) if value is not None else NOTHING for value in samples.values]
    lines = [(clean(sample, words.NAME_LIMIT), cell) for sample, cell in zip(place.samples.names, cells, strict=True)]
    notes = []
    if len(lines) > MAX_STEPS:
        notes.append(f"{len(lines) - MAX_STEPS:,} more are not listed.")
    if budget.sample == "step" and place.device is not None:
        left_out = len(place.device.steps) - len(place.samples)
        if left_out:
            notes.append(f"{plural(left_out, 'step')} left out: cut by the recording, warm-up, or skipped.")
    if place.baseline is not None and place.low is not None and place.high is not None:
        low, high = distinct((place.low, place.high), unit)
        notes.append(f"The baseline is {show(place.baseline, unit)}; the change lies between {low} and {high} (99%).")
    if not lines:
        notes.append(f"{place.sentence}.")
    columns = (table.words(name or "Values", heads=True), Column("value"))
    return Table(name or "Values", columns, table.rows(lines[:MAX_STEPS]), " ".join(notes))
