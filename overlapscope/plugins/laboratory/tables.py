"""Tables of the laboratory's report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from overlapscope.analysis.figures import efficiency_shown, hidden_copy_shown
from overlapscope.analysis.groups import says_bandwidth
from overlapscope.base.words import NOTHING, Unit, bandwidth, bare_percent, bare_share, bare_shares, clean, unit_for
from overlapscope.documents import columns as column
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, table_of, words
from overlapscope.plugins.laboratory.comparison import WALL, ExperimentComparison, place, tally
from overlapscope.plugins.laboratory.results import Analysis, ExperimentResult, Link, VariantResult

Analyses = list[tuple[str, Analysis]]
"""Analyses, each with the name of its variant."""

_CAUSE = (words("cause"), Column("% of it"))
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
    _, *others = tally(comparison.claims)
    return "" if any(others) else "good"


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
    analyses = named_analyses(comparison.result)
    unit = unit_for(max((analysis.span_ns for _, analysis in analyses), default=0))
    yield _intended(comparison.result)
    yield _times(comparison)
    yield _figures(comparison)
    yield _buckets(analyses, unit)
    yield _exposed(analyses, unit)
    yield _idle(analyses, unit)
    yield _link(analyses, unit, comparison.result.machine.link)


def _intended(result: ExperimentResult) -> Table:
    columns = (words("variant"), Column("what it shows", False, flexible=True, prose=True))
    lines = [(clean(variant.name, 80), clean(variant.shows, 400)) for variant in result.variants]
    return Table("The variants", columns, rows(lines))


def _times(comparison: ExperimentComparison) -> Table:
    titles = ("median", "IQR", "n", "host", "ratio", "published", "its ratio", "wrong results")
    lines = [_time(comparison, variant) for variant in comparison.result.variants]
    return _filled(
        "Time of one iteration, ms; ratios are to the first variant", (_VARIANT, *map(Column, titles)), lines
    )


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


def _buckets(analyses: Analyses, unit: Unit) -> Table:
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


def _exposed(analyses: Analyses, unit: Unit) -> Table:
    lines = [
        (
            name,
            unit.number(analysis.overlap.copy_ns),
            bare_percent(hidden_copy_shown(analysis)),
            unit.number(analysis.buckets.exposed_copy_ns),
            *_mostly(analysis.exposed_copy_by_cause),
        )
        for name, analysis in analyses
        if analysis.overlap.copy_ns
    ]
    titles = (f"copies {unit.name}", "hidden %", f"exposed {unit.name}")
    return _filled("Copies, and the main cause of exposed copies", (_VARIANT, *map(Column, titles), *_CAUSE), lines)


def _idle(analyses: Analyses, unit: Unit) -> Table:
    lines = [
        (name, unit.number(analysis.buckets.idle_ns), *_mostly(analysis.idle_by_cause)) for name, analysis in analyses
    ]
    return _filled("Idle time, and its main cause", (_VARIANT, Column(f"idle {unit.name}"), *_CAUSE), lines)


def _mostly(by_cause: Mapping[str, int]) -> tuple[str, str]:
    """Return the main cause and its share of the time."""
    total = sum(by_cause.values())
    if not total:
        return NOTHING, NOTHING
    cause, most = max(by_cause.items(), key=lambda item: item[1])
    return clean(cause, 40), bare_share(most, total)


def _link(analyses: Analyses, unit: Unit, peak: Link) -> Table:
    lines = []
    for name, analysis in analyses:
        h2d, d2h = (_rate(analysis, direction) for direction in ("h2d", "d2h"))
        lines.append(
            (
                name,
                *(NOTHING if h2d is None else bandwidth(h2d), _of(h2d, peak.h2d_gb_per_s)),
                *(NOTHING if d2h is None else bandwidth(d2h), _of(d2h, peak.d2h_gb_per_s)),
                unit.number(analysis.host_wait_ns),
                unit.number(analysis.host_idle_ns),
            )
        )
    waits = (f"host waits {unit.name}", "GPU idle meanwhile")
    titles = ("H2D GB/s", "% of peak", "D2H GB/s", "% of peak", *waits)
    return _filled("Copy bandwidth against the link's peak, and host waits", (_VARIANT, *map(Column, titles)), lines)


def _rate(analysis: Analysis, direction: str) -> float | None:
    """Return the rate of all copies in one direction, in 1e9 bytes per second; None if all of them are too small."""
    groups = [
        (copies.bytes or 0, copies.gb_per_s)
        for copies in analysis.copies
        if copies.direction == direction and copies.gb_per_s and says_bandwidth(copies)
    ]
    took = sum(size / rate for size, rate in groups)
    return sum(size for size, _ in groups) / took if took else None


def _of(rate: float | None, peak: float | None) -> str:
    return bare_share(rate, peak)


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
