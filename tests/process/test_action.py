"""The composite action, its steps run by hand as GitHub's runner would run them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.core.budgets.test_check_formats import read_github, read_junit
from tests.support.action_job import ACTION, EXPRESSION, ROOT, STEPS, WorkflowJob

HEALTHY = ROOT / "traces/known_causes/healthy_prefetch.json.gz"
BROKEN = ROOT / "overlapscope/samples/training_naive.json.gz"

INJECTIONS = [
    "$(touch pwned) `touch pwned` ${{ github.token }}",
    '"; touch pwned; "',
    "'; touch pwned; '\ntouch pwned & touch pwned | cat\n",
]


@pytest.fixture
def job(tmp_path: Path) -> WorkflowJob:
    return WorkflowJob(tmp_path).installed()


# -- the file -----------------------------------------------------------------------------------------


def test_it_is_a_composite_action_that_says_what_it_takes_and_gives() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(item["description"] for item in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))
    assert [name for name, properties in ACTION["inputs"].items() if properties["required"]] == ["traces"]
    assert all(item["required"] or item["default"] == "" for item in ACTION["inputs"].values())
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)


def test_no_input_becomes_part_of_a_script() -> None:
    for step in STEPS:
        assert not EXPRESSION.search(step.get("run", ""))
        for value in step.get("env", {}).values():
            [expression] = EXPRESSION.findall(value)
            assert expression.removeprefix("inputs.") in ACTION["inputs"]


def test_every_input_is_used() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", str(STEPS)))
    assert used == set(ACTION["inputs"])


# -- the check ----------------------------------------------------------------------------------------


def test_a_healthy_trace_passes(job: WorkflowJob) -> None:
    done = job.step("Check", traces=str(HEALTHY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.outputs() == {"outcome": "pass", "exit-code": "0"}
    assert [item["command"] for item in read_github(done.stdout)] == ["notice"]
    assert job.summary.read_text().startswith("# overlapscope check: passed")


def test_a_broken_trace_fails_with_its_cause(job: WorkflowJob) -> None:
    done = job.step("Check", traces=str(BROKEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs() == {"outcome": "fail", "exit-code": "1"}
    commands = read_github(done.stdout)
    assert any("pageable-memory" in command["title"] for command in commands)
    assert job.summary.read_text().startswith("# overlapscope check: failed")


def test_budgets_come_as_arguments_one_a_line(job: WorkflowJob) -> None:
    done = job.step(
        "Check", traces=str(HEALTHY), args="\n  --budget=efficiency_pct >= 99.99%\n\n  --fail-level\n  warn\n"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "efficiency_pct" in read_github(done.stdout)[0]["title"]


def test_budgets_come_from_a_configuration(job: WorkflowJob) -> None:
    (job.workspace / "my budgets.toml").write_text('[budgets]\nstep_time = { max = "1 us" }\n')
    done = job.step("Check", traces=str(HEALTHY), config="my budgets.toml")
    assert done.returncode == 1, done.stdout + done.stderr
    (job.workspace / "my budgets.toml").rename(job.workspace / "overlapscope.toml")
    done = job.step("Check", traces=str(HEALTHY))
    assert done.returncode == 1, done.stdout + done.stderr


def test_several_traces_are_checked_together(job: WorkflowJob) -> None:
    done = job.step("Check", traces=f"\n{HEALTHY}\n{BROKEN}\n")
    assert job.outputs()["outcome"] == "fail", done.stdout + done.stderr


def test_a_junit_report_is_written_where_asked(job: WorkflowJob) -> None:
    job.step("Check", traces=str(BROKEN), junit="a report.xml")
    assert int(read_junit((job.workspace / "a report.xml").read_text()).get("failures", 0)) > 0


def test_a_baseline_is_compared_with(job: WorkflowJob) -> None:
    program = job.temp / "overlapscope/bin/overlapscope"
    subprocess.run(
        [program, "check", HEALTHY, "--write-baseline", "--baseline", job.workspace / "base.json"], check=True
    )
    done = job.step("Check", traces=str(HEALTHY), baseline="base.json")
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert job.outputs()["outcome"] in ("pass", "inconclusive")


def test_what_cannot_be_checked_is_an_error_of_its_own(job: WorkflowJob) -> None:
    done = job.step("Check", traces="missing.json.gz")
    assert done.returncode == 2
    assert job.outputs() == {"outcome": "error", "exit-code": "2"}
    assert "missing.json.gz" in done.stderr
    assert done.stdout.startswith("::error title=overlapscope check::")


@pytest.mark.parametrize("hostile", INJECTIONS)
@pytest.mark.parametrize("field", ["traces", "baseline", "config", "args", "junit"])
def test_an_input_cannot_run_commands(job: WorkflowJob, field: str, hostile: str) -> None:
    inputs = {"traces": str(HEALTHY), field: hostile}
    done = job.step("Check", **inputs)
    assert job.outputs() == {
        "outcome": {0: "pass", 2: "error"}[done.returncode],
        "exit-code": str(done.returncode),
    }


def test_a_trace_cannot_be_an_option(job: WorkflowJob) -> None:
    done = job.step("Check", traces=f"--help\n{HEALTHY}")
    assert done.returncode == 2 and "usage" not in done.stdout
