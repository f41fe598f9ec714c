"""Pytest plugin that notes when each test file last passed and how long it took, for `make quick`.

The Makefile's targets load it with `-p tests.support.outcomes`. The notes are in `.pytest_cache/outcomes.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
NOTES = ROOT / ".pytest_cache" / "outcomes.json"


class FileOutcome(msgspec.Struct, frozen=True):
    """Notes on a test file."""

    seconds: float
    """Time of its tests and their fixtures."""
    tree: str | None = None
    """Git tree of the checkout in which all of its tests last passed."""


def read_outcomes() -> dict[str, FileOutcome]:
    """Return the notes by path of the test file, relative to the root. Empty without readable notes."""
    try:
        return msgspec.json.decode(NOTES.read_bytes(), type=dict[str, FileOutcome])
    except (OSError, msgspec.DecodeError):
        return {}


def git(*arguments: str, index: str | None = None) -> str:
    """Return what git prints. Raises CalledProcessError or FileNotFoundError outside a checkout and without git."""
    environment = os.environ | ({"GIT_INDEX_FILE": index} if index else {})
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def working_tree() -> str:
    """Write the checkout's files, committed or not, to git's store and return the tree's id. Raises as `git` does."""
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        current = ROOT / git("rev-parse", "--git-path", "index")
        if current.exists():
            shutil.copy2(current, index)
        git("add", "--all", index=index)
        return git("write-tree", index=index)


class OutcomeCollector:
    """Collector of a session's test reports."""

    def __init__(self, tree: str) -> None:
        self._tree = tree
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        if report.failed:
            self._failed.add(file)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail or session.shouldstop:
            # Some files ran in part.
            return
        noted = read_outcomes()
        for file, seconds in self._seconds.items():
            before = noted.get(file, FileOutcome(seconds))
            noted[file] = FileOutcome(seconds, before.tree if file in self._failed else self._tree)
        NOTES.parent.mkdir(exist_ok=True)
        NOTES.write_text(json.dumps(msgspec.to_builtins(noted), indent=0, sort_keys=True))


def pytest_configure(config: pytest.Config) -> None:
    """Record whole files only: not in xdist's workers, and not where options or node ids select tests."""
    options = config.option
    if hasattr(config, "workerinput") or options.keyword or options.markexpr or any("::" in arg for arg in config.args):
        return
    try:
        tree = working_tree()
    except (OSError, subprocess.CalledProcessError):
        return
    config.pluginmanager.register(OutcomeCollector(tree))
