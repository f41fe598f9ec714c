"""Document of the laboratory's report: claims, then each experiment with its figures, tables, verdicts and claims."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from overlapscope.base.words import (
    NOTHING,
    bandwidth,
    bare_percent,
    bare_share,
    bare_shares,
    clean,
    plural,
    size,
    unit_for,
)
from overlapscope.documents import columns as column
from overlapscope.documents import model
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import axis, escape, figure
from overlapscope.documents.model import (
    Block,
    Chart,
    Document,
    Figure,
    Heading,
    Items,
    Links,
    Section,
    Span,
    Text,
    Words,
    with_code,
)
from overlapscope.documents.table import Cell, Column, Table, Tone, prose, rows, table_of, words
from overlapscope.plugins.laboratory.comparison import WALL, Claim, ExperimentComparison, Kind, place, tally
from overlapscope.plugins.laboratory.experiment import Experiment
from overlapscope.plugins.laboratory.results import Analysis, ExperimentResult, Link, Machine, VariantResult

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
        NOTHING if worst is None else bare_percent(worst.hidden_copy_shown),
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
        efficiency = bare_percent(analysis.efficiency_shown)
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


_KINDS: dict[Kind, str] = {
    "order": "which variant is faster",
    "results": "right or wrong results",
    "diagnosis": "what the analysis must find",
}
_STANDING: dict[bool | None, tuple[str, Tone]] = {
    True: ("holds", "good"),
    False: ("does not hold", "poor"),
    None: ("unknown", "fair"),
}
_LEVELS: dict[str, Tone] = {"good": "good", "fair": "fair", "poor": "poor"}
_BARS_HEIGHT = 300


def summary(comparisons: Sequence[ExperimentComparison]) -> Document:
    """Return a short report: the claims, and a line for each variant."""
    more = Text(with_code("`overlapscope scenarios report NAME` shows one experiment in full."), "muted")
    return Document("Laboratory report", (*_claims(comparisons), variants(comparisons), more))


def document(comparisons: Sequence[ExperimentComparison], *, brief: bool = False) -> Document:
    """Return the full report.

    With `brief`, for a terminal, diagnoses that hold are only counted.
    """
    blocks: list[Block] = [Heading("Laboratory report", 1), *overview(comparisons)]
    blocks.append(Links({_anchor(of, at): clean(of.result.name, 80) for at, of in enumerate(comparisons)}))
    for number, comparison in enumerate(comparisons):
        result = comparison.result
        title = clean(f"{result.name}: {result.title}", 200)
        parts = (Heading(title), *chapter(comparison, f"plot-{number}", brief=brief))
        blocks.append(Section(parts, kind="article", id=_anchor(comparison, number)))
    return Document("Laboratory report", tuple(blocks))


def _anchor(comparison: ExperimentComparison, number: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', clean(comparison.result.name, 80))}-{number}"


def listing(experiments: Iterable[Experiment]) -> Document:
    """Return a table of experiments."""
    columns = (words("experiment"), Column("GPUs"), prose("what it shows"))
    lines = []
    for experiment in experiments:
        names = ", ".join(variant.name for variant in experiment.variants)
        description = f"{experiment.shows} Variants: {names}."
        lines.append((clean(experiment.name, 40), str(experiment.gpus), clean(description, 2000)))
    return Document("Experiments", (Table("", columns, rows(lines)),))


def overview(comparisons: Sequence[ExperimentComparison]) -> Iterator[Block]:
    """Yield the summary of all experiments."""
    yield Items(tuple(_machines(comparisons)))
    yield from _claims(comparisons)


def _claims(comparisons: Sequence[ExperimentComparison]) -> Iterator[Block]:
    """Yield the number of claims that hold, those that don't, and the variants that did not finish."""
    claims = [claim for comparison in comparisons for claim in comparison.claims]
    counted = {what: tally([claim for claim in claims if claim.kind == kind]) for kind, what in _KINDS.items()}
    counted["all"] = tally(claims)
    columns = (words("claims"), Column("hold"), Column("do not hold"), Column("unknown"))
    lines = [(what, *(f"{count:,}" for count in held)) for what, held in counted.items()]
    yield Table("", columns, rows(lines))
    contradicted = tuple(_claim(claim, of=f"{claim.experiment}: ") for claim in claims if not claim.holds)
    if contradicted:
        yield model.panel("Claims that do not hold or are unknown", Items(contradicted))
    troubles = tuple(
        clean(f"{comparison.result.name}/{_trouble(variant)}", 600)
        for comparison in comparisons
        for variant in comparison.result.variants
        if variant.status != "ok"
    )
    if troubles:
        yield model.panel("Variants that did not run to the end", Items(troubles))


