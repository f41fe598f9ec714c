"""The text of `docs/evaluation/whatif.md`, and the CSV files beside it."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.whatif_evaluation import Evaluation, PredictionRow, experiment_of, folders, name_of, place_of
from overlapscope.base.words import clean, plural
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.prediction.result import WhatIf

TEXT = Path(__file__).with_name("whatif_page.md")
"""The page around the tables."""
MEDIAN_PCT, WORST_PCT, INSIDE_PCT = 5.0, 15.0, 90.0
"""Goals: largest errors, and the least share of measured steps inside the interval."""
BUILT = "used while building"
"""Name of the first set of pairs."""
PAIR = (
    *("set", "program", "pair", "interventions", "before, ms", "predicted, ms", "interval", "measured, ms (steps)"),
    *("error, %", "inside"),
)
REPLAYS = ("recordings", "how many", "replayed well", "worst step error, %", "op's start, us", "unexplained, %")
STEP_PCT = 2.0
"""Likewise for the median error of the replayed steps."""


def page(
    built: Evaluation,
    further: Evaluation,
    second: Evaluation,
    typical_errors_pct: Sequence[float],
    plain_summary: str,
) -> str:
    """Return the whole page."""
    text = TEXT.read_text(encoding="utf-8")
    for name, part in {
        "goals": _goals(built.rows, further.rows, second.rows),
        "misses": _misses(built.rows),
        "not tried": _not_tried([*built.rows, *further.rows, *second.rows]),
        "fidelity summary": _fidelity_summary(built),
        "typical": _typical(typical_errors_pct),
        "not replayed": _not_replayed(built),
        "plain summary": plain_summary,
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return re.sub(r"\n{3,}", "\n\n", text)


def data(built: Evaluation, further: Evaluation, second: Evaluation) -> dict[str, str]:
    """Return the text of each CSV file by the end of its name."""
    sets = {BUILT: built, "further": further, "second": second}
    pairs = [pair_cells(name, row) for name, evaluation in sets.items() for row in evaluation.rows]
    return {
        "": csv_text(PAIR, pairs),
        "-unconnected": csv_text(("recordings", "why"), _unconnected()),
        "-replays": csv_text(REPLAYS, _fidelity(built)),
    }


def milliseconds(ns: int | None) -> str:
    """With three digits or more that count."""
    if ns is None:
        return ""
    value = ns / 1e6
    return f"{value:,.3f}" if value < 10 else f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def summary(rows: Sequence[PredictionRow]) -> str:
    """Return the quality of these predictions in a sentence."""
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    if not errors:
        return f"None of {len(rows)} pairs is predicted."
    none = len(rows) - len(errors)
    inside = sum(row.inside is True for row in rows)
    return (
        f"{len(errors)} pairs: the median error is {statistics.median(errors):.1f}%, the worst {max(errors):.1f}%, "
        f"and {inside} of {len(errors)} measured steps lie in the interval"
        + (f"; of {none} more nothing is predicted." if none else ".")
    )


def pair_cells(name: str, row: PredictionRow) -> list[str]:
    """Return the row of a pair in the CSV file; `name` is its set."""
    predicted, error = row.prediction.predicted_step_ns, row.error_pct
    return [
        name,
        _heading(row.pair.experiment),
        row.pair.label,
        ", ".join(row.pair.interventions),
        milliseconds(row.prediction.baseline_step_ns),
        milliseconds(predicted.value) if predicted else "",
        f"{milliseconds(predicted.low)} to {milliseconds(predicted.high)}" if predicted else "",
        f"{milliseconds(row.measured_ns)} ({row.measured.steps or 'window'})",
        "not predicted" if error is None else f"{error:+.1f}",
        "" if row.inside is None else "yes" if row.inside else "no",
    ]


def _goals(*sets: Sequence[PredictionRow]) -> str:
    """Return the goals and results for the pairs used while building, the further ones and the second set."""
    if not all(_errors(rows) for rows in sets):
        return ""
    lines = [
        "| | wanted | used while building | further, seen once | second set, seen once |",
        "|---|---|---:|---:|---:|",
        _goal("pairs", "", [str(len(rows)) for rows in sets]),
    ]
    for what, wanted, limit, measure in (
        ("median error", "at most", MEDIAN_PCT, lambda rows: statistics.median(_errors(rows))),
        ("worst error", "at most", WORST_PCT, lambda rows: max(_errors(rows))),
        ("measured steps inside the interval", "at least", INSIDE_PCT, _inside_pct),
    ):
        percentages = [measure(rows) for rows in sets]
        met = [match <= limit if wanted == "at most" else match >= limit for match in percentages]
        cells = [f"{value:.1f}%" if good else f"**{value:.1f}%**" for value, good in zip(percentages, met, strict=True)]
        lines.append(_goal(what, f"{wanted} {limit:.0f}%", cells))
    widths = [f"{_width_pct(rows):.0f}%" for rows in sets]
    lines.append(_goal("width of the interval, of the value (median)", "", widths))
    return "\n".join(lines)


def _goal(what: str, wanted: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join((what, wanted, *cells))} |"


def _width_pct(rows: Sequence[PredictionRow]) -> float:
    predicted_step_ns = [row.prediction.predicted_step_ns for row in rows]
    return statistics.median(
        100 * (item.high - item.low) / item.value for item in predicted_step_ns if item is not None
    )


def _errors(rows: Iterable[PredictionRow]) -> list[float]:
    return [abs(row.error_pct) for row in rows if row.error_pct is not None]


def _inside_pct(rows: Iterable[PredictionRow]) -> float:
    inside = [row.inside for row in rows if row.inside is not None]
    return 100 * sum(inside) / len(inside)


def _heading(experiment: str) -> str:
    return "traces" if experiment == "." else experiment


def _misses(rows: Sequence[PredictionRow]) -> str:
    """Return the number of pairs beyond the goals, in a sentence."""
    bad = [row for row in rows if row.error_pct is not None and (abs(row.error_pct) > WORST_PCT or not row.inside)]
    beyond = f"by an error above {WORST_PCT:.0f}% or outside the interval"
    return f"{plural(len(bad), 'pair')} used while building miss a goal, {beyond}."


def _unconnected() -> Iterator[tuple[str, str]]:
    for folder, content in folders().items():
        for item in content.unconnected:
            yield f"{_heading(experiment_of(folder))}: {item.recordings}", item.why


def _not_tried(rows: Sequence[PredictionRow]) -> str:
    tried = {intervention.split()[0] for row in rows for intervention in row.pair.interventions}
    missing = [f"`{intervention.id}`" for intervention in INTERVENTIONS.values() if intervention.id not in tried]
    return f"No pair tries {', '.join(missing)}." if missing else ""


def _fidelity_summary(evaluation: Evaluation) -> str:
    every = [row for many in evaluation.replayed.values() for row in many]
    valid = [row for row in every if row.replay.valid]
    errors = [row.replay.step_error_pct for row in valid if row.replay.step_error_pct is not None]
    if not errors:
        return "None replays well enough to be predicted from."
    late = sum(row.replay.start_error_ns > row.replay.launch_latency_ns for row in valid)
    starts = "every op begins" if not late else f"in all but {late} every op begins"
    return (
        f"{len(valid)} of {len(every)} replay well enough to be predicted from. There the median error of the step is "
        f"{statistics.median(errors):.2f}% at the median and {max(errors):.2f}% at most (wanted: under "
        f"{STEP_PCT:.0f}%), and {starts} within a launch's latency of its recorded start."
    )


def _fidelity(evaluation: Evaluation) -> Iterator[list[str]]:
    by_folder: dict[str, list[WhatIf]] = defaultdict(list)
    for path, many in evaluation.replayed.items():
        by_folder[place_of(path)].extend(many)
    for folder, some in by_folder.items():
        valid = [row for row in some if row.replay.valid]
        yield [
            _heading(experiment_of(folder)),
            str(len(some)),
            str(len(valid)),
            _worst([row.replay.step_error_pct or 0.0 for row in valid], 2),
            _worst([row.replay.start_error_ns / 1e3 for row in valid], 1),
            _worst([_unexplained_pct(row) for row in valid], 2),
        ]


def _typical(errors_pct: Sequence[float]) -> str:
    most = sum(error > STEP_PCT for error in errors_pct)
    return (
        f"the step's error is {statistics.median(errors_pct):.2f}% at the median and {max(errors_pct):.1f}% at most, "
        f"and above {STEP_PCT:.0f}% for {most} of {len(errors_pct)}"
    )


def _unexplained_pct(prediction: WhatIf) -> float:
    """Share of the steps behind the median."""
    return 100 * prediction.replay.unexplained_ns / max(prediction.baseline_step_ns * max(prediction.steps, 1), 1)


def _worst(values: list[float], decimals: int) -> str:
    return f"{max(values):.{decimals}f}" if values else ""


def _not_replayed(evaluation: Evaluation) -> str:
    lines = []
    for path, many in evaluation.replayed.items():
        folder = experiment_of(place_of(path))
        for row in many:
            if not row.replay.valid:
                name = name_of(path) if folder == "." else f"{folder}/{name_of(path)}"
                device = f", device {row.device}" if len(many) > 1 else ""
                lines.append(f"- {name}{device}: {' '.join(map(clean, row.replay.reasons))}")
    return "\n".join(["No prediction from these:", "", *lines]) if lines else ""
