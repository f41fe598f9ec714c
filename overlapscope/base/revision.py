"""The program that runs, and its revision according to CI or to git."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

_CI: Final = (
    (("GITHUB_SHA",), ("GITHUB_HEAD_REF", "GITHUB_REF_NAME")),
    (("CI_COMMIT_SHA",), ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_BRANCH")),
    (("BUILDKITE_COMMIT",), ("BUILDKITE_BRANCH",)),
    (("CIRCLE_SHA1",), ("CIRCLE_BRANCH",)),
    (("BUILD_SOURCEVERSION",), ("SYSTEM_PULLREQUEST_SOURCEBRANCH", "BUILD_SOURCEBRANCHNAME")),
    (("GIT_COMMIT",), ("CHANGE_BRANCH", "GIT_BRANCH")),
)
"""Variables with the commit and with the branch, in the order of lookup: GitHub Actions, GitLab, Buildkite, CircleCI,
Azure Pipelines and Jenkins."""
_PATIENCE_S = 5.0
_MAX_LENGTH = 200


class Revision(NamedTuple):
    """A revision; fields are None where unknown."""

    commit: str | None = None
    """Commit, with the suffix `-dirty` if files that git tracks have changed since."""
    branch: str | None = None


def revision(directory: Path) -> Revision:
    """Return the revision of a program whose script lies in a directory; empty if neither CI nor git knows it."""
    for commits, branches in _CI:
        if commit := _first(commits):
            return Revision(commit, _first(branches))
    commit = _git(directory, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return Revision(commit, commit and _git(directory, "symbolic-ref", "--short", "--quiet", "HEAD"))


def _first(variables: tuple[str, ...]) -> str | None:
    values = (os.environ.get(variable, "") for variable in variables)
    return next((value[:_MAX_LENGTH] for value in values if value), None)


def _git(directory: Path, *arguments: str) -> str | None:
    # A look must neither start a watcher of the file system nor write the index.
    command = ["git", "-C", os.fspath(directory), "-c", "core.fsmonitor=false", *arguments]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()[:_MAX_LENGTH] or None


def running_script() -> Path:
    """Return the script that this process runs; `python` if it runs none."""
    return Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python")


def job_name(script: Path) -> str:
    """Return the name of the program, such as `train.py`, or the name of a package that is run."""
    name = script.parent.name if script.name == "__main__.py" else script.name
    return os.fsencode(name).decode(errors="backslashreplace")[:200] or "python"
