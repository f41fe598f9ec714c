"""Reports of every bundled recording that no test in `tests/unit` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import TRACES, various
from tests.unit import test_one_screen

OTHERS = sorted({*TRACES.rglob("*.json.gz")} - {*various()})


@pytest.mark.parametrize("recording", OTHERS, ids=lambda path: str(path.relative_to(TRACES)))
def test_it_fits_a_screen(recording: Path) -> None:
    test_one_screen.test_a_report_fits_a_screen(recording)
