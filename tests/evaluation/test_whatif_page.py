"""`docs/evaluation/whatif.md` says what is so: what is quick of it is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.whatif_evaluation import Pair, evaluate, pairs, unpacked
from benchmarks.whatif_page import pair_line

PAGE = Path(__file__).parents[2] / "docs" / "evaluation" / "whatif.md"
QUICK = ("copy_matrix", "kv_offload", "pin_cost")
STALE = "stale: run python -m benchmarks.whatif docs/evaluation/whatif.md"


@pytest.fixture(scope="module")
def every_pair() -> Iterator[list[Pair]]:
    with unpacked() as packed:
        yield pairs(packed)


@pytest.fixture(scope="module")
def written() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_predictions_on_the_page_are_what_is_predicted(every_pair: list[Pair], written: str) -> None:
    lines = [pair_line(row) for row in evaluate([pair for pair in every_pair if pair.experiment in QUICK]).rows]
    assert lines
    assert [line for line in lines if line not in written.splitlines()] == [], STALE


def test_every_pair_is_on_the_page(every_pair: list[Pair], written: str) -> None:
    assert [pair.label for pair in every_pair if f"| {pair.label} |" not in written] == [], STALE
