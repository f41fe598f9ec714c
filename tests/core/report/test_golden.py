"""Whole reports of bundled recordings, as text to review: `pytest tests/core/report/test_golden.py --update-golden`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.commands import main

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[2] / "golden"
TRACES = (
    "streamed0_pinned0",
    "streamed0_pinned1",
    "streamed1_pinned0",
    "streamed1_pinned1",
    "pipeline_1stream",
    "pipeline_3stream",
    "gpt2_train",
    "ddp",
    "known_causes/late_issue",
    "known_causes/healthy_prefetch_running_ahead",
    "mixed_workloads/model_on_two_devices",
    "mixed_workloads/small_transformer_everything",
)


@pytest.mark.parametrize("name", TRACES)
def test_report_of_a_recording(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "traces")
    trace = name if (ROOT / "traces" / name).is_dir() else f"{name}.json.gz"
    assert main(["analyze", trace, "--format", "markdown", "--verbose"]) == 0
    report = capsys.readouterr().out
    golden = GOLDEN / f"{name.replace('/', '-')}.md"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(report)
    assert report == golden.read_text(), f"{golden.name} differs: look at it, then --update-golden"
