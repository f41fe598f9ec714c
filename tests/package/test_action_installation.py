"""Tests of the installation by the composite action: of a requested package, and of its own checkout."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.action_job import ROOT, WorkflowJob

BROKEN = ROOT / "overlapscope/samples/training_naive.json.gz"


def small_wheel(directory: Path) -> Path:
    """Return a package without dependencies whose program prints a line."""
    wheel = directory / "overlapscope-0-py3-none-any.whl"
    info = "overlapscope-0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("overlapscope.py", "def main():\n    print('installed')\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: overlapscope\nVersion: 0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\noverlapscope = overlapscope:main\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel


def test_what_is_installed_cannot_be_a_command_or_an_option_and_what_is_asked_for_is_installed_then(
    tmp_path: Path,
) -> None:
    job = WorkflowJob(tmp_path)
    for hostile in ("$(touch pwned)", "-rpwned"):
        done = job.step("Install overlapscope", install=hostile)
        assert done.returncode != 0 and "Usage" not in done.stdout
    done = job.step("Install overlapscope", install=str(small_wheel(tmp_path)))
    assert done.returncode == 0, done.stderr
    # PYTHONPATH names the checkout if the tests run in one that is not installed.
    programs = job.temp / "overlapscope/bin"
    finished = subprocess.run(
        [programs / "python", "-I", programs / "overlapscope"], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "installed\n"


def test_the_action_installs_its_own_checkout_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", str(ROOT / "requirements/ci.txt"))
    # Modules are compiled when they are imported; most never are.
    monkeypatch.setenv("PIP_COMPILE", "0")
    job = WorkflowJob(tmp_path)
    done = job.step("Install overlapscope")
    assert done.returncode == 0, done.stderr
    done = job.step("Check", traces=str(BROKEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs()["outcome"] == "fail"
