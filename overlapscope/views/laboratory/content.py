"""The laboratory's report as sentences and tables of text, for any view to lay out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from overlapscope.base.words import bandwidth, clean, size, unit_for
from overlapscope.laboratory.comparison import WALL, Claim, Comparison, Kind, tally
from overlapscope.laboratory.results import Analysis, ExperimentResult, Link, Machine, Strip, VariantResult
from overlapscope.views.laboratory.tables import all_tables, named_analyses, sentence
from overlapscope.views.old_tables import Column, Table, text

Standing = Literal["holds", "does not hold", "unknown"]

_KINDS: dict[Kind, str] = {
    "order": "which variant is faster",
    "results": "right or wrong results",
    "diagnosis": "what the analysis must find",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence, with the word that says how it stands."""

    standing: Standing
    text: str
    expected: bool = False
    """It says only that the analysis found what it must; there are many of these."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What stands at the top."""

    machines: tuple[str, ...]
    claims: Table
    contradicted: tuple[Line, ...]
    """Every claim that does not hold or cannot be told."""
    troubles: tuple[str, ...]
    """Every variant that failed or was skipped."""


@dataclass(frozen=True, slots=True)
class Bars:
    """The wall time, or another figure that was published, of all variants."""

    title: str
    variants: tuple[str, ...]
    ours: tuple[float | None, ...]
    spread: tuple[float | None, ...]
    """Between the quartiles of ours, where it was measured."""
    published: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One experiment."""

    name: str
    title: str
    facts: tuple[str, ...]
    tables: tuple[Table, ...]
    verdicts: tuple[tuple[str, str, str], ...]
    """Variant, level and sentences, for each device in each trace."""
    bars: tuple[Bars, ...]
    strips: tuple[tuple[str, Strip], ...]
    claims: tuple[Line, ...]
    notes: tuple[str, ...]


def overview(comparisons: Sequence[Comparison]) -> Overview:
    """The summary of all experiments."""
    claims = tuple(claim for comparison in comparisons for claim in comparison.claims)
    rows = [(what, tally(tuple(claim for claim in claims if claim.kind == kind))) for kind, what in _KINDS.items()]
    rows.append(("all", tally(claims)))
    return Overview(
        machines=tuple(_machines(comparisons)),
        claims=Table(
            "Claims",
            (text("claims"), Column("hold"), Column("do not hold"), Column("unknown")),
            tuple((what, *(f"{count:,}" for count in (one.hold, one.fail, one.unknown))) for what, one in rows),
        ),
        contradicted=tuple(_line(claim, of=f"{claim.experiment}: ") for claim in claims if not claim.holds),
        troubles=tuple(
            clean(f"{comparison.result.name}/{_trouble(variant)}", 600)
            for comparison in comparisons
            for variant in comparison.result.variants
            if variant.status != "ok"
        ),
    )


def chapter(comparison: Comparison) -> Chapter:
    """One experiment."""
    result = comparison.result
    return Chapter(
        name=clean(result.name, 80),
        title=clean(f"{result.name}: {result.title}", 200),
        facts=tuple(clean(fact, 1000) for fact in _facts(result)),
        tables=tuple(table for table in all_tables(comparison) if table.rows),
        verdicts=tuple((name, one.verdict.level, clean(_verdict(one), 1500)) for name, one in named_analyses(result)),
        bars=tuple(_bars(comparison)),
        strips=tuple((name, one.strip) for name, one in named_analyses(result)),
        claims=tuple(_line(claim) for claim in comparison.claims),
        notes=tuple(clean(note, 600) for note in _notes(result)),
    )


def machine_sentence(machine: Machine) -> str:
    """What is known of a machine, in one line."""
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


def _machines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Each machine once; the first run's link stands for all on it."""
    found: dict[bytes, tuple[Machine, list[str]]] = {}
    for comparison in comparisons:
        machine = comparison.result.machine
        key = msgspec.json.encode(msgspec.structs.replace(machine, link=Link()))
        found.setdefault(key, (machine, []))[1].append(comparison.result.name)
    for machine, names in found.values():
        which = f" ({', '.join(names)})" if len(found) > 1 else ""
        yield clean(f"{machine_sentence(machine)}{which}", 1000)


