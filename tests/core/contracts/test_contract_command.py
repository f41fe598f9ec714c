"""The command `contract`, and `check` with a contract: files, exit codes and formats."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import overlapscope
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.pytest_plugin import assert_overlap
from tests.support.helpers import TRACES
from tests.support.stepped_traces import write_steps

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


def write_without_waits(path: str = "overlap.contract.toml") -> None:
    """Write the contract of a program that waits in each step, without the wait."""
    assert run("contract", "write", ITEM, "--output", path) == 0
    text = Path(path).read_text()
    waits, others = text.index("[[syncs]]"), text.index("[program]")
    Path(path).write_text(text[:waits] + text[others:])


def prefetching(path: Path, kernel: str = "gemm", lost: str = "", batch: int = 1, **options: Any) -> str:
    """Write a recording of copies beside kernels, without records of the category `lost`."""
    write_steps(path, hidden=True, idle_us=10, nbytes=batch * 10_000_000, **options)
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event.get("cat") != lost]
    for event in events:
        event["name"] = kernel if event["name"] == "gemm" else event["name"]
    path.write_text(json.dumps(trace | {"traceEvents": events}))
    return str(path)


def test_a_contract_is_written_found_and_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("contract", "write", NOTED) == 0
    assert run("check", NOTED) == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert printed.startswith(
        "Judged by overlap.contract.toml. Passed: 5 promises (1 transfer beside at least 7 kernels,"
    )
    assert re.search(r"no finding of \d+ rules costs 5% of the time", printed)


def test_a_program_without_a_gpu_has_a_contract(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def recorded(*ops: str) -> str:
        names = [(f"ProfilerStep#{step}", 100 * step, 100) for step in range(6)]
        names += [(op, 100 * step + 20 * at, 10) for step in range(6) for at, op in enumerate(ops)]
        events = [
            {"ph": "X", "cat": "user_annotation" if "#" in name else "cpu_op", "name": name, "ts": at, "dur": length}
            for name, at, length in names
        ]
        (place / "cpu.json").write_text(
            json.dumps({"traceEvents": [{**event, "pid": 1, "tid": 1} for event in events]})
        )
        return "cpu.json"

    budget = ("--budget", "host_step_time <= 1 s")
    assert run("contract", "write", recorded("aten::linear")) == 0
    assert run("check", "cpu.json", *budget) == 0
    assert run("check", recorded("aten::linear", "aten::_local_scalar_dense"), *budget) == 1
    assert "new read of a value" in capsys.readouterr().out
    # A recording of a GPU without its ops is incomplete all the same.
    assert run("check", prefetching(place / "lost.json", lost="kernel"), *budget) == 3


def test_a_recording_without_cpu_ops_is_not_judged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = json.loads(gzip.decompress(NOTED.read_bytes()))
    events = [event for event in trace["traceEvents"] if event.get("cat") != "cpu_op"]
    (place / "cuda.json").write_text(json.dumps(trace | {"traceEvents": events}))
    assert run("contract", "write", NOTED) == 0
    assert run("check", "cuda.json") == 3
    assert "The recording has no CPU ops" in capsys.readouterr().out
    assert run("contract", "write", "cuda.json", "--force") == 0
    assert run("check", "cuda.json") == 0


def test_the_nearest_contract_upwards_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_without_waits()
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    assert run("check", ITEM) == 0
    (place / ".git").mkdir()
    assert run("check", ITEM) == 1


def test_the_configuration_names_a_contract_relative_to_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_without_waits("mine.toml")
    (place / ".git").mkdir()
    (place / "overlapscope.toml").write_text('contract = "mine.toml"\n')
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    assert run("check", ITEM) == 1


def test_a_loss_that_an_exception_names_is_accepted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_without_waits()
    exception = '[[exceptions]]\nbudget = "host sync *"\nreason = "Next week."\nuntil = '
    for until, code in (("2999-01-01", 0), ("2001-01-01", 1)):
        (place / "overlapscope.toml").write_text(f"{exception}{until}\n")
        assert run("check", ITEM) == code
    printed = capsys.readouterr()
    assert "Accepted until 2999-01-01: Next week." in printed.out
    assert "Its exception ended on 2001-01-01: Next week." in printed.out and "matches nothing" not in printed.err


def test_a_loss_is_annotated_at_its_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_without_waits()
    assert run("check", ITEM, "--format", "github") == 1
    (error,) = [
        line for line in capsys.readouterr().out.splitlines() if "host sync" in line and line.startswith("::err")
    ]
    assert "file=known_causes.py,line=272" in error
    assert "new host sync: aten::item, known_causes.py:272, 1 a step" in error
    assert ": Move the call out of the step, or wait for an event where the value is used." in error


def test_formats_hold_each_promise(place: Path) -> None:
    write_without_waits()
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
    before, waits, after = Path("overlap.contract.toml").read_text().partition("[[syncs]]")
    text = before.replace("margin_pct = 25", 'margin_pct = 40\nreplaces = ["dispatch"]') + waits
    Path("overlap.contract.toml").write_text(text + after.replace("count = 1", "count = 2", 1))
    assert run("check", ITEM) == 0
    assert run("contract", "update", ITEM) == 0
    assert "gained: host sync" in capsys.readouterr().out
    text = Path("overlap.contract.toml").read_text()
    assert "margin_pct = 40" in text
    assert 'replaces = ["dispatch"]' in text
    assert run("check", ITEM) == 0


def test_diff_reads_contracts_and_recordings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", FINE)
    assert run("contract", "diff", "overlap.contract.toml", ITEM, "--format", "json") == 0
    changes = json.loads(capsys.readouterr().out)
    assert {change["part"] for change in changes if change["result"] == "lost"} == {"sync"}


def test_an_existing_contract_is_not_overwritten(place: Path) -> None:
    assert run("contract", "write", FINE) == 0
    assert run("contract", "write", FINE) == 2
    assert run("contract", "write", FINE, "--force") == 0


def test_python_and_tests_check_contracts(place: Path) -> None:
    run("contract", "write", ITEM, "--output", "item.toml")
    write_without_waits()
    settings = {"contract": "overlap.contract.toml"}
    assert overlapscope.check(str(ITEM), {"contract": "item.toml"}).outcome == "pass"
    assert overlapscope.check(overlapscope.load(ITEM, progress=False), settings).outcome == "fail"
    with pytest.raises(UsageError, match="pass the trace"):
        overlapscope.check(overlapscope.analyze(str(FINE)), settings)
    assert_overlap(str(ITEM), contract="item.toml")
    with pytest.raises(AssertionError, match="new host sync"):
        assert_overlap(str(ITEM), contract="overlap.contract.toml")


def test_each_rank_is_judged(place: Path) -> None:
    run("contract", "write", TRACES / "ddp/rank0.json.gz")
    shutil.copytree(TRACES / "ddp", place / "ranks")
    run("check", "ranks", "--format", "json:result")
    verdicts = json.loads(Path("result").read_text())["verdicts"]
    promises = [verdict for verdict in verdicts if verdict["metric"].startswith("contract-")]
    assert {verdict["subject"]["rank"] for verdict in promises} == {0, 1}


def test_a_contract_replaces_only_the_default_rules_that_it_names(place: Path) -> None:
    run("contract", "write", FINE)
    assert run("check", FINE) in (1, 3)
    contract = Path("overlap.contract.toml")
    contract.write_text(
        contract.read_text().replace("steps =", 'replaces = ["verdict", "dispatch", "python"]\nsteps =')
    )
    assert run("check", FINE) == 0
    contract.write_text(contract.read_text().replace('"python"', '"pyton"'))
    assert run("check", FINE) == 2


@pytest.mark.parametrize("name", ["overlap.contract.toml", "overlapscope.toml"])
@pytest.mark.parametrize("doubt", ["belongs to another user", "can be written by every user", "a link to nothing"])
def test_files_that_others_may_have_written_are_errors(
    name: str, doubt: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / ".git").mkdir()
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    path = place / name
    if doubt == "a link to nothing":
        path.symlink_to("nothing")
    else:
        path.touch()
        path.chmod(0o646 if "written" in doubt else 0o644)
    if doubt == "belongs to another user" and os.geteuid() == 0:
        os.chown(path, 12345, -1)
    elif doubt == "belongs to another user":
        monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    assert run("check", ITEM) == 2
    assert doubt in capsys.readouterr().err


@pytest.mark.parametrize(
    ("contract", "recorded", "code", "words"),
    [
        ({}, {}, 0, "Passed"),
        ({}, {"batch": 2}, 0, "Passed"),
        ({}, {"kernel": "attention"}, 3, "unknown same program"),
        ({}, {"lost": "gpu_memcpy"}, 3, "unknown complete recording"),
        ({"devices": 2}, {}, 3, "unknown all devices"),
        ({"ranks": 2}, {"ranks": (0,)}, 3, "unknown all ranks"),
        ({"ranks": 2}, {"ranks": (0, 1)}, 0, "Passed"),
        ({"ranks": 2}, {"ranks": (0, 1, 1)}, 3, "unknown traces of one job"),
    ],
)
def test_what_does_not_get_through_the_gate_is_inconclusive(
    contract: dict[str, int],
    recorded: dict[str, Any],
    code: int,
    words: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = contract.get("ranks", 1)
    assert run("contract", "write", prefetching(place / "before.json", world_size=ranks)) == 0
    file = place / "overlap.contract.toml"
    for key, value in contract.items():
        file.write_text(file.read_text().replace(f"{key} = 1\n", f"{key} = {value}\n"))
    options = {key: value for key, value in recorded.items() if key != "ranks"}
    traces = [
        prefetching(place / f"{number}.json", rank=rank, world_size=ranks, **options)
        for number, rank in enumerate(recorded.get("ranks", (0,)))
    ]
    assert run("check", *traces) == code
    assert words in capsys.readouterr().out


def test_a_text_of_a_contract_does_nothing_to_a_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("contract", "write", ITEM)
    file = Path("overlap.contract.toml")
    file.write_text(re.sub(r"(?m)^call = .*", r'call = "::error::\\u001b[31m"', file.read_text()))
    run("contract", "diff", file, ITEM)
    printed = capsys.readouterr().out
    assert "::error::" in printed
    assert "\x1b" not in printed
    assert not any(line.strip().startswith("::") for line in printed.splitlines())
