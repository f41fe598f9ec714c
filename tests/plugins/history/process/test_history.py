"""The store of the history, where processes are killed while they write, or write at once; and what git says."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlapscope.base.revision import _CI, Revision, revision
from overlapscope.plugins.history.store import Store

ROOT = Path(__file__).parents[2]
WRITER = """
import os, sys
from overlapscope.plugins.history.store import Store
from tests.plugins.history.entries import figure, make_entry

path, first = sys.argv[1], int(sys.argv[2])
with Store.open(path) as store:
    for number in range(first, first + int(sys.argv[3])):
        figures = [figure(metric, float(number)) for metric in ("step_time", "idle_time", "idle_pct")]
        store.add(make_entry(number, figures))
        print(number, flush=True)
"""


def writer(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def whole(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_process_killed_while_writing_loses_at_most_the_entry_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "h"
    stored: set[int] = set()
    last = 0
    for life in range(5):
        with writer(path, last, 100_000) as process:
            assert process.stdout is not None
            for line in process.stdout:
                stored.add(int(line))
                # Each life ends after another number of entries, somewhere within the next one.
                if len(stored) >= 7 * (life + 1):
                    time.sleep(0.0007 * life)
                    process.send_signal(signal.SIGKILL)
                    break
            stored |= {int(line) for line in process.stdout if line.endswith("\n")}
        last = max(stored) + 2
        with Store.open(path) as store:
            times = [row.origin.at_ns for row in store.rows()]
            assert stored <= set(times) and len(set(times) - stored) <= life + 1
            for metric in ("step_time", "idle_time", "idle_pct"):
                assert [point.value for point in store.points(metric)] == [float(at_ns) for at_ns in times]
            assert all(store.entry(row.id).id == row.id for row in store.rows())
        whole(path)


def test_two_who_write_at_once_both_keep_all(tmp_path: Path) -> None:
    path = tmp_path / "h"
    processes = [writer(path, first, 60) for first in (0, 1000)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    with Store.open(path, read_only=True) as store:
        times = [row.origin.at_ns for row in store.rows()]
        assert times == [*range(60), *range(1000, 1060)]
    whole(path)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for commits, _ in _CI for name in commits]:
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "trunk")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "one")
    git(folder, "tag", "v1")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_git_tells_the_commit_and_whether_files_were_changed_since(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert revision(repository) == Revision(commit, "trunk")
    (repository / "notes").write_text("nothing that git follows")
    assert revision(repository) == Revision(commit, "trunk")
    (repository / "train.py").write_text("print(2)\n")
    assert revision(repository) == Revision(f"{commit}-dirty", "trunk")
    git(repository, "checkout", "--quiet", "--detach")
    assert revision(repository) == Revision(f"{commit}-dirty", None)


def test_where_git_knows_nothing_the_commit_is_unknown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert revision(tmp_path) == revision(tmp_path / "none") == Revision(None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(repository) == Revision(None, None)
