"""The report of a trace of one device fits a screen, whatever is wrong with it, and loses nothing by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.analysis.strip import measure
from overlapscope.documents.model import brief
from overlapscope.documents.strip import LABEL_WIDTH
from overlapscope.render import terminal
from overlapscope.report.document import document
from overlapscope.report.page import Page
from tests.support.helpers import TRACES, various
from tests.support.recordings import analysis_of, report_of

LINES, WIDTH = 45, 80


def page_of(recording: Path, *, verbose: bool = False) -> Page:
    devices = analysis_of(recording).devices
    strips = {
        (0, one.result.device): measure(one.timeline, one.result, slices=WIDTH - LABEL_WIDTH, lanes=8 if verbose else 4)
        for one in devices
    }
    return Page(report_of(recording), verbose=verbose, strips=strips)


@pytest.mark.parametrize("recording", various(), ids=lambda path: str(path.relative_to(TRACES)))
def test_a_report_fits_a_screen(recording: Path) -> None:
    page = page_of(recording)
    lines = terminal.render(brief(document(page)), width=WIDTH).splitlines()
    assert len(lines) <= LINES * max(1, len(page.report.devices))
    assert max(map(len, lines)) <= WIDTH
    assert lines[-1].endswith(".")
