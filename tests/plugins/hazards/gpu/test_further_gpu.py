"""The programs that predictions are held against, on a real GPU: none has a data race, in any of its ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from overlapscope.plugins.hazards.checker import HazardChecker
from tests.programs import whatif_pairs, whatif_second
from tests.programs.whatif_offloading import Step

PROGRAMS = {**whatif_pairs.PROGRAMS, **whatif_second.PROGRAMS}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_way_of_a_program_has_a_race(program: Callable[[str], Step]) -> None:
    reports = {}
    for way in PROGRAMS[program]:
        torch.cuda.synchronize()
        checker = HazardChecker()
        checker.start()
        try:
            step = program(way)
            for _ in range(3):
                step()
        finally:
            checker.stop()
            torch.cuda.synchronize()
        del step
        reports[way] = {hazard.kind for hazard in checker.hazards}
    assert not any(reports.values()), reports
