"""Runners of GitHub and GitLab, as far as the written jobs need them: their scripts run in bash, in the given order.

Programs of the runner are stand-ins: `overlapscope` is this checkout, whose `run` copies a recording in place of a GPU,
`gh` downloads a recording, and nothing is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.plugins.ci.forges import TOKEN, Comments

ROOT = Path(__file__).parents[3]
_OVERLAPSCOPE = f"""\
#!/bin/bash
if [ "$1" = run ]; then
  while [ "$1" != --output ]; do shift; done
  exec cp "$RECORDED_BY_GPU" "$2"
fi
PYTHONPATH={ROOT} exec {sys.executable} -m overlapscope "$@"
"""
_GH = """\
#!/bin/bash
set -e
if [ "$1 $2" = "run list" ]; then echo 7; exit; fi
while [ "$1" != --dir ]; do shift; done
mkdir -p "$2"
cp "$RECORDED_ON_MAIN" "$2/"
"""
_PYTHON = f"""\
#!/bin/bash
if [ "$2" = pip ] || [ "$2" = pytest ]; then exit 0; fi
exec {sys.executable} "$@"
"""


class FinishedJob(NamedTuple):
    """A job that has ended."""

    code: int
    """Exit code of the first step that failed, or 0."""
    log: str


def programs(folder: Path) -> Path:
    """Write the stand-ins, and return their directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"overlapscope": _OVERLAPSCOPE, "gh": _GH, "python": _PYTHON}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def _script(text: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _environment(tools: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tools), "LC_ALL": "C.UTF-8", **more}


def github_check(workflow: Path, checkout: Path, tools: Path, recorded: Path) -> FinishedJob:
    """Run the job that checks, as on a pull request. `recorded` is the recording that a GPU would make."""
    job = yaml.safe_load(workflow.read_text())["jobs"]["overlap"]
    given = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(checkout), "RECORDED_BY_GPU": str(recorded)}
    environment = _environment(tools, **job["env"], **given)
    return _steps(job, checkout, environment)


def github_comment(
    workflow: Path, checkout: Path, tools: Path, recorded: Path, main: Path, comments: Comments, event: dict[str, Any]
) -> FinishedJob:
    """Run the job that comments. `recorded` is the recording of the pull request, `main` that of the main branch."""
    job = yaml.safe_load(workflow.read_text())["jobs"]["comment"]
    (tools / "event.json").write_text(json.dumps(event))
    [download] = [step for step in job["steps"] if "download-artifact" in step.get("uses", "")]
    folder = checkout / download["with"]["path"]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(recorded, folder / Path(job["env"]["RECORDED"]).name)
    environment = _environment(
        tools,
        **job["env"],
        GITHUB_ACTIONS="true",
        GITHUB_EVENT_PATH=str(tools / "event.json"),
        GITHUB_GRAPHQL_URL=f"http://127.0.0.1:{comments.port}/graphql",
        GITHUB_RUN_ID="99",
        RECORDED_ON_MAIN=str(main),
    )
    return _steps(job, checkout, environment)


def _steps(job: dict[str, Any], checkout: Path, environment: dict[str, str]) -> FinishedJob:
    folder = checkout / job.get("defaults", {}).get("run", {}).get("working-directory", "")
    code, log = 0, ""
    for step in job["steps"]:
        if "run" not in step or code:
            continue
        assert "${{" not in step["run"]
        given = {name: TOKEN if "github.token" in value else value for name, value in step.get("env", {}).items()}
        done = _script(step["run"], folder, environment | given)
        log += done.stdout + done.stderr
        code = 0 if step.get("continue-on-error") else done.returncode
    return FinishedJob(code, log)


def gitlab(file: Path, checkout: Path, tools: Path, recorded: Path, comments: Comments) -> FinishedJob:
    """Run the job of a pipeline of a merge request."""
    [job] = yaml.safe_load(file.read_text()).values()
    environment = _environment(
        tools,
        **job["variables"],
        GITLAB_CI="true",
        CI_API_V4_URL=f"http://127.0.0.1:{comments.port}/api/v4",
        CI_DEFAULT_BRANCH="main",
        CI_JOB_TOKEN=TOKEN,
        CI_JOB_URL="https://gitlab.example/team/model/-/jobs/12",
        CI_MERGE_REQUEST_IID="5",
        CI_MERGE_REQUEST_PROJECT_ID="3",
        CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main",
        CI_PROJECT_ID="3",
        OVERLAPSCOPE_GITLAB_TOKEN=TOKEN,
        RECORDED_BY_GPU=str(recorded),
    )
    done = _script("\n".join([*job["before_script"], *job["script"]]), checkout, environment)
    after = _script("\n".join(job["after_script"]), checkout, environment)
    return FinishedJob(done.returncode, f"{done.stdout}{done.stderr}{after.stdout}{after.stderr}")
