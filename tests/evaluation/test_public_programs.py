"""The page of public programs says what was measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.public_programs import KEPT, read
from benchmarks.public_programs_page import data, page
from benchmarks.public_programs_runs import table

PAGE = Path("docs/evaluation/public-programs.md")


def test_the_page_follows_from_the_measurements() -> None:
    measured = read(KEPT)
    assert PAGE.read_text(encoding="utf-8") == page(measured, table())
    assert PAGE.with_suffix(".csv").read_text(encoding="utf-8") == data(measured, table())
