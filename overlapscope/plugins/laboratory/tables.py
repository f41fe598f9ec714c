"""Tables of the laboratory's report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from overlapscope.analysis.figures import efficiency_shown, hidden_copy_shown
from overlapscope.base.words import NOTHING, bare_percent, bare_share, bare_shares, clean, unit_for
from overlapscope.documents import columns as column
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, table_of, words
from overlapscope.plugins.laboratory.comparison import WALL, ExperimentComparison, place, tally
from overlapscope.plugins.laboratory.results import Analysis, ExperimentResult, VariantResult

Analyses = list[tuple[str, Analysis]]
"""Analyses, each with the name of its variant."""

_VARIANT = Column("variant", False, flexible=True, prose=True)
"""Column of variants. Long names are broken and never cut, because the difference may be in the middle."""


def variants(comparisons: Sequence[ExperimentComparison]) -> Table:
    """Return a line for each variant, below its experiment's name.

    A variant with several ranks shows the worst verdict.
    """
    lines: list[tuple[str | Cell, ...]] = []
    for comparison in comparisons:
        lines.append((Cell(clean(comparison.result.name, 80), tone="accent"), *[""] * 5))
        lines += (_variant(comparison, variant) for variant in comparison.result.variants)
    titles = ("ms", "ratio", "hidden %", "idle %")
    columns = (_VARIANT, *map(Column, titles), words("verdict"))
    note = "Time of one iteration, and its ratio to the first variant; hidden copies and idle time of the recording."
    return Table("Every variant", columns, rows(lines), note)


def index(comparisons: Sequence[ExperimentComparison]) -> Table:
    """Return a line for each experiment."""
    return table_of(
        comparisons,
        column.text("experiment", lambda each: each.result.name, limit=60),
        column.text("what it is about", lambda each: each.result.title, limit=120, flexible=True),
        column.text("result", _result, flexible=True),
        column.text("claims that hold", _held, tone=_tone, number=True),
        title="Experiments",
    )


def _held(comparison: ExperimentComparison) -> str:
    counts = tally(comparison.claims)
    return f"{counts[0]} of {sum(counts)}"


def _tone(comparison: ExperimentComparison) -> Tone:
    return "" if any(tally(comparison.claims)[1:]) else "good"


def _result(comparison: ExperimentComparison) -> str:
    """Return the measurement of the first order that the experiment claims."""
    walls = ((variant.name, variant.wall_ms) for variant in comparison.result.variants)
    timed = {name: wall.median for name, wall in walls if wall is not None and wall.median > 0}
    pair = next((pair for pair in comparison.result.faster if set(pair) <= timed.keys()), None)
    if pair is None:
        return ""
    first, second = pair
    return f"{first} is {timed[second] / timed[first]:.2f} times as fast as {second}"


def _variant(comparison: ExperimentComparison, variant: VariantResult) -> tuple[str, ...]:
    wall, levels = comparison.wall(variant.name), ("unusable", "poor", "unknown", "fair", "good")
    worst = min(variant.analyses, key=lambda analysis: levels.index(analysis.verdict.level), default=None)
    return (
        f"  {clean(variant.name, 80)}",
        digits(wall.ours),
        _ratio(wall.ours_ratio),
        NOTHING if worst is None else bare_percent(hidden_copy_shown(worst)),
        NOTHING if worst is None else bare_share(worst.buckets.idle_ns, worst.span_ns),
        variant.status if variant.status != "ok" else worst.verdict.level if worst is not None else NOTHING,
    )


def all_tables(comparison: ExperimentComparison) -> Iterator[Table]:
    """Yield every table of an experiment; tables without data have no rows."""
    variants = comparison.result.variants
    about = (words("variant"), Column("what it shows", False, flexible=True, prose=True))
    lines = [(clean(variant.name, 80), clean(variant.shows, 400)) for variant in variants]
    yield Table("The variants", about, rows(lines))
    titles = ("median", "IQR", "n", "host", "ratio", "published", "its ratio", "wrong results")
    yield _filled(
        "Time of one iteration, ms; ratios are to the first variant",
        (_VARIANT, *map(Column, titles)),
        [_time(comparison, variant) for variant in variants],
    )
    yield _figures(comparison)
    yield _buckets(named_analyses(comparison.result))


def _time(comparison: ExperimentComparison, variant: VariantResult) -> tuple[str, ...]:
    wall, host, wrong = variant.wall_ms, variant.host_ms, variant.wrong_results
    figure = comparison.wall(variant.name)
    return (
        clean(variant.name, 80),
        digits(wall.median) if wall else NOTHING,
        digits(wall.iqr, like=wall.median) if wall else NOTHING,
        f"{wall.n:,}" if wall else NOTHING,
        digits(host.median) if host else NOTHING,
        _ratio(figure.ours_ratio),
        digits(figure.published),
        _ratio(figure.published_ratio),
        f"{wrong.wrong:,} of {wrong.tries:,}" if wrong else NOTHING,
    )


def _figures(comparison: ExperimentComparison) -> Table:
    lines = sorted(
        (
            clean(figure.name, 80),
            clean(variant, 80),
            digits(figure.ours),
            _ratio(figure.ours_ratio),
            digits(figure.published),
            _ratio(figure.published_ratio),
        )
        for variant, figures in comparison.figures.items()
        for figure in figures
        if figure.name != WALL
    )
    columns = (Column("figure", False, flexible=True, prose=True), _VARIANT)
    titles = ("here", "ratio", "published", "its ratio")
    return _filled("Measured by the program itself", (*columns, *map(Column, titles)), lines)


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _buckets(analyses: Analyses) -> Table:
    unit = unit_for(max((analysis.span_ns for _, analysis in analyses), default=0))
    # Most programs have neither, and the columns are left out.
    comm = any(analysis.buckets.exposed_comm_ns for _, analysis in analyses)
    other = any(analysis.buckets.exposed_other_ns for _, analysis in analyses)
    lines = []
    for name, analysis in analyses:
        b = analysis.buckets
        parts = [b.compute_ns, b.exposed_comm_ns, b.exposed_copy_ns, b.exposed_other_ns, b.idle_ns]
        compute, *middle, idle = bare_shares(parts, analysis.span_ns)
        shown = [part if kept else NOTHING for part, kept in zip(middle, (comm, True, other), strict=True)]
        efficiency = bare_percent(efficiency_shown(analysis))
        lines.append((name, unit.number(analysis.span_ns), compute, *shown, idle, efficiency))
    whole = "step" if all(analysis.steps for _, analysis in analyses) else "time"
    titles = (f"{whole} {unit.name}", "compute %", "comm %", "copy %", "other %", "idle %", "overlap eff. %")
    title = "Where the GPU time went (overlapped time counts as compute)"
    return _filled(title, (_VARIANT, *map(Column, titles)), lines)


def _filled(title: str, columns: Sequence[Column], lines: Sequence[Sequence[str]]) -> Table:
    """Return the table without empty columns, and without rows if no column is left."""
    kept = [at for at in range(len(columns)) if at == 0 or any(line[at] != NOTHING for line in lines)]
    kept_lines = [[line[at] for at in kept] for line in lines] if len(kept) > 1 else []
    return Table(title, tuple(columns[at] for at in kept), rows(kept_lines))


def named_analyses(result: ExperimentResult) -> Analyses:
    """Return every analysis, named by its variant, and by its rank or device if the variant has several."""
    return [
        (clean(f"{variant.name} {place(analysis)}" if len(variant.analyses) > 1 else variant.name, 80), analysis)
        for variant in result.variants
        for analysis in variant.analyses
    ]


def digits(value: float | None, *, like: float | None = None) -> str:
    """Return a number with four digits, or with as many decimals as the figure `like`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    decimals = max(0, min(6, 3 - math.floor(math.log10(abs(like or value)))))
    return f"{value:,.{decimals}f}"
