"""Reports of every bundled recording that no test in `tests/core` reads, in a thorough run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.render import test_html_report
from tests.core.report import test_one_screen
from tests.support.helpers import TELLING, TRACES, various
from tests.support.recordings import report_of

TOLD = [TRACES / f"{name}.json.gz" for name in TELLING]
OTHERS = sorted({*TRACES.rglob("*.json.gz")} - {*various()})


@pytest.mark.parametrize("recording", OTHERS, ids=lambda path: str(path.relative_to(TRACES)))
def test_it_fits_a_screen(recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    test_one_screen.test_a_report_fits_a_screen(recording, capsys, monkeypatch)


def test_many_traces_share_one_files_room() -> None:
    done = test_html_report.analyses("known_causes")
    assert len(done) > 20
    assert len(test_html_report.rendered("known_causes").encode()) < test_html_report.LIMIT_BYTES
    timelines = test_html_report.data(test_html_report.rendered("known_causes"), "timelines")
    assert len(timelines) == len(done) and all(timeline["tiles"] for timeline in timelines.values())


def shown_words(recording: Path) -> set[tuple[str, ...]]:
    """Return the rules that find something, the causes of lost time and the answers of checks."""
    report = report_of(recording)
    causes = [
        causes.items() for device in report.devices for causes in (device.exposed_copy_by_cause, device.idle_by_cause)
    ]
    return (
        {(finding.rule,) for finding in report.findings}
        | {(cause,) for cause_id in causes for cause, ns in cause_id if ns}
        | {(check.id, check.status) for trace in report.traces for check in trace.trust.checks}
    )


def test_the_recordings_of_make_test_tell_everything_that_any_tells() -> None:
    assert set().union(*map(shown_words, various())) == set().union(*map(shown_words, TOLD))
