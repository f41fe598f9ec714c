"""The tables of the laboratory's report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from overlapscope.analysis.copies import says_bandwidth
from overlapscope.analysis.results import efficiency_shown, hidden_copy_shown
from overlapscope.base.words import NOTHING, bandwidth, bare_percent, bare_shares, clean, unit_for
from overlapscope.laboratory.comparison import WALL, Comparison, place
from overlapscope.laboratory.results import Analysis, ExperimentResult, VariantResult
from overlapscope.views.old_tables import Column, Table, text

_CAUSE = (text("cause"), Column("% of it"))
_VARIANT = Column("variant", False, flexible=True, prose=True)
"""Names are broken where there is no room, never cut: what tells them apart may stand in the middle."""


def all_tables(comparison: Comparison) -> Iterator[Table]:
    """Every table of one experiment; those of which nothing is known have no rows."""
    yield _intended(comparison.result)
    yield _times(comparison)
    yield _figures(comparison)
    yield _buckets(comparison.result)
    yield _exposed(comparison.result)
    yield _idle(comparison.result)
    yield _link(comparison.result)


def _intended(result: ExperimentResult) -> Table:
    rows = tuple((clean(variant.name, 80), clean(sentence(variant.shows), 400)) for variant in result.variants)
    return Table("The variants", (text("variant"), Column("what it shows", False, flexible=True, prose=True)), rows)


def _times(comparison: Comparison) -> Table:
    rows = [_time(comparison, variant) for variant in comparison.result.variants]
    columns = (
        _VARIANT,
        *map(Column, ("median", "IQR", "n", "host", "ratio", "published", "its ratio", "wrong results")),
    )
    title = "Time of one iteration, ms; ratios are to the first variant"
    return _filled(Table(title, columns, tuple(rows)))


def _time(comparison: Comparison, variant: VariantResult) -> tuple[str, ...]:
    wall, host, wrong = variant.wall_ms, variant.host_ms, variant.wrong_results
    figure = next(one for one in comparison.figures[variant.name] if one.name == WALL)
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


def _figures(comparison: Comparison) -> Table:
    rows = tuple(
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
    return _filled(Table("Measured by the program itself", (*columns, *map(Column, titles)), tuple(sorted(rows))))


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _buckets(result: ExperimentResult) -> Table:
    analyses = named_analyses(result)
    unit = unit_for(max((one.span_ns for _, one in analyses), default=0))
    # Most programs have neither; the columns are left out then.
    comm = any(one.buckets.exposed_comm_ns for _, one in analyses)
    other = any(one.buckets.exposed_other_ns for _, one in analyses)
    rows = []
    for name, one in analyses:
        b = one.buckets
        parts = [b.compute_ns, b.exposed_comm_ns, b.exposed_copy_ns, b.exposed_other_ns, b.idle_ns]
        compute, *middle, idle = bare_shares(parts, one.span_ns)
        shown = [part if there else NOTHING for part, there in zip(middle, (comm, True, other), strict=True)]
        efficiency = bare_percent(efficiency_shown(one))
        rows.append((name, unit.number(one.span_ns), compute, *shown, idle, efficiency))
    titles = (f"span {unit.name}", "compute %", "comm %", "copy %", "other %", "idle %", "overlap eff. %")
    columns = (_VARIANT, *map(Column, titles))
    return _filled(Table("Where the GPU's time went; what runs under compute counts as compute", columns, tuple(rows)))


def _exposed(result: ExperimentResult) -> Table:
    analyses = named_analyses(result)
    unit = unit_for(max((one.span_ns for _, one in analyses), default=0))
    rows = tuple(
        (
            name,
            unit.number(one.overlap.copy_ns),
            bare_percent(hidden_copy_shown(one)),
            unit.number(one.buckets.exposed_copy_ns),
            *_mostly(one.exposed_copy_by_cause),
        )
        for name, one in analyses
        if one.overlap.copy_ns
    )
    titles = (Column(f"copies {unit.name}"), Column("hidden %"), Column(f"exposed {unit.name}"))
    return _filled(Table("Copies, and what exposes most of them", (_VARIANT, *titles, *_CAUSE), rows))


def _idle(result: ExperimentResult) -> Table:
    analyses = named_analyses(result)
    unit = unit_for(max((one.span_ns for _, one in analyses), default=0))
    rows = tuple((name, unit.number(one.buckets.idle_ns), *_mostly(one.idle_by_cause)) for name, one in analyses)
    return _filled(
        Table("Idle time, and what causes most of it", (_VARIANT, Column(f"idle {unit.name}"), *_CAUSE), rows)
    )


def _mostly(by_cause: Mapping[str, int]) -> tuple[str, str]:
    """The cause of most of the time, and its share."""
    whole = sum(by_cause.values())
    if not whole:
        return NOTHING, NOTHING
    cause, most = max(by_cause.items(), key=lambda item: item[1])
    return clean(cause, 40), bare_percent(100 * most / whole)


def _link(result: ExperimentResult) -> Table:
    peak = result.machine.link
    analyses = named_analyses(result)
    unit = unit_for(max((one.span_ns for _, one in analyses), default=0))
    rows = []
    for name, one in analyses:
        h2d, d2h = (_rate(one, direction) for direction in ("h2d", "d2h"))
        rows.append(
            (
                name,
                *(NOTHING if h2d is None else bandwidth(h2d), _of(h2d, peak.h2d_gb_per_s)),
                *(NOTHING if d2h is None else bandwidth(d2h), _of(d2h, peak.d2h_gb_per_s)),
                unit.number(one.host_wait_ns),
                unit.number(one.host_idle_ns),
            )
        )
    waits = (f"host waits {unit.name}", "GPU idle by that")
    titles = ("H2D GB/s", "% of peak", "D2H GB/s", "% of peak", *waits)
    return _filled(
        Table(
            "Copies against the link's peak, and the host's waits",
            (_VARIANT, *map(Column, titles)),
            tuple(rows),
        )
    )


def _rate(analysis: Analysis, direction: str) -> float | None:
    """1e9 bytes per second over the copies of one direction; None where none is large enough to tell."""
    groups = [one for one in analysis.copies if one.direction == direction and one.gb_per_s and says_bandwidth(one)]
    took = sum(one.bytes / one.gb_per_s for one in groups if one.bytes and one.gb_per_s)
    return sum(one.bytes or 0 for one in groups) / took if took else None


def _of(rate: float | None, peak: float | None) -> str:
    return NOTHING if rate is None or not peak else bare_percent(100 * rate / peak)


def _filled(table: Table) -> Table:
    """The table without the columns that say nothing in any row, and without rows where none is left."""
    kept = [i for i in range(len(table.columns)) if i == 0 or any(row[i] != NOTHING for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows) if len(kept) > 1 else ()
    return Table(table.title, tuple(table.columns[i] for i in kept), rows, table.note)


def named_analyses(result: ExperimentResult) -> list[tuple[str, Analysis]]:
    """Every analysis, named by its variant, and by its rank or device where that has several."""
    return [
        (clean(f"{variant.name} {place(analysis)}" if len(variant.analyses) > 1 else variant.name, 80), analysis)
        for variant in result.variants
        for analysis in variant.analyses
    ]


def sentence(half: str) -> str:
    """A half sentence as a whole one; a name of code keeps its small letter."""
    first = half[:1].upper() if half.partition(" ")[0].rstrip(",:;").isalpha() else half[:1]
    return f"{first}{half[1:].rstrip('.')}."


def digits(value: float | None, *, like: float | None = None) -> str:
    """Four digits, whatever the size; with `like` as many decimals as that figure has."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    decimals = max(0, min(6, 3 - math.floor(math.log10(abs(like or value)))))
    return f"{value:,.{decimals}f}"
