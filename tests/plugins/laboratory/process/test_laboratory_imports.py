"""Tests of which modules the laboratory's commands load, each in a separate process."""

from __future__ import annotations

from pathlib import Path

from overlapscope.plugins.laboratory.results import write_results
from tests.plugins.laboratory.unit.test_laboratory_report import made_results
from tests.process.test_imports import loaded_by


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    write_results(made_results(), tmp_path)
    arguments = ["scenarios", "report", str(tmp_path)]
    assert "torch" not in loaded_by(f"from overlapscope.commands import main; main({arguments!r})")
