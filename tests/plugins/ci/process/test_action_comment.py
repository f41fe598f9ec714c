"""The step of the composite action that keeps a comment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.ci.forges import TOKEN, Comments, forge
from tests.plugins.ci.toys import BROKEN, GOOD
from tests.plugins.ci.unit.test_comment import pull_event
from tests.support.action_job import ROOT, STEPS, WorkflowJob


@pytest.fixture
def comments() -> Iterator[Comments]:
    with forge() as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, comments: Comments) -> WorkflowJob:
    started = WorkflowJob(tmp_path).installed()
    (started.temp / "event.json").write_text(json.dumps(pull_event()))
    started.environment = {
        "PYTHONPATH": str(ROOT),
        "GITHUB_EVENT_PATH": str(started.temp / "event.json"),
        "GITHUB_GRAPHQL_URL": f"http://127.0.0.1:{comments.port}/graphql",
        "GITHUB_RUN_ID": "99",
    }
    return started


def test_a_failed_check_has_a_comment_and_a_picture(job: WorkflowJob, comments: Comments) -> None:
    assert job.step("Check", traces=str(BROKEN)).returncode == 1
    done = job.step("Comment", traces=str(BROKEN), before=str(GOOD), token=TOKEN, name="vision")
    assert done.returncode == 0, done.stderr
    [body] = comments.of("PR_12")
    assert body.startswith("<!-- overlapscope:vision -->\n# overlapscope check: failed") and "21.7% slower" in body
    assert (job.temp / "overlap.png").is_file()


def test_a_check_that_cannot_be_made_has_no_comment_of_an_earlier_one(job: WorkflowJob, comments: Comments) -> None:
    assert job.step("Check", traces=str(GOOD)).returncode == 0
    assert job.step("Check", traces="absent.json").returncode == 2
    job.step("Comment", traces="absent.json", token=TOKEN, name="other")
    [body] = comments.of("PR_12")
    assert body.startswith("<!-- overlapscope:other -->\n# overlapscope check: nothing was checked")


def test_a_token_that_may_not_comment_fails_no_job(job: WorkflowJob, comments: Comments) -> None:
    comments.refuses = "FORBIDDEN"
    job.step("Check", traces=str(GOOD))
    done = job.step("Comment", traces=str(GOOD), token=TOKEN)
    assert done.returncode == 0 and comments.bodies == []
    assert "::warning title=overlapscope::There is no comment" in done.stdout
    assert "the job needs `permissions: pull-requests: write`" in done.stderr and TOKEN not in done.stderr


@pytest.mark.parametrize("field", ["traces", "before", "name", "token"])
def test_an_input_of_the_comment_cannot_run_commands(job: WorkflowJob, field: str) -> None:
    hostile = "$(touch pwned) `touch pwned`\n\"; touch pwned; '"
    done = job.step("Comment", **{"traces": str(GOOD), "token": TOKEN, field: hostile})
    assert done.returncode == 0


def test_the_comment_needs_a_token() -> None:
    last = {step["name"]: step for step in STEPS[-2:]}
    assert all("inputs.token != ''" in step["if"] for step in last.values())