def chapter(comparison: ExperimentComparison, plots: str, *, brief: bool = False) -> Iterator[Block]:
    """Yield the chapter of an experiment.

    The ids of its charts begin with `plots`; `brief` has the same meaning as for `document`.
    """
    result = comparison.result
    yield Text(clean(" ".join(_facts(result)), 3000))
    yield from _charts(comparison, plots)
    yield from (table for table in all_tables(comparison) if table.rows)
    named = named_analyses(result)
    if named:
        yield model.panel("Verdicts", Items(tuple(_verdict(name, analysis) for name, analysis in named)))
    claims = list(comparison.claims)
    expected = [claim for claim in claims if brief and claim.kind == "diagnosis" and claim.holds]
    shown = [_claim(claim) for claim in claims if claim not in expected]
    if expected:
        counted = plural(len(expected), "claim")
        shown.append(_standing(True, f"{counted} on what the analysis must find; --output DIR lists them."))
    if shown:
        yield model.panel("Claims", Items(tuple(shown)))
    notes = tuple(clean(note, 600) for note in _notes(result))
    if notes:
        yield Items(notes, tone="muted")


def _standing(holds: bool | None, text: str) -> Words:
    """Return a sentence preceded by `holds`, `does not hold` or `unknown`."""
    word, tone = _STANDING[holds]
    return Span(word, tone, strong=True), f": {text}"


def _claim(claim: Claim, *, of: str = "") -> Words:
    published_words = {
        True: "; it holds for the published figures",
        False: "; it does not hold for the published ones",
        None: "",
    }
    return _standing(claim.holds, clean(f"{of}{claim.text}: {claim.observed}{published_words[claim.published]}", 800))


def _verdict(name: str, analysis: Analysis) -> Words:
    """Return the verdict on one device of one trace."""
    level = analysis.verdict.level
    text = clean(f"{analysis.verdict.text} Findings: {', '.join(analysis.rules) or 'none'}.", 1500)
    return Span(name, _LEVELS.get(level, ""), strong=True), f" ({level}): {text}"


# -- Runs ------------------------------------------------------------------------------------------


def _machine(machine: Machine) -> str:
    """Return one line about a machine."""
    link = machine.link
    width = f" x{link.pcie_width}" if link.pcie_width else ""
    rates = ", ".join(
        f"{name} {bandwidth(rate)}"
        for name, rate in (
            ("H2D", link.h2d_gb_per_s),
            ("D2H", link.d2h_gb_per_s),
            ("both at once", link.both_gb_per_s),
        )
        if rate is not None
    )
    memory = f" ({size(machine.gpu_memory_bytes)})" if machine.gpu_memory_bytes else ""
    cores = f", {machine.cores} cores" if machine.cores else ""
    parts = (
        f"{_gpus(machine.gpus)}{memory}" if machine.gpus else "no GPU",
        f"driver {machine.driver}" if machine.driver else "",
        f"PCIe {link.pcie_generation}{width}" if link.pcie_generation else "",
        f"pinned copies {rates} GB/s" if rates else "",
        f"torch {machine.torch}",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        f"Python {machine.python}",
        f"{machine.cpu}{cores}" if machine.cpu else "",
        f"{size(machine.memory_bytes)} of memory" if machine.memory_bytes else "",
    )
    return clean("; ".join(part for part in parts if part), 400)


def _gpus(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())


