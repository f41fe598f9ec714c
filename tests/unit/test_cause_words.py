"""The words beside charts and tables: nothing that an analysis can say is without them."""

from __future__ import annotations

from pathlib import Path

import overlapscope as ov
from overlapscope.analysis.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.report.cause_words import EXPOSED_COPY, IDLE
from overlapscope.report.check_words import AFFECTS

TRACE = Path(__file__).parents[2] / "traces" / "gpt2_train.json.gz"


def test_every_cause_has_words() -> None:
    assert tuple(EXPOSED_COPY) == COPY_CAUSES and tuple(IDLE) == IDLE_CAUSES


def test_every_trust_check_says_what_it_affects() -> None:
    checks = [check.id for check in ov.analyze(ov.load(TRACE)).traces[0].trust.checks]
    assert sorted(AFFECTS) == sorted(checks)
