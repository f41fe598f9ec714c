"""The text of `docs/evaluation/plain.md`, and the CSV files beside it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.plain_evaluation import EvaluatedRecording, PredictedStep, UntoldStep, error_pct
from benchmarks.plain_runs import BEFORE, MachineVersions
from benchmarks.whatif_page import milliseconds
from overlapscope.base.words import clean

TEXT = Path(__file__).with_name("plain_page.md")
"""The page around the tables."""
MEASURED_PCT, IDLE_POINTS = 3.0, 3.0
"""Goals: limits for the measured plain step and the corrected idle time."""
MEDIAN_PCT, WORST_PCT = 5.0, 20.0
"""Of predictions."""


def page(
    rows: Sequence[EvaluatedRecording], laboratory: Mapping[str, UntoldStep], machine: MachineVersions, processes: int
) -> str:
    """Return the whole page."""
    text = TEXT.read_text(encoding="utf-8")
    gpu = machine.gpu or "a CPU"
    for name, part in {
        "programs": str(len({row.program for row in rows})),
        "processes": str(processes),
        "machine": f"{gpu}, torch {machine.torch}, Python {machine.python}",
        "goals": _goals(rows),
        "laboratory": _laboratory([*laboratory.values()]),
    }.items():
        text = text.replace(f"{{{name}}}", part)
    return re.sub(r"\n{3,}", "\n\n", text)


def data(rows: Sequence[EvaluatedRecording], laboratory: Mapping[str, UntoldStep]) -> dict[str, str]:
    """Return the text of each CSV file by the end of its name."""
    untold = {**{_name(row): row.untold for row in rows}, **laboratory}
    return {
        "": csv_text(PLAIN, map(_plain, rows)),
        "-idle": csv_text(IDLE, map(_idle, rows)),
        "-intervals": csv_text(UNTOLD, (_untold(*named) for named in untold.items())),
        "-predictions": csv_text(PAIRS, (_pair(row, prediction) for row in rows for prediction in row.predicted)),
    }


# -- the goals -------------------------------------------------------------------------------------


def _goals(rows: Sequence[EvaluatedRecording]) -> str:
    predicted = [prediction for row in rows for prediction in row.predicted]
    errors = [abs(prediction.error_pct) for prediction in predicted if prediction.error_pct is not None]
    bare = [abs(prediction.recorded_error_pct) for prediction in predicted if prediction.recorded_error_pct is not None]
    within = [abs(error) <= MEASURED_PCT for row in rows if (error := _measured_error_pct(row)) is not None]
    points = [abs(idle_points) <= IDLE_POINTS for row in rows if (idle_points := _idle_points(row)) is not None]
    saved = [_saved_pct(row, prediction) for row in rows for prediction in row.predicted]
    apart = [abs(promised - done) for promised, done in saved if promised is not None and done is not None]
    before = [
        100 * (prediction.recorded_ns.high - prediction.recorded_ns.low) / prediction.recorded_ns.value
        for prediction in predicted
        if prediction.recorded_ns and prediction.step_ns
    ]
    widths = [
        100 * (prediction.step_ns.high - prediction.step_ns.low) / prediction.step_ns.value
        for prediction in predicted
        if prediction.step_ns
    ]
    lines = [
        _goal(f"plain step measured within {MEASURED_PCT:.0f}% of the truth", "all", _share(within)),
        _goal(f"corrected idle within {IDLE_POINTS:.0f} points of the truth", "all", _share(points)),
        _goal(
            "without a plain step, the interval's lower end is no longer than the truth",
            "all",
            _share([row.untold.low_holds for row in rows]),
        ),
        _goal(
            "the truth lies in the interval",
            "",
            _share([row.untold.low_holds and not row.untold.above_pct for row in rows], 0.0),
        ),
        _goal(
            "the interval's width, as a share of the recorded step (median)",
            "",
            _most(_median([row.untold.width_pct for row in rows]), float("inf")),
        ),
        _goal("predictions, the median error", f"{MEDIAN_PCT:.0f}%", _most(_median(errors), MEDIAN_PCT)),
        _goal("predictions, the worst error", f"{WORST_PCT:.0f}%", _most(max(errors, default=None), WORST_PCT)),
        _goal(
            "predictions, the interval holds the truth",
            "",
            _share([prediction.inside for prediction in predicted if prediction.inside is not None], 0.0),
        ),
        _goal("predictions, the interval's width (median)", "", _most(_median(widths), float("inf"))),
        _goal("their width without a plain step", "", _most(_median(before), float("inf"))),
        _goal("share of the step saved, as predicted and as measured: points apart (median)", "", _points(apart)),
        _goal("the median error without a plain step", "", _most(_median(bare), float("inf"))),
        _goal("the worst error without a plain step", "", _most(max(bare, default=None), float("inf"))),
    ]
    return "\n".join(["| | wanted | reached |", "|---|---:|---:|", *lines])


def _laboratory(untold: Sequence[UntoldStep]) -> str:
    """Return a sentence on the laboratory's recordings."""
    holds, longer = sum(each.low_holds for each in untold), [each.above_pct for each in untold if each.above_pct]
    return (
        f"the lower end holds for {holds} of {len(untold)}, and {len(longer)} were timed longer than recorded, by "
        f"{statistics.median(longer):.1f}% in the median and at most {max(longer):.1f}%"
    )


