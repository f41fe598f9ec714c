"""How long does it take a team until CI holds its overlap? `python -m benchmarks.ci_setup`, in a minute or two.

Makes the six repositories of the tests, sets each up with `overlapscope ci init`, and runs the written jobs with a good
recording and with one whose copies moved to the compute stream. Then sets up each bundled recording of one process.
Writes `docs/evaluation/ci.md`.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.processes import HERE, hardware
from overlapscope.commands import main as overlapscope
from tests.plugins.ci.forges import forge
from tests.plugins.ci.jobs import FinishedJob, github_check, gitlab, programs
from tests.plugins.ci.toys import BROKEN, GOOD, TOYS, TRACE, ToyRepository, commit_all

PAGE: Final = HERE.parent / "docs" / "evaluation" / "ci.md"
_INIT: Final = (sys.executable, "-m", "overlapscope", "ci", "init", "--yes")
_OUTCOMES: Final = {0: "passes", 1: "fails"}
_FOLDERS: Final = (
    "traces",
    "traces/known_causes",
    "traces/mixed_workloads",
    "traces/recorder",
    "overlapscope/samples",
    "tests/programs/contract",
)


class SetUp(NamedTuple):
    """A repository that was set up."""

    toy: ToyRepository
    files: int
    seconds: float
    again: int
    """Number of files that a second call changed."""
    good: int
    """Exit code of the written check, with the recording that was taken for good."""
    broken: int
    check_s: float


def main() -> None:
    """Measure, write the page, print it."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = [_set_up(toy, Path(scratch, str(number))) for number, toy in enumerate(TOYS)]
        bundled = list(_bundled(Path(scratch)))
    text = "\n".join(_page(rows, bundled))
    PAGE.write_text(text, encoding="utf-8")
    print(text)


def _set_up(toy: ToyRepository, scratch: Path) -> SetUp:
    root, tools = scratch / "repository", programs(scratch / "tools")
    project = toy.make(root)
    commit_all(root)
    before = _files(root)
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    began = time.perf_counter()
    subprocess.run(_INIT, cwd=project, env=environment, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    written = _files(root)
    subprocess.run(_INIT, cwd=project, env=environment, check=True, capture_output=True)
    after = _files(root)
    began = time.perf_counter()
    good = _checked(toy, root, project, tools, GOOD)
    check_s = time.perf_counter() - began
    return SetUp(
        toy,
        len([path for path in written if written[path] != before.get(path)]),
        seconds,
        len([path for path in after if after[path] != written.get(path)]),
        good.code,
        _checked(toy, root, project, tools, BROKEN).code,
        check_s,
    )


def _checked(toy: ToyRepository, root: Path, project: Path, tools: Path, recorded: Path) -> FinishedJob:
    """Run the written job or test. If the repository keeps the recording, it is renewed first."""
    if "GPU" not in toy.name:
        (project / TRACE).write_bytes(recorded.read_bytes())
    [*workflows] = (root / ".github" / "workflows").glob("overlapscope*.yml")
    if workflows:
        return github_check(min(workflows, key=lambda path: len(path.name)), root, tools, recorded)
    if (root / ".gitlab").is_dir():
        commit_all(root)
        with forge() as comments:
            return gitlab(root / ".gitlab" / "overlapscope.yml", root, tools, recorded, comments)
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_overlap.py")
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(tests, cwd=project, env=environment, check=False, capture_output=True, text=True)
    return FinishedJob(done.returncode, done.stdout)


def _files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".git" not in path.parts}


def _bundled(scratch: Path) -> Iterator[tuple[int, bool]]:
    """Yield the exit code for each bundled recording, and whether it got a contract."""
    recordings = [path for folder in _FOLDERS for path in sorted((HERE.parent / folder).glob("*.json.gz"))]
    for number, recording in enumerate(recordings):
        folder = scratch / f"recording-{number}"
        folder.mkdir()
        (folder / TRACE).write_bytes(recording.read_bytes())
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            code = overlapscope(["ci", "init", "--yes"])
        yield code, (folder / "overlap.contract.toml").is_file()


def _page(rows: list[SetUp], bundled: list[tuple[int, bool]]) -> Iterator[str]:
    passed, contracts = sum(code == 0 for code, _ in bundled), sum(has for _, has in bundled)
    right = sum(row.good == 0 and row.broken == 1 for row in rows)
    yield from ("# Set up in CI", "", f"Written by `python -m benchmarks.ci_setup`. {hardware()}.", "")
    yield from _paragraph(
        "How long does it take until CI holds a program's overlap, and is it held?",
        "Six repositories, each with a program whose copies overlap, are set up by `overlapscope ci init`.",
        "Then the written jobs run with that recording, and with one of the same program whose copies have moved to",
        "the compute stream. Runners are imitated: steps run in bash, nothing is installed, and a recording stands in",
        "for the GPU. GitLab's jobs also write the comment.",
    )
    yield from _paragraph(
        "Five commands, besides answers: `overlapscope run`, `overlapscope ci init`,",
        "`git add`, `git commit`, `git push`.",
    )
    yield "| repository | files | `ci init` | changed by a second call | good recording | broken overlap | job |"
    yield "|---|---:|---:|---:|---|---|---:|"
    for row in rows:
        good, broken = (_OUTCOMES.get(code, f"**{code}**") for code in (row.good, row.broken))
        cells = (row.toy.name, row.files, f"{row.seconds:.1f} s", row.again, good, broken, f"{row.check_s:.1f} s")
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield from _paragraph(
        f"{right} of {len(rows)} pass at once, and fail once overlap is broken.",
        "Each failure names the copy, its line and what to do (`tests/plugins/ci`).",
        "The time of a job is that of its checks, without installing or recording.",
    )
    yield from _paragraph(
        "Programs that are poor today must pass as well: the check holds what there is.",
        f"Each bundled recording of a single process was set up in an empty folder: {passed} of {len(bundled)} pass at",
        f"once, {contracts} of {len(bundled)} got a contract.",
        "The others show no copy of which it is certain that it may overlap, and are held by limits alone.",
    )
    yield from _paragraph(
        "The descriptions of jobs that the comment needs were read, by hand, in the shapes that GitHub sent and",
        "https://github.com/octokit/webhooks recorded: 46 of pull requests, 4 of workflow runs. The answers of",
        "GitHub's GraphQL and of GitLab have the fields that their documentation states, in tests.",
    )


def _paragraph(*parts: str) -> tuple[str, str]:
    return textwrap.fill(" ".join(parts), 120), ""


if __name__ == "__main__":
    main()
