"""The written jobs, run by hand as GitHub and GitLab would run them: they pass, and fail once overlap is broken."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.plugins.ci.forges import Comments, forge
from tests.plugins.ci.jobs import github_check, github_comment, gitlab, programs
from tests.plugins.ci.toys import BROKEN, GOOD, TOYS, TRACE, ToyRepository, commit_all
from tests.plugins.ci.unit.test_comment import pull, run_event

GITHUB = [toy for toy in TOYS if "GitHub" in toy.name]
GITLAB = [toy for toy in TOYS if "GitLab" in toy.name]


@pytest.fixture
def comments() -> Iterator[Comments]:
    with forge() as running:
        yield running


@pytest.mark.parametrize("toy", GITHUB, ids=[toy.name for toy in GITHUB])
def test_jobs_of_github_pass_then_fail_and_keep_one_comment(
    toy: ToyRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comments: Comments
) -> None:
    root, tools = tmp_path / "repository", programs(tmp_path / "tools")
    project = toy.make(root)
    monkeypatch.chdir(project)
    assert main(["ci", "init", "--yes"]) == 0
    [comment] = (root / ".github/workflows").glob("overlapscope*-comment.yml")
    check = comment.with_name(comment.name.replace("-comment", ""))
    default = tmp_path / "default"
    shutil.copytree(root, default)
    comments.pulls = [pull("PR_5")]
    for recorded, code, conclusion in ((GOOD, 0, "success"), (BROKEN, 1, "failure")):
        # If the repository keeps the recording, the change renews it.
        if "gpu" not in check.read_text():
            shutil.copy(recorded, project / TRACE)
        done = github_check(check, root, tools, recorded)
        assert done.code == code, done.log
        event = run_event(conclusion=conclusion)
        commented = github_comment(comment, default, tools, recorded, GOOD, comments, event)
        assert commented.code == 0, commented.log
        [body] = comments.of("PR_5")
        assert f"# overlapscope check: {'failed' if code else 'passed'}" in body
    assert f"::error file={toy.project}{'/' * bool(toy.project)}prefetch.py,line=13" in done.log
    assert "Issue it on a stream of its own" in body
    assert "Step 21.7% slower" in body and "The job of the branch itself failed." in body


@pytest.mark.parametrize("toy", GITLAB, ids=[toy.name for toy in GITLAB])
def test_jobs_of_gitlab_pass_then_fail_and_keep_one_comment(
    toy: ToyRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comments: Comments
) -> None:
    origin, tools = tmp_path / "origin", programs(tmp_path / "tools")
    monkeypatch.chdir(toy.make(origin))
    assert main(["ci", "init", "--yes"]) == 0
    commit_all(origin)
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", origin, checkout], check=True)
    comments.artifact = {TRACE: GOOD.read_bytes()}
    for recorded, code in ((GOOD, 0), (BROKEN, 1)):
        if "GPU" not in toy.name:
            shutil.copy(recorded, checkout / TRACE)
        done = gitlab(checkout / ".gitlab/overlapscope.yml", checkout, tools, recorded, comments)
        assert done.code == code, done.log
        [body] = comments.of("5")
        assert f"# overlapscope check: {'failed' if code else 'passed'}" in body, done.log
    assert "Step 21.7% slower" in body
    for file in ("overlap.xml", "overlap-quality.json", "overlap.png"):
        assert (checkout / file).is_file()
