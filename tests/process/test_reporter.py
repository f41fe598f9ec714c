"""Tests of the process that prints reports beside a program."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlapscope.commands._reporter import _ENDS_WITHIN_S, Reporter

_PROGRAM = """
import os, sys, time
from overlapscope.commands._reporter import Reporter

reporter = Reporter()
reporter.start(2)
report = "import os; os.write(2, b'%d' % os.nice(0)); open('done', 'x')"
reporter.ask(commands=[[sys.executable, "-c", report]], wait_s={wait_s})
{end}
"""
_GOES_ON = "while not os.path.exists('done'): time.sleep(0.02)"


@pytest.mark.parametrize(("wait_s", "end", "niceness"), [(0, _GOES_ON, b"19"), (None, "os._exit(0)", b"0")])
def test_a_report_gives_way_to_a_program_that_goes_on(
    wait_s: int | None, end: str, niceness: bytes, tmp_path: Path
) -> None:
    code = _PROGRAM.format(wait_s=wait_s, end=end)
    # The process beside the program ends after it, and with it the output.
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, check=True)
    assert done.stderr == niceness


def test_a_program_does_not_wait_for_a_process_that_waits_for_its_end() -> None:
    reporter = Reporter()
    reporter.start(2)
    reporter.ask(commands=[[sys.executable, "-c", "1"]])
    begin = time.monotonic()
    assert not reporter.close()
    assert time.monotonic() - begin < _ENDS_WITHIN_S
