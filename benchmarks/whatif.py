"""Errors of predictions, each compared with the recording that it predicts.

    python -m benchmarks.whatif [--experiment NAME]...   # prints the errors, the largest first
    python -m benchmarks.whatif docs/evaluation/whatif.md           # writes the page and its picture

Only the page shows the pairs of `traces/further` and `traces/second`: they are not to be looked at while something is
being changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import whatif_plain
from benchmarks.whatif_evaluation import (
    FURTHER,
    SECOND,
    Evaluation,
    PredictionRow,
    evaluate,
    further_pairs,
    name_of,
    pairs,
    recordings,
    unpacked,
)
from benchmarks.whatif_page import data, milliseconds, page, summary
from benchmarks.whatif_typical import typical_errors_pct

WIDTH = 200


def errors(evaluation: Evaluation) -> Table:
    """Return the pairs as a table for the terminal: those without a prediction, then the largest error first."""
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "before", "after", "interventions"):
        table.add_column(name)
    for name in ("step, ms", "predicted", "low", "high", "measured", "error %"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in sorted(evaluation.rows, key=_by_error):
        predicted, error = row.prediction.predicted_step_ns, row.error_pct
        values = (predicted.value, predicted.low, predicted.high) if predicted else (None, None, None)
        table.add_row(
            row.pair.experiment,
            name_of(row.pair.before),
            name_of(row.pair.after),
            ", ".join(row.pair.interventions),
            milliseconds(row.prediction.baseline_step_ns),
            *map(milliseconds, values),
            milliseconds(row.measured_ns),
            "" if error is None else f"{error:+.1f}",
            "; ".join(row.prediction.replay.reasons) if error is None else "" if row.inside else "outside",
        )
    return table


def _failure_text(failures: list[str]) -> str:
    return (
        f"{failures[0]}\nand {len(failures) - 1} more that could not be computed" if len(failures) > 1 else failures[0]
    )


def _by_error(row: PredictionRow) -> tuple[bool, float]:
    return row.error_pct is not None, -abs(row.error_pct or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Holds predictions against recordings of what they predict.")
    parser.add_argument("page", type=Path, nargs="?", help="write the page here, and its picture beside it")
    parser.add_argument("--experiment", action="append", metavar="NAME", help="only its pairs (may be repeated)")
    options = parser.parse_args()
    with unpacked() as packed:
        if options.page is not None:
            write(options.page, packed)
            return
        asked = pairs(packed)
        if options.experiment:
            asked = [pair for pair in asked if pair.experiment in options.experiment]
        evaluation = evaluate(asked)
    console = Console(width=WIDTH)
    console.print(errors(evaluation), summary(evaluation.rows), sep="\n", markup=False)
    if evaluation.failures:
        sys.exit(_failure_text(evaluation.failures))


def write(target: Path, packed: Path) -> None:
    """Write the page, and its picture and data beside it."""
    every, listed = recordings(packed), pairs(packed)
    held = whatif_plain.plain_rows(listed)
    built = evaluate(listed, every)
    further, second = (evaluate(further_pairs(place)) for place in (FURTHER, SECOND))
    if failures := built.failures + further.failures + second.failures:
        sys.exit(_failure_text(failures))
    from benchmarks.whatif_plot import draw

    draw([*built.rows, *further.rows], second.rows, target.with_name(f"{target.stem}-errors.png"))
    for name, text in {**data(built, further, second), "-plain": whatif_plain.table(held)}.items():
        target.with_name(f"{target.stem}{name}.csv").write_text(text, encoding="utf-8")
    sentence = whatif_plain.summary(held)
    text = page(built, further, second, typical_errors_pct(every), sentence)
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
