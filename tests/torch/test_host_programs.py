"""Tests of the programs with a planted cause on the host, and of the page that compares reports with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks.host_causes import (
    RESULTS,
    SCRIPTS,
    HostCauseRun,
    MeasuredBlocks,
    StepBlock,
    measured_in,
    programs,
    trace_path,
)
from benchmarks.host_causes_page import files, rows
from benchmarks.plain_runs import MachineVersions
from tests.programs.host.options import NOT_POSSIBLE
from tests.support import forked
from tests.support.helpers import TRACES

PROGRAMS = programs()
GROUPS = "cpu_quota"
"""Makes a control group, which tests leave alone."""


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != GROUPS])
def test_a_program_measures_steps_with_its_cause_and_without(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    script: list[str | Path] = [SCRIPTS / f"{name}.py", "--device", "cpu", "--steps", "3", "--blocks", "2"]
    done = forked.run(script, tmp_path, unloads=False)
    assert done.returncode in (0, NOT_POSSIBLE), done.stderr
    if not done.returncode:
        measured = measured_in(done.stdout)
        assert measured is not None
        planted, fixed = measured.blocks
        assert (planted.fixed, fixed.fixed) == (False, True)
        assert min(planted.steps, fixed.steps, planted.span_ns, fixed.span_ns) > 0
        assert bool(planted.planted_ns) == bool(PROGRAMS[name].causes)


def test_a_report_is_compared_with_what_programs_measured(tmp_path: Path) -> None:
    trace = trace_path(tmp_path, "per_sample_upload")
    trace.parent.mkdir()
    shutil.copy(TRACES / "known_causes" / "host_sync.json.gz", trace)
    blocks = [
        StepBlock(fixed, 10, ms * 1_000_000, 0 if fixed else 40_000_000) for fixed, ms in [(False, 100), (True, 70)]
    ]
    measured = MeasuredBlocks((*blocks, *blocks), MachineVersions(None, "2.11.0", "3.12.0"))
    runs = [
        HostCauseRun("per_sample_upload", 1.0, 1, "Oops\n", measured),
        HostCauseRun("cpu_quota", 1.0, NOT_POSSIBLE, "left out: no control groups\n"),
    ]
    (tmp_path / RESULTS).write_bytes(msgspec.json.encode(runs))

    (row,) = rows(tmp_path)
    assert (row.step_ns(fixed=False), row.step_ns(fixed=True), row.gain_ns) == (10_000_000, 7_000_000, 3_000_000)
    assert (row.planted_ns, row.reported_ns, row.planted_apart_pct) == (4_000_000, None, None)
    assert not row.cause_on_top and row.line_on_top is False and not row.findings
    text = files(tmp_path, tmp_path / "page.md")[tmp_path / "page.md"]
    assert "| cause and line on top | 11 of 12 | **0 of 1** |" in text
    assert "Not measured: `cpu_quota` (left out: no control groups)." in text
    assert "Failed: `per_sample_upload` ended with 1: Oops." in text
