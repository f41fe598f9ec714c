"""Programs that do what programs rarely do behave under `overlapscope run` as they do alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.ways_to_run import DIFFER_MOST, PROGRAMS
from tests.support.as_alone import check_that_it_runs_as_alone

pytest.importorskip("torch", reason="records with torch")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in DIFFER_MOST])
def test_a_program_runs_as_it_does_alone(name: str, tmp_path: Path) -> None:
    check_that_it_runs_as_alone(PROGRAMS[name], tmp_path)
