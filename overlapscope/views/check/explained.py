"""One budget, explained for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from overlapscope.base.words import NOTHING, clean, plural
from overlapscope.budgets.explain import Explanation
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.rulings import Ruling
from overlapscope.budgets.samples import series
from overlapscope.views.check import shown
from overlapscope.views.check.text import line, reason
from overlapscope.views.old_tables import Column, Table, text
from overlapscope.views.terminal import lay_out, table_grid

MOST_STEPS = 50
"""That are listed at each place."""


def render(
    explanations: Iterable[Explanation], *, width: int, encoding: str = "utf-8", color: str | None = None
) -> str:
    """The explanations as lines of at most `width` columns; see `views.terminal.render`."""
    parts = [part for one in explanations for part in _parts(one, width)]
    return lay_out(parts, width=width, encoding=encoding, color=color)


def _parts(one: Explanation, width: int) -> Iterator[RenderableType]:
    verdict = one.verdict
    yield line(verdict, full=True)
    yield ""
    yield from _paragraph("What it is", f"{verdict.metric}: {one.meaning}.")
    yield from _paragraph("Where the limit is from", one.limit)
    yield from _paragraph("How it is judged", one.way)
    for place, ruling in one.rulings:
        yield table_grid(_table(place, ruling), width)
        yield ""
    if verdict.reasons:
        yield Text("Why", style="bold")
        for each in verdict.reasons:
            yield Padding(reason(each), (0, 0, 0, 2))
        yield ""


def _paragraph(title: str, said: str) -> Iterator[RenderableType]:
    if said:
        yield Text(title, style="bold")
        yield Padding(Text(shown.prose(said)), (0, 0, 1, 2))


def _table(name: str, ruling: Ruling) -> Table:
    place = ruling.place
    assert place is not None  # Of a budget.
    budget, unit = place.budget, place.budget.what.unit
    samples = series(place.samples, budget.what, budget.direction)
    numbers = iter(distinct(samples.numbers, unit) if samples.numbers else ())
    cells = [next(numbers) if value is not None else NOTHING for value in samples.values]
    rows = [(clean(name, shown.NAME_LIMIT), cell) for name, cell in zip(samples.names, cells, strict=True)]
    notes = []
    if len(rows) > MOST_STEPS:
        notes.append(f"{len(rows) - MOST_STEPS:,} more are not listed.")
    if budget.scope == "steps" and budget.where.range is None and place.device is not None:
        left_out = len(place.device.steps) - len(place.samples)
        if left_out:
            notes.append(f"{plural(left_out, 'step')} left out: cut by the recording, warm-up, or skipped.")
    if ruling.baseline is not None and ruling.low is not None and ruling.high is not None:
        low, high = distinct((ruling.low, ruling.high), unit)
        notes.append(
            f"The baseline has {show(ruling.baseline, unit)}; the change lies between {low} and {high} (99 %)."
        )
    if not rows:
        notes.append(f"{ruling.sentence}.")
    title = name or "Values"
    return Table(title, (text(title), Column("value")), tuple(rows[:MOST_STEPS]), " ".join(notes))
