"""Small repositories as teams have them, each with a recording of a program whose copies overlap."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).parents[2] / "programs" / "contract"
GOOD, BROKEN = PROGRAMS / "prefetch.trace.json.gz", PROGRAMS / "one_stream.trace.json.gz"
"""Recordings of a program, and of the same program with its copies on the compute stream."""
TRACE = "prefetch.trace.json.gz"

_GPU_JOB = """\
on: [push]
jobs:
  tests:
    runs-on: [self-hosted, linux, gpu]  # the machine under the desk
    steps:
      - run: python -m pytest
"""
_CPU_JOB = """\
on: [push]
jobs:
  tests:
    runs-on: ${{ matrix.os }}
  lint:
    runs-on: ubuntu-latest
"""
_PIPELINE = """\
include:
  - template: Jobs/SAST.gitlab-ci.yml
lint:
  script: [ruff check .]
"""
_GPU_PIPELINE = """\
train:
  tags:
    - docker
    - a100
  script:
    - python prefetch.py"""
_RECORDING_TEST = """\
import pytest


@pytest.mark.overlap(min_efficiency="80%")
def test_prefetch(overlap_profile):
    pass
"""


class ToyRepository(NamedTuple):
    """A repository."""

    name: str
    files: dict[str, str]
    project: str = ""
    """Directory of the project whose program was recorded."""

    def make(self, folder: Path) -> Path:
        """Make the repository in a folder, without git's own files, and return the directory of its project."""
        (folder / ".git").mkdir(parents=True)
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        project = folder / self.project
        for file in (GOOD, PROGRAMS / "prefetch.py"):
            shutil.copy(file, project)
        return project


TOYS = (
    ToyRepository("GitHub", {".github/workflows/tests.yml": _CPU_JOB}),
    ToyRepository(
        "pytest alone", {"tests/test_model.py": "def test_model(): pass\n", "pyproject.toml": "[project]\nname = 'x'\n"}
    ),
    ToyRepository(
        "GPU runner of GitHub, and tests that record",
        {
            ".github/workflows/tests.yml": _GPU_JOB,
            "tests/test_overlap_of_loader.py": _RECORDING_TEST,
            "requirements.txt": "torch\n",
        },
    ),
    ToyRepository("GitLab", {".gitlab-ci.yml": _PIPELINE}),
    ToyRepository("GPU runner of GitLab", {".gitlab-ci.yml": _GPU_PIPELINE}),
    ToyRepository(
        "monorepo on GitHub",
        {
            ".github/workflows/tests.yml": _CPU_JOB,
            "pyproject.toml": "[tool.ruff]\n",
            "packages/vision/pyproject.toml": "[project]\nname = 'vision'\n",
            "packages/speech/pyproject.toml": "[project]\nname = 'speech'\n",
        },
        "packages/vision",
    ),
)


def commit_all(folder: Path) -> None:
    """Turn a folder with files into a repository of git with one commit on the branch main."""
    shutil.rmtree(folder / ".git", ignore_errors=True)
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    for arguments in (("init", "--quiet", "--initial-branch=main"), ("add", "--all"), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
