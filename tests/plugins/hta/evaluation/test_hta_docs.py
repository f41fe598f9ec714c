"""`docs/evaluation/hta.md` says what is so, and every difference to HTA in it is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("hta", reason="compares with HolisticTraceAnalysis")

from benchmarks.hta import page

WRITTEN = Path(__file__).parents[4] / "docs" / "evaluation" / "hta.md"


def test_the_page_is_what_is_measured() -> None:
    text, figures = page()
    assert "are ours on all of these" in text
    assert WRITTEN.read_text(encoding="utf-8") == text, "run python -m benchmarks.hta"
    assert _rounded(WRITTEN.with_suffix(".csv").read_text(encoding="utf-8")) == _rounded(figures)


def _rounded(page: str) -> str:
    """HTA sorts with NumPy's unstable sort, whose order of equal times depends on the processor: by a microsecond, its
    idle time does too."""
    return re.sub(r"(\d+\.\d\d)\d\b", r"\1", page)
