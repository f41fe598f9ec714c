"""Tests of the programs with a planted cause on the host, and of the page that compares reports with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks.host_causes import RESULTS, SCRIPTS, HostCauseRun, Way, planted_in, programs, trace_path
from benchmarks.host_causes_page import files, rows
from benchmarks.plain_runs import MachineVersions, PlainStepTimes
from tests.programs.host.options import NOT_POSSIBLE
from tests.support import forked
from tests.support.helpers import TRACES

PROGRAMS = programs()
GROUPS = "cpu_quota"
"""Makes a control group, which tests leave alone."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_measures_its_planted_part(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    for fixed in [["--fixed"]] if name == GROUPS else [[], ["--fixed"]]:
        done = forked.run([SCRIPTS / f"{name}.py", "--device", "cpu", "--steps", "3", *fixed], tmp_path)
        assert done.returncode in (0, NOT_POSSIBLE), done.stderr
        assert done.returncode or len(planted_in(done.stdout)) == 3
        if not fixed and not done.returncode:
            assert any(planted_in(done.stdout)) == bool(PROGRAMS[name].causes)


def test_a_report_is_compared_with_what_programs_measured(tmp_path: Path) -> None:
    trace = trace_path(tmp_path, "per_sample_upload")
    trace.parent.mkdir()
    shutil.copy(TRACES / "known_causes" / "host_sync.json.gz", trace)
    timed = PlainStepTimes((10_000_000,) * 2, (), MachineVersions(None, "2.11.0", "3.12.0"))
    ways: tuple[Way, ...] = ("planted", "recorded", "planted")
    runs = [HostCauseRun("per_sample_upload", way, 1.0, 0, "", (4_000_000,) * 50, timed) for way in ways]
    runs.append(HostCauseRun("cpu_quota", "planted", 1.0, NOT_POSSIBLE, "left out: no control groups\n"))
    runs.append(HostCauseRun("per_sample_upload", "fixed", 1.0, 1, "Oops\n", (), timed))
    (tmp_path / RESULTS).write_bytes(msgspec.json.encode(runs))

    (row,) = rows(tmp_path)
    assert (row.step_ns("planted"), row.planted_ns, row.reported_ns) == (10_000_000, 4_000_000, 0)
    assert row.planted_apart_pct == -100
    assert not row.cause_on_top and row.line_on_top is False and not row.findings
    text = files(tmp_path, tmp_path / "page.md")[tmp_path / "page.md"]
    assert "| cause and line on top | 11 of 12 | **0 of 1** |" in text
    assert "`cpu_quota` (left out: no control groups)" in text
    assert "- `per_sample_upload`, fixed, ended with 1: Oops" in text
