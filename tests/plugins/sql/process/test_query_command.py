"""Tests of `overlapscope query` as a process: its streams, and its end on Ctrl-C."""

from __future__ import annotations

import subprocess
import sys

from tests.support.helpers import TRACES

PIPELINE = str(TRACES / "pipeline_1stream.json.gz")
COMMAND = [sys.executable, "-m", "overlapscope", "query", PIPELINE]
INTERRUPTED = """
import os, signal, sys, threading, time
import duckdb
from overlapscope.commands import main

connect = duckdb.connect

def eager(*args, **options):
    connection = connect(*args, **options)
    # DuckDB shows progress after 2 s otherwise. The statement that turns it off must not take as long as this.
    connection.execute("SET progress_bar_time = 400")
    return connection

def press():
    while not any(thread.name == "overlapscope-query" for thread in threading.enumerate()):
        time.sleep(0.02)
    time.sleep(0.8)
    os.kill(os.getpid(), signal.SIGINT)

duckdb.connect = eager
# A shell that runs the tests in the background has them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

threading.Thread(target=press, daemon=True).start()
sys.exit(main(["query", sys.argv[1], "SELECT count(*) FROM range(1000000000000) r(i) WHERE hash(i) % 3 = 1"]))
"""


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from overlapscope.commands import main; main(['query', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pandas", "msgspec", "torch", "duckdb", "pyarrow"} & {*done.stdout.split()}


def test_its_streams_hold_the_answer_and_nothing_of_duckdb() -> None:
    done = subprocess.run([*COMMAND, "SELECT 1 AS one", "--format", "csv"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n1\n", "")
    done = subprocess.run([*COMMAND, "COPY gpu_ops TO 'x'"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_ctrl_c_ends_a_query_that_has_shown_nothing_of_duckdb() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, PIPELINE], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
