"""`overlapscope whatif` with the traces of all ranks of a job."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.plugins.jobs.joint.result import JointWhatIf
from tests.support.helpers import TRACES
from tests.support.schemas import validate

DDP = str(TRACES / "ddp")
PAGEABLE = str(TRACES / "streamed0_pinned0.json.gz")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([PAGEABLE, "--no-straggler"], "--no-straggler needs the traces of all ranks of a job, but there is one trace"),
        ([DDP, "--best"], "--best is for a single trace"),
        ([DDP, "--bandwidth", "fast"], "'fast' is not a number of times; write it like 2x"),
        ([DDP, "--bandwidth", "0"], "'0' is not a number of times; write it like 2x"),
        ([DDP, "--bandwidth", "1e-12x"], "'1e-12x' is not between 0.01x and 1000x"),
        ([DDP, "--bandwidth", "1001"], "'1001' is not between 0.01x and 1000x"),
        ([DDP, "--rank", "1"], "--rank needs a change on ranks, such as --pin or --no-straggler"),
    ],
)
def test_wrong_usage_is_reported_in_a_sentence(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and expected in " ".join(captured.err.split()) and "Traceback" not in captured.err


def test_the_step_of_a_job_is_predicted_from_the_traces_of_all_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP, "--no-straggler", "--bandwidth", "2x", "--format", "json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out, type=JointWhatIf)
    assert result.valid and result.predicted_step_ns is not None and result.gain_ns is not None
    assert [change.change for change in result.changes] == ["no-straggler", "bandwidth 2x"]
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert result.replayed_step_ns == result.recorded_step_ns
    assert result.recorded_step_ns is not None
    assert result.gain_ns.value == result.recorded_step_ns - result.predicted_step_ns.value > 0
    validate(json.loads(msgspec.json.encode(result)), schema_of("whatif-ranks"))


def test_the_changes_of_a_job_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    assert "--no-straggler let the latest rank compute like the others" in answer and "--best" not in answer


def test_the_answer_for_a_job_is_its_step_with_a_row_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP, "--no-straggler", "-v"]) == 0
    answer = capsys.readouterr().out
    assert answer.startswith(
        "A step of the job would take 36.74 ms instead of 37.31 ms (1.5% less; saves at most 6.08 ms)"
    )
    assert "Between collectives, rank 0 takes the median time of the others." in answer
    assert "Assumed: The extra work isn't needed." in answer


def test_a_longer_step_is_an_interval_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP, "--bandwidth", "0.5x"]) == 0
    answer = capsys.readouterr().out.split(").")[0]
    assert "% more; between " in answer and answer.endswith(" ms")


def test_a_change_on_one_rank_leaves_the_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP, "--graph", "step", "--rank", "1"]) == 0
    assert "On 1 rank; on rank 1: " in capsys.readouterr().out


def test_a_change_on_a_rank_without_a_trace_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", DDP, "--no-straggler", "--rank", "99", "--rank", "1"]) == 1
    assert "There is no trace of rank 99." in capsys.readouterr().out


def test_ranks_without_the_others_are_not_joined(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "rank0.json.gz"
    missing.write_bytes((TRACES / "ddp" / "rank0.json.gz").read_bytes())
    assert main(["whatif", str(tmp_path), "--no-straggler"]) == 1
    answer = " ".join(capsys.readouterr().out.split())
    assert answer.startswith("No prediction for this job.")
    assert "The traces of 1 rank (1) are missing, and the other ranks wait for these." in answer
