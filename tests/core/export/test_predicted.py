"""A timeline that `overlapscope whatif` predicted is never taken for a recording, in whatever form it comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.pytest_plugin import assert_overlap

RECORDING = "traces/known_causes/pageable_memory.json.gz"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predicted") / "pred.json"
    assert main(["whatif", RECORDING, "--pin", "--timeline", str(path)]) == 0
    return path


@pytest.fixture(params=["trace", "report", "annotated", "unchanged"])
def taken(request: pytest.FixtureRequest, predicted: Path, tmp_path: Path) -> str:
    """Return the prediction, its JSON report, its annotated copy, and a replay with nothing changed."""
    path = tmp_path / "taken.json"
    if request.param == "trace":
        return str(predicted)
    if request.param == "report":
        assert main(["analyze", str(predicted), "--format", "json", "-o", str(path)]) == 0
    elif request.param == "annotated":
        from overlapscope.analysis import analyze_trace
        from overlapscope.export import annotated

        path.write_bytes(b"".join(annotated.write(analyze_trace(ov.load(predicted)), predicted)))
    else:
        content = json.loads(predicted.read_text())
        content["overlapscope"]["prediction"] = {"of": "x.json", "interventions": []}
        path.write_text(json.dumps(content))
    return str(path)


def test_check_refuses_it(taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", taken]) == 2
    assert "was predicted by `overlapscope whatif`" in capsys.readouterr().err
    with pytest.raises(UsageError, match="was predicted by `overlapscope whatif`"):
        assert_overlap(taken)


def test_it_is_refused_as_a_baseline(taken: str, tmp_path: Path) -> None:
    baseline = str(tmp_path / "baseline.json")
    assert main(["check", taken, "--write-baseline", "--baseline", baseline]) == 2
    assert main(["check", RECORDING, "--baseline", taken]) == 2


@pytest.mark.parametrize("form", ["text", "markdown", "json", "html"])
def test_a_diff_says_so_in_its_head(form: str, predicted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", RECORDING, str(predicted), "--format", form]) == 0
    printed = capsys.readouterr().out
    if form == "json":
        document = json.loads(printed)
        assert (document["before"]["predicted_by"], document["after"]["predicted_by"]) == (None, ["pin"])
        assert document["doubts"][0]["id"] == "predicted"
    else:
        assert "After was predicted by" in printed and "predicted (pin)" in printed.replace("\\", "")


@pytest.mark.parametrize("form", ["text", "markdown", "json", "html"])
def test_an_analysis_says_so_in_its_head(form: str, predicted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(predicted), "--format", form]) == 0
    printed = capsys.readouterr().out
    statement = '"predicted_by": [' if form == "json" else "predicted by overlapscope whatif (pin)"
    assert statement in printed[: printed.index('"findings"') if form == "json" else None]