def _line(claim: Claim, *, of: str = "") -> Line:
    standing: dict[bool | None, Standing] = {True: "holds", False: "does not hold", None: "unknown"}
    says = {True: "; by the published figures it is", False: "; by the published figures it is not", None: ""}
    said = f"{of}{claim.text}: {claim.found}{says[claim.published]}"
    expected = claim.kind == "diagnosis" and claim.holds is True
    return Line(standing[claim.holds], clean(said, 800), expected)


def _facts(result: ExperimentResult) -> Iterator[str]:
    yield sentence(result.shows)
    sizes = ", ".join(f"{name} {value}" for name, value in result.sizes.items())
    gpus = "on the CPU" if not result.gpus else f"on {_gpus(result.machine.gpus[: result.gpus])}"
    yield f"Run at scale {result.scale}{f' ({sizes})' if sizes else ''} {gpus}, {result.date}."
    if result.published_on:
        smaller = (
            "" if result.sizes_as_published else " Our sizes are not the published ones: compare ratios, not times."
        )
        yield f"Published: {result.published_on.rstrip('.')}.{smaller}"
    left_out = f"; {result.recorded.rstrip('.')}" if result.recorded else ""
    yield f"Recorded: {result.recorded_steps} iterations behind {result.warmup_steps} of warm-up{left_out}."


def _notes(result: ExperimentResult) -> Iterator[str]:
    for variant in result.variants:
        if variant.status != "ok":
            yield _trouble(variant)
        yield from (f"{variant.name}: {note}" for note in variant.notes)
    for name, analysis in named_analyses(result):
        if analysis.trust != "trusted":
            yield f"{name}: the recording is {analysis.trust} ({', '.join(analysis.doubts)})."


def _verdict(analysis: Analysis) -> str:
    rules = ", ".join(dict.fromkeys(finding.rule for finding in analysis.findings))
    return f"{analysis.verdict.text} Findings: {rules or 'none'}."


def _trouble(variant: VariantResult) -> str:
    return f"{variant.name} {variant.status}: {(variant.error or 'no reason is known').rstrip('.')}."


# -- pictures -------------------------------------------------------------------------------------


def _bars(comparison: Comparison) -> Iterator[Bars]:
    variants = comparison.result.variants
    found = {(name, one.name): one for name, figures in comparison.figures.items() for one in figures}
    for figure in dict.fromkeys(one.name for one in found.values() if one.name == WALL or one.published is not None):
        here = [found.get((variant.name, figure)) for variant in variants]
        spreads = [variant.wall_ms.iqr if figure == WALL and variant.wall_ms else None for variant in variants]
        yield Bars(
            title=clean("wall time of an iteration, ms" if figure == WALL else figure, 80),
            variants=tuple(clean(variant.name, 80) for variant in variants),
            ours=tuple(one.ours if one else None for one in here),
            spread=tuple(spreads),
            published=tuple(one.published if one else None for one in here),
        )


def fills(fill: str, width: int) -> list[float | None]:
    """A lane's slices, joined to at most `width`: how full each is, from 0 to 1; None where nothing ran."""
    width = min(width, len(fill))
    joined: list[float | None] = []
    for number in range(width):
        part = fill[len(fill) * number // width : len(fill) * (number + 1) // width]
        values = [(int(one) + 1) / 10 for one in part if one.isdecimal()]
        joined.append(sum(values) / len(part) if values else None)
    return joined


def strip_lines(strip: Strip, width: int = 100) -> list[str]:
    """A strip as text: one line for each kind of work, and the scale."""
    lines = []
    for lane in strip.lanes:
        drawn = ("·" if full is None else "░▒▓█"[min(3, int(full * 4))] for full in fills(lane.fill, width))
        lines.append(f"{clean(lane.name, 8):<8} {''.join(drawn)}")
    unit = unit_for(strip.span_ns)
    end = unit.text(strip.span_ns)
    cells = min(width, max((len(lane.fill) for lane in strip.lanes), default=0))
    return [*lines, f"{'':<8} 0 {'─' * max(1, cells - len(end) - 4)} {end}"]