def _goal(what: str, wanted: str, reached: str) -> str:
    return f"| {what} | {wanted} | {reached} |"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _most(value: float | None, limit: float) -> str:
    return "n/a" if value is None else _bold(f"{value:.1f}%", good=value <= limit)


def _points(apart: Sequence[float]) -> str:
    return f"{statistics.median(apart):.1f}" if apart else "n/a"


def _share(met: Sequence[bool], least_pct: float = 100.0) -> str:
    if not met:
        return "n/a"
    return _bold(f"{sum(met)} of {len(met)}", good=100 * sum(met) >= least_pct * len(met))


def _measured_error_pct(row: EvaluatedRecording) -> float | None:
    if row.plain is None or row.plain.origin != "measured":
        return None
    return error_pct(row.plain.step_ns, row.truth.step_ns)


def _idle_points(row: EvaluatedRecording) -> float | None:
    return None if row.corrected_idle_pct is None else row.corrected_idle_pct - row.idle_pct


# -- the tables ------------------------------------------------------------------------------------

PLAIN = (
    "program",
    "bound by",
    "plain, ms",
    "spread",
    "mean",
    "measured before, behind",
    "error, %",
    "recorded, ms",
    "of plain",
)
IDLE = ("program", "busy, ms a step", "idle, %", "corrected, %", "points apart")
UNTOLD = ("program", "plain, ms", "busy, ms a step", "interval", "width, %", "lower end holds", "above the interval, %")
PAIRS = (
    "program, edits",
    "interventions",
    "before, ms",
    "predicted, ms",
    "interval",
    "measured, ms",
    "error, %",
    "inside",
    "saved as predicted, %",
    "as measured, %",
    "from the recording, %",
)


def _name(row: EvaluatedRecording) -> str:
    parts = [row.program, *([] if row.variant == BEFORE else [row.variant]), *([f"--{row.way}"] if row.way else [])]
    return " ".join(parts)


def _plain(row: EvaluatedRecording) -> list[str]:
    truth, recorded_ns = row.truth, None if row.plain is None else row.plain.recorded_step_ns
    return [
        _name(row),
        row.bound,
        milliseconds(truth.step_ns),
        f"{milliseconds(truth.low_ns)} to {milliseconds(truth.high_ns)}",
        milliseconds(truth.mean_ns),
        f"{milliseconds(row.before_ns)}, {milliseconds(row.after_ns)}",
        _signed(_measured_error_pct(row), MEASURED_PCT),
        milliseconds(recorded_ns),
        "" if recorded_ns is None else f"x {recorded_ns / truth.step_ns:.2f}",
    ]


def _idle(row: EvaluatedRecording) -> list[str]:
    corrected = row.corrected_idle_pct
    return [
        _name(row),
        milliseconds(row.busy_ns),
        f"{row.idle_pct:.1f}",
        "n/a" if corrected is None else f"{corrected:.1f}",
        _signed(_idle_points(row), IDLE_POINTS),
    ]


def _untold(name: str, untold: UntoldStep) -> list[str]:
    return [
        name,
        milliseconds(untold.plain_ns),
        milliseconds(untold.busy_ns),
        f"{milliseconds(untold.low_ns)} to {milliseconds(untold.high_ns)}",
        f"{untold.width_pct:.1f}",
        _yes(untold.low_holds),
        f"{untold.above_pct:.1f}" if untold.above_pct else "",
    ]


def _pair(row: EvaluatedRecording, predicted: PredictedStep) -> list[str]:
    step_ns = predicted.step_ns
    return [
        f"{_name(row)}: {', '.join(predicted.pair.edits)}",
        ", ".join(f"`{name}`" for name in predicted.pair.interventions),
        milliseconds(row.truth.step_ns),
        milliseconds(step_ns.value) if step_ns else "",
        f"{milliseconds(step_ns.low)} to {milliseconds(step_ns.high)}" if step_ns else "",
        milliseconds(predicted.measured_ns),
        _signed(predicted.error_pct, WORST_PCT) if step_ns else f"not predicted: {clean(predicted.why_not)}",
        "" if predicted.inside is None else _yes(predicted.inside),
        *("" if saved is None else f"{saved:.1f}" for saved in _saved_pct(row, predicted)),
        _signed(predicted.recorded_error_pct, float("inf")),
    ]


def _saved_pct(row: EvaluatedRecording, predicted: PredictedStep) -> tuple[float | None, float | None]:
    """Return the saved share of the recorded process's plain step, as predicted, and of the true one, as measured."""
    predicted_pct = None
    if predicted.step_ns is not None and row.plain is not None:
        predicted_pct = 100 * (1 - predicted.step_ns.value / row.plain.step_ns)
    return predicted_pct, 100 * (1 - predicted.measured_ns / row.truth.step_ns)


def _signed(value: float | None, limit: float) -> str:
    return "n/a" if value is None else _bold(f"{value:+.1f}", good=abs(value) <= limit)


def _yes(inside: bool) -> str:
    return _bold("yes" if inside else "no", good=inside)


def _bold(text: str, *, good: bool) -> str:
    return text if good else f"**{text}**"
