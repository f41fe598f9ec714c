"""`docs/hta.md` says what is so, and every difference to HTA in it is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("hta", reason="compares with HolisticTraceAnalysis")

from benchmarks.hta import page

WRITTEN = Path(__file__).parents[1] / "docs" / "hta.md"


def test_the_page_is_what_is_measured() -> None:
    made = page()
    assert "are ours on all of these" in made
    assert WRITTEN.read_text(encoding="utf-8") == made, "run python -m benchmarks.hta docs/hta.md"