def _machines(comparisons: Sequence[ExperimentComparison]) -> Iterator[str]:
    """Yield each machine once. The link measured in its first run stands for all runs."""
    seen: dict[bytes, tuple[Machine, list[str]]] = {}
    for comparison in comparisons:
        machine = comparison.result.machine
        key = msgspec.json.encode(msgspec.structs.replace(machine, link=Link()))
        seen.setdefault(key, (machine, []))[1].append(comparison.result.name)
    for machine, names in seen.values():
        which = f" ({', '.join(names)})" if len(seen) > 1 else ""
        yield clean(f"{_machine(machine)}{which}", 1000)


def _facts(result: ExperimentResult) -> Iterator[str]:
    yield result.shows
    sizes = ", ".join(f"{name} {value}" for name, value in result.sizes.items())
    gpus = "on the CPU" if not result.gpus else f"on {_gpus(result.machine.gpus[: result.gpus])}"
    yield f"Run at scale {result.scale}{f' ({sizes})' if sizes else ''} {gpus}, {result.date}."
    if result.published_on:
        smaller = (
            "" if result.sizes_as_published else " Our sizes are not the published ones: compare ratios, not times."
        )
        yield f"Published: {result.published_on.rstrip('.')}.{smaller}"
    left_out = f"; {result.recorded}" if result.recorded else ""
    yield f"Recorded: {result.recorded_steps} iterations after {result.warmup_steps} of warm-up{left_out}."


def _notes(result: ExperimentResult) -> Iterator[str]:
    for variant in result.variants:
        if variant.status != "ok":
            yield _trouble(variant)
        yield from (f"{variant.name}: {note}" for note in variant.notes)
    for name, analysis in named_analyses(result):
        if analysis.trust != "trusted":
            yield f"{name}: the recording is {analysis.trust} ({', '.join(analysis.doubts)})."


def _trouble(variant: VariantResult) -> str:
    return f"{variant.name} {variant.status}: {(variant.error or 'reason unknown').rstrip('.')}."


# -- Charts ----------------------------------------------------------------------------------------


def _charts(comparison: ExperimentComparison, plots: str) -> Iterator[Chart]:
    """Yield charts of the wall time and of each published figure for all variants, if any value is available."""
    variants = comparison.result.variants
    figures_of = {(name, figure.name): figure for name, figures in comparison.figures.items() for figure in figures}
    published = (figure.name for figure in figures_of.values() if figure.name == WALL or figure.published is not None)
    for number, name in enumerate(dict.fromkeys(published)):
        here = [figures_of.get((variant.name, name)) for variant in variants]
        measured_values, published_values = (
            [getattr(figure, of, None) for figure in here] for of in ("ours", "published")
        )
        spreads = [variant.wall_ms.iqr if name == WALL and variant.wall_ms else None for variant in variants]
        title = clean("wall time of an iteration, ms" if name == WALL else name, 80)
        if any(value is not None for value in (*measured_values, *published_values)):
            labels = [clean(variant.name, 80) for variant in variants]
            yield Chart(f"{plots}-{number}", title, partial(_bars, labels, measured_values, spreads, published_values))


def _bars(
    variants: Sequence[str],
    ours: Sequence[float | None],
    spread: Sequence[float | None],
    published: Sequence[float | None],
    dark: bool,
) -> Figure:
    """Draw two bars for each variant. The error bar of ours is the interquartile range."""
    colors = palette(dark)
    labels = [escape(variant) for variant in variants]
    half = [None if between is None else between / 2 for between in spread]
    error = {"type": "data", "array": half, "visible": any(half), "thickness": 1, "color": colors["text"]}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "here",
            "x": labels,
            "y": list(ours),
            "marker": {"color": colors["accent"]},
            "error_y": error,
        }
    ]
    if any(value is not None for value in published):
        marker = {"color": colors["idle"]}
        data.append({"type": "bar", "name": "published", "x": labels, "y": list(published), "marker": marker})
    return figure(
        data,
        dark,
        height=_BARS_HEIGHT,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        xaxis=axis(dark, type="category"),
        yaxis=axis(dark, rangemode="tozero"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=True,
    )
