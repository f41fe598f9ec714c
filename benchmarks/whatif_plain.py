"""Predictions compared with plain steps, which the laboratory's variants took before any profiler ran."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.data_files import csv_text
from benchmarks.renew_laboratory import measured
from benchmarks.whatif_evaluation import TRACES, RecordingPair
from benchmarks.whatif_page import milliseconds
from overlapscope.prediction.predict import predict
from overlapscope.prediction.result import WhatIf
from overlapscope.reading import load


class PlainRow(Struct, frozen=True):
    """A pair, its prediction with the plain step told, and the plain step of the changed program."""

    pair: RecordingPair
    prediction: WhatIf
    plain_ns: int
    recorded_error_pct: float | None
    """Error of the prediction for the recording, whose plain step is not known."""

    @property
    def error_pct(self) -> float | None:
        predicted = self.prediction.predicted_step_ns
        return None if predicted is None else 100 * (predicted.value / self.plain_ns - 1)

    @property
    def inside(self) -> bool | None:
        """True if the plain step lies in the interval."""
        predicted = self.prediction.predicted_step_ns
        return None if predicted is None else predicted.low <= self.plain_ns <= predicted.high


def plain_rows(pairs: Sequence[RecordingPair]) -> list[PlainRow]:
    """Return the pairs of which both plain steps are known."""
    plain_steps = laboratory_steps()
    rows = []
    for pair in pairs:
        before, after = plain_steps.get(pair.before), plain_steps.get(pair.after)
        if before is None or after is None:
            continue
        trace = load(pair.before, progress=False, cache=False)
        result = predict(trace, pair.interventions, plain_step_ns=before).result
        recorded = predict(trace, pair.interventions).result.predicted_step_ns
        error = None if recorded is None else 100 * (recorded.value / after - 1)
        rows.append(PlainRow(pair, result, after, error))
    return rows


def laboratory_steps() -> dict[Path, int]:
    """Return the median step of each recorded variant without a profiler."""
    rows = {}
    place = TRACES / "laboratory"
    for experiment in measured(place).experiments:
        for variant in experiment.variants:
            if (plain_ns := experiment.plain_step_ns(variant)) is not None:
                rows.update({place / trace: plain_ns for trace in variant.traces})
    return rows


def summary(rows: Sequence[PlainRow]) -> str:
    """Return their quality in a sentence."""
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    recorded = [abs(row.recorded_error_pct) for row in rows if row.recorded_error_pct is not None]
    inside = sum(row.inside is True for row in rows)
    return (
        f"{len(errors)} pairs: the median error is {statistics.median(errors):.1f}%, the worst {max(errors):.1f}%, "
        f"and {inside} of {len(errors)} plain steps lie in the interval. Of the recordings, without a "
        f"plain step, the median error is {statistics.median(recorded):.1f}%, the worst {max(recorded):.1f}%."
    )


HEAD = (
    *("pair", "interventions", "plain before, ms", "predicted", "interval", "plain after, ms", "error, %", "inside"),
    "from the recording, %",
)


def table(rows: Sequence[PlainRow]) -> str:
    """Return the CSV file with a row for each."""
    return csv_text(HEAD, map(_cells, rows))


def _cells(row: PlainRow) -> tuple[str, ...]:
    predicted = row.prediction.predicted_step_ns
    return (
        f"{row.pair.experiment}: {row.pair.label}",
        ", ".join(row.pair.interventions),
        milliseconds(row.prediction.baseline_step_ns),
        milliseconds(predicted.value) if predicted else "",
        f"{milliseconds(predicted.low)} to {milliseconds(predicted.high)}" if predicted else "",
        milliseconds(row.plain_ns),
        "not predicted" if row.error_pct is None else f"{row.error_pct:+.1f}",
        "" if row.inside is None else "yes" if row.inside else "no",
        "" if row.recorded_error_pct is None else f"{row.recorded_error_pct:+.1f}",
    )
