"""The command `contract`, and `check` with a contract: files, exit codes and formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import overlapscope
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.pytest_plugin import assert_overlap
from tests.support.helpers import TRACES

CAUSES = TRACES / "known_causes"
FINE, ITEM = CAUSES / "launch_bound.json.gz", CAUSES / "item_every_step_stacks.json.gz"
NOTED, BLIND = TRACES / "recorder/overlapscope.trace.json.gz", TRACES / "recorder/torch_profiler.trace.json.gz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_contract_is_written_found_and_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "write", NOTED) == 0
    (place / "below").mkdir()
    assert run("check", NOTED) == 0
    assert "promises passed" in capsys.readouterr().out


def test_the_nearest_contract_upwards_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("contract", "write", FINE) == 0
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    assert run("check", ITEM) == 1


def test_the_configuration_names_a_contract_relative_to_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("contract", "write", FINE, "--output", place / "mine.toml") == 0
    (place / "overlapscope.toml").write_text('contract = "mine.toml"\n')
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    assert run("check", ITEM) == 1


def test_a_loss_is_annotated_at_its_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", FINE)
    assert run("check", ITEM, "--format", "github") == 1
    (error,) = [
        line for line in capsys.readouterr().out.splitlines() if "host sync" in line and line.startswith("::err")
    ]
    assert "file=known_causes.py,line=272" in error
    assert "new host sync: aten::item, known_causes.py:272, 1 a step" in error


def test_formats_hold_each_promise(place: Path) -> None:
    run("contract", "write", FINE)
    formats = [f"--format={name}:{name}" for name in ("junit", "json", "gitlab", "openmetrics", "markdown", "html")]
    assert run("check", ITEM, *formats) == 1
    (case,) = [
        case
        for case in ElementTree.parse("junit").iter("testcase")
        if case.get("classname") == "overlapscope.contract-sync"
    ]
    assert case.find("failure") is not None
    verdicts = json.loads(Path("json").read_text())["verdicts"]
    assert verdicts[0]["where"] == "known_causes.py:272 in step"
    assert "known_causes.py" in Path("gitlab").read_text()
    assert 'metric="contract-sync"' in Path("openmetrics").read_text()
    assert "new host sync" in Path("markdown").read_text()


def test_what_a_recording_does_not_state_is_inconclusive(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", NOTED)
    assert run("check", BLIND) == 3
    assert "record with sync events" in capsys.readouterr().out.replace("\n", " ")


def test_budgets_are_judged_beside_the_contract(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", NOTED)
    assert run("check", NOTED, "--budget", "efficiency_pct >= 0%") == 0
    printed = capsys.readouterr().out
    assert "efficiency_pct >= 0%" in printed
    assert "overlap of H2D" in printed


def test_a_report_cannot_be_judged_by_a_contract(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", FINE)
    run("analyze", FINE, "--format", "json", "--output", "report.json")
    assert run("check", "report.json") == 2
    assert "is no recording, so it can't be judged by a contract" in capsys.readouterr().err


def test_update_renews_the_contract_and_lists_gains(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", ITEM)
    text = Path("overlap.contract.toml").read_text().replace("margin_pct = 25", "margin_pct = 40")
    Path("overlap.contract.toml").write_text(text)
    assert run("check", FINE) == 0 or "launches" in capsys.readouterr().out
    assert run("contract", "update", FINE) == 0
    assert "gained: host sync" in capsys.readouterr().out
    assert "margin_pct = 40" in Path("overlap.contract.toml").read_text()
    assert run("check", FINE) == 0


def test_show_and_diff_read_contracts_and_recordings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", FINE)
    assert run("contract", "show") == 0
    assert "300 kernels" in capsys.readouterr().out
    assert run("contract", "diff", "overlap.contract.toml", ITEM, "--format", "json") == 0
    changes = json.loads(capsys.readouterr().out)
    assert {change["part"] for change in changes if change["result"] == "lost"} == {"sync"}


def test_an_existing_contract_is_not_overwritten(place: Path) -> None:
    assert run("contract", "write", FINE) == 0
    assert run("contract", "write", FINE) == 2
    assert run("contract", "write", FINE, "--force") == 0


def test_python_and_tests_check_contracts(place: Path) -> None:
    run("contract", "write", FINE)
    settings = {"contract": "overlap.contract.toml"}
    assert overlapscope.check(str(FINE), settings).outcome == "pass"
    assert overlapscope.check(overlapscope.load(ITEM, progress=False), settings).outcome == "fail"
    with pytest.raises(UsageError, match="pass the trace"):
        overlapscope.check(overlapscope.analyze(str(FINE)), settings)
    assert_overlap(str(FINE), contract="overlap.contract.toml")
    with pytest.raises(AssertionError, match="new host sync"):
        assert_overlap(str(ITEM), contract="overlap.contract.toml")


def test_each_rank_is_judged(place: Path) -> None:
    run("contract", "write", TRACES / "ddp/rank0.json.gz")
    shutil.copytree(TRACES / "ddp", place / "ranks")
    run("check", "ranks", "--format", "json:result")
    verdicts = json.loads(Path("result").read_text())["verdicts"]
    assert {verdict["subject"]["rank"] for verdict in verdicts} == {0, 1}
