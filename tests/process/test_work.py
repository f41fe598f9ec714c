"""Tests that help, a report, a check, a diff and the dashboard's first page do no more work than they did.

Work is counted, because times differ from machine to machine and from hour to hour. Each case runs in a process of its
own, on a recording of GPT-2 grown to 16 MB. Lower a number in `MOST` when it falls. If it must grow, say why in
the commit. `docs/evaluation/performance.md` has times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.grow import grow
from tests.support.helpers import TRACES

WORK: Final = ("analyses", "replays", "passes", "sorted rows", "peak MB", "modules", "thousand lines")
"""Analyses of a device; replays; calls of basic functions on at least `LARGE` rows; rows that are sorted at least
`LARGE` at a time; maximum of Python's and numpy's memory; modules of overlapscope, and their lines."""
LARGE: Final = 10_000
MOST: Final = {
    "help": (0, 0, 0, 0, 2, 11, 2),
    "report": (1, 10, 117, 64_091, 14, 118, 26),
    "report of the plain program": (2, 14, 253, 463_321, 25, 123, 27),
    "check": (1, 0, 112, 53_857, 16, 128, 28),
    "diff": (2, 0, 224, 107_714, 16, 109, 24),
    "rank": (1, 0, 94, 53_857, 14, 90, 20),
    "first page": (1, 10, 119, 64_091, 15, 129, 29),
}
"""Maximum work of each case, in the order of `WORK`."""
RUN: Final = {
    "help": 'assert 0 == main(["--help"])',
    "report": 'assert 0 == main(["analyze", "--no-cache", TRACE])',
    "report of the plain program": 'assert 0 == main(["analyze", "--no-cache", "--plain-step", "45 ms", TRACE])',
    "check": 'assert 0 == main(["check", "--no-cache", "--budget", "step_time <= 1 s", TRACE])',
    "diff": 'assert 0 == main(["diff", "--no-cache", TRACE, TRACE])',
    "rank": """
from overlapscope.ranks.reduced import reduce
from overlapscope.reading import load
assert len(reduce(load(TRACE, cache=False))) == 1
""",
    "first page": """
from overlapscope.dashboard.library import Library
from overlapscope.report.verdict import judge
library = Library()
section = library.wait(library.add(Path(TRACE), "trace")).section()
print(judge(section).text)
""",
}
NEVER: Final = {"asyncio", "dash", "multiprocessing", "numpy.ma", "pandas", "plotly", "torch"}
"""Modules that no command here needs, each of which takes as long to load as a small trace to analyze."""
COUNTED: Final = """
import json, os, sys, threading, tracemalloc
from pathlib import Path
import numpy as np
TRACE, LARGE = sys.argv[1], int(sys.argv[2])
counts = dict.fromkeys(("analyses", "replays", "passes", "sorted rows"), 0)
once = {"analyze_device": "analyses", "replay": "replays"}
basic = ("base/columns.py", "base/grouping.py", "base/intervals.py")

def rows(value):
    column = getattr(value, "name_id", value)
    return column.size if isinstance(column, np.ndarray) else 0

def count(frame, event, _):
    if event == "call":
        code = frame.f_code
        if code.co_name in once and "overlapscope" in code.co_filename:
            counts[once[code.co_name]] += 1
        elif code.co_filename.endswith(basic) or (code.co_name == "named" and code.co_filename.endswith("model.py")):
            counts["passes"] += max(map(rows, frame.f_locals.values()), default=0) >= LARGE

def counted(sort):
    def call(values, *args, **options):
        sorted_rows = len(values[0] if isinstance(values, tuple) else values)
        counts["sorted rows"] += sorted_rows if sorted_rows >= LARGE else 0
        return sort(values, *args, **options)
    return call

for name in ("sort", "argsort", "lexsort", "unique", "partition"):
    setattr(np, name, counted(getattr(np, name)))
from overlapscope.commands import main
tracemalloc.start()
threading.setprofile(count)
sys.setprofile(count)
{run}
sys.setprofile(None)
counts["peak MB"] = -(-tracemalloc.get_traced_memory()[1] // 1_000_000)
loaded = [*sys.modules]
ours = [name.split(".") for name in loaded if name.partition(".")[0] == "overlapscope"]
# The manifests of all plugins are loaded, which are next to nothing.
counts["modules"] = sum(name[1:2] != ["plugins"] or len(name) > 3 for name in ours)
files = [sys.modules[".".join(name)].__file__ for name in ours]
counts["thousand lines"] = -(-sum(len(Path(file).read_text().splitlines()) for file in files) // 1000)
print(json.dumps([counts, loaded]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    grown = tmp_path_factory.mktemp("grown") / "trace.json"
    grow(TRACES / "gpt2_train.json.gz", grown, 16)
    return grown


@pytest.mark.parametrize("case", RUN)
def test_no_more_work_is_done_than_before(case: str, trace: Path) -> None:
    code = COUNTED.replace("{run}", RUN[case])
    done = subprocess.run(
        [sys.executable, "-c", code, trace, str(LARGE)],
        capture_output=True,
        text=True,
        check=True,
        cwd=trace.parent,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    counts, loaded = json.loads(done.stderr.splitlines()[-1])
    work = dict(zip(WORK, MOST[case], strict=True))
    grown = {what: (counts[what], most) for what, most in work.items() if counts[what] > most}
    assert not grown, f"{case} does more than before (now, before): {grown}; all counts: {counts}"
    assert not NEVER & {*loaded}
