"""The report of a trace of one device fits a screen, whatever is wrong with it, and loses nothing by that."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from msgspec import structs

from overlapscope.commands import main
from overlapscope.documents.model import brief
from overlapscope.render import terminal
from overlapscope.report.document import document, proof
from overlapscope.report.model import build
from overlapscope.report.page import Page
from tests.support.helpers import TRACES, various
from tests.support.recordings import analysis_of, report_of

LINES, WIDTH = 48, 80


@pytest.mark.parametrize("recording", various(), ids=lambda path: str(path.relative_to(TRACES)))
def test_a_report_fits_a_screen(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user sees it who is in the recording's directory."""
    devices = len(report_of(recording).devices)
    monkeypatch.chdir(recording.parent)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert main(["analyze", recording.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES * max(1, devices)
    assert max(map(len, lines)) <= WIDTH
    assert lines[-1].endswith(".")


@pytest.mark.parametrize("recording", ["pipeline_1stream", "known_causes/item_every_step", "known_causes/launch_bound"])
def test_the_command_under_a_finding_shows_what_its_fix_saves(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(report_of(Path(f"traces/{recording}.json.gz")))
    finding = page.report.findings[0]
    (section,) = page.sections()
    command = shlex.split(proof(section, finding))
    assert command[:3] == ["overlapscope", "whatif", f"traces/{recording}.json.gz"]
    assert main([*command[1:], "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert finding.saving is not None and len(document["interventions"]) == len(finding.saving.fix)
    saved, step = document["gain_ns"]["value"], document["baseline_step_ns"]
    assert section.device is not None
    assert saved / step == pytest.approx(section.per_step(finding.saving.saved_ns) / section.device.span_ns, abs=0.001)


def test_a_command_repeats_no_name_that_is_more_than_a_name(tmp_path: Path) -> None:
    page = Page(report_of(Path("traces/pipeline_1stream.json.gz")))
    (section,) = page.sections()
    finding = next(finding for finding in page.report.findings if finding.saving)
    spaced = structs.replace(finding, source="my traces/-a.json")
    assert proof(section, spaced).startswith("overlapscope whatif 'my traces/-a.json' --")
    assert proof(section, structs.replace(finding, source="-a.json")).startswith("overlapscope whatif ./-a.json --")
    for source in ("a`id`.json", "a<script>.json", "a\x1b[31m.json"):
        assert proof(section, structs.replace(finding, source=source)) == ""
    assert proof(section, structs.replace(finding, saving=None)) == ""


def test_findings_of_several_ranks_give_each_piece_of_advice_once() -> None:
    traces = Path("traces/laboratory/ddp_training/no_overlap.traces")
    ranks = [analysis_of(traces / f"rank{number}.trace.json.gz") for number in (0, 1)]
    whole = terminal.render(document(Page(build(ranks), verbose=True)), width=WIDTH)
    assert whole.count("Give the collective a stream of its own") == len(ranks) + 1, "each verdict's, and the findings'"
    assert whole.count("Why: Communication runs alone for ") == len(ranks)
    assert whole.count("Communication runs alone for ") == 2 * len(ranks)
    short = terminal.render(brief(document(Page(build(ranks)))), width=WIDTH)
    assert "on rank 0, also on rank 1" in short
    assert len(short.splitlines()) <= 2 * LINES
