"""Tests of the scheduler for workers: a worker that dies costs a single test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from tests.support.scheduler import RoomScheduling

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


def test_a_worker_that_dies_costs_the_test_that_it_ran_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for room in ("process", "unit"):
        (tmp_path / room).mkdir()
        (tmp_path / room / f"test_dies_{room}.py").write_text(DIES)
        for number in range(4):
            (tmp_path / room / f"test_lives_{room}_{number}.py").write_text(LIVES)
    command = [sys.executable, "-m", "pytest", "-n", "4", "-p", "no:cacheprovider", str(tmp_path)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert re.search(r"2 failed, 28 passed", done.stdout), done.stdout[-3000:]
    assert len(set(re.findall(r"crashed while running '(\S+)'", done.stdout))) == 2
