"""Tests that `docs/evaluation/whatif.csv` has today's predictions: the quick part is computed again."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.data_files import csv_line
from benchmarks.whatif_evaluation import RecordingPair, evaluate, pairs, unpacked
from benchmarks.whatif_page import BUILT, pair_cells

DATA = Path(__file__).parents[2] / "docs" / "evaluation" / "whatif.csv"
QUICK = ("copy_matrix", "kv_offload", "pin_cost")
STALE = "stale: run python -m benchmarks.whatif docs/evaluation/whatif.md"


@pytest.fixture(scope="module")
def every_pair() -> Iterator[list[RecordingPair]]:
    with unpacked() as packed:
        yield pairs(packed)


@pytest.fixture(scope="module")
def written() -> str:
    return DATA.read_text(encoding="utf-8")


def test_predictions_in_the_file_are_what_is_predicted(every_pair: list[RecordingPair], written: str) -> None:
    rows = evaluate([pair for pair in every_pair if pair.experiment in QUICK]).rows
    lines = [csv_line(pair_cells(BUILT, row)) for row in rows]
    assert lines
    assert [line for line in lines if line not in written.splitlines()] == [], STALE


def test_every_pair_is_in_the_file(every_pair: list[RecordingPair], written: str) -> None:
    listed = {label for _, _, label, *_ in csv.reader(written.splitlines())}
    assert {pair.label for pair in every_pair} - listed == set(), STALE
