"""Tests of the scheduler for workers: a worker that dies costs a single test, and few start a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import scheduler

CONFTEST = """
from tests.support import scheduler
from tests.support.scheduler import RoomScheduling

scheduler.cores = lambda: 1

def pytest_xdist_make_scheduler(config, log):
    return RoomScheduling(config, log)
"""
DIES = """
import os
def test_before(): pass
def test_dies(): os._exit(3)
def test_after(): pass
"""
LIVES = """
import time
import pytest
@pytest.mark.parametrize("number", range(3))
def test_lives(number): time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what four workers print about the tests of three rooms, of each of which one dies."""
    folder = tmp_path_factory.mktemp("rooms")
    (folder / "conftest.py").write_text(CONFTEST)
    for room in ("browser", "process", "unit"):
        (folder / room).mkdir()
        (folder / room / f"test_dies_{room}.py").write_text(DIES)
        for number in range(4):
            (folder / room / f"test_lives_{room}_{number}.py").write_text(LIVES)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "xdist.plugin", "-n", "4", "-p", "no:cacheprovider", "."]
    # Every worker would load all of them.
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    return done.stdout


def test_a_worker_that_dies_costs_the_test_that_it_ran_and_no_other(printed: str) -> None:
    assert re.search(r"3 failed, 42 passed", printed), printed[-3000:]
    assert len(set(re.findall(r"crashed while running '(\S+)'", printed))) == 3


def test_workers_are_more_than_cores_only_where_tests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "cores", lambda: 2)
    counts = {"tests/core": 2, "tests/core/base/test_words.py": 2, "tests/torch/test_run.py::test_it": 4}
    for path, workers in (counts | {"tests/package": 4, "tests/plugins/watch/torch": 6, "tests": 6}).items():
        assert scheduler.workers_for(["tests/evaluation", path]) == workers


def test_no_more_workers_than_cores_start_a_browser_unless_one_dies(printed: str) -> None:
    browsed, others = (
        set(re.findall(rf"^\[(gw\d+)\].* {room}/", printed, re.MULTILINE)) for room in ("browser", "process")
    )
    assert 1 <= len(browsed) <= 2 and len(others) > 1, printed
