"""Reports of every bundled recording that no test in `tests/unit` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import TRACES, various
from tests.unit import test_html_report, test_one_screen

OTHERS = sorted({*TRACES.rglob("*.json.gz")} - {*various()})


@pytest.mark.parametrize("recording", OTHERS, ids=lambda path: str(path.relative_to(TRACES)))
def test_it_fits_a_screen(recording: Path) -> None:
    test_one_screen.test_a_report_fits_a_screen(recording)


def test_many_traces_share_one_files_room() -> None:
    done = test_html_report.analyses("known_causes")
    assert len(done) > 20
    assert len(test_html_report.rendered("known_causes").encode()) < test_html_report.LIMIT_BYTES
    timelines = test_html_report.data(test_html_report.rendered("known_causes"), "timelines")
    assert len(timelines) == len(done) and all(one["tiles"] for one in timelines.values())
