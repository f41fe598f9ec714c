"""Measures the history at the size of a year: one report every ten minutes, 52,560 of them.

    python -m benchmarks.history

The entries are those of a bundled recording with other figures in each. Writes
`docs/evaluation/performance-history.md`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from benchmarks.processes import OURS, run
from overlapscope.base.words import size
from overlapscope.inputs import read_report
from overlapscope.plugins.history.entry import Entry, digest, entry, pack
from overlapscope.plugins.history.store import Query, Store
from overlapscope.reading.samples import SAMPLES
from overlapscope.report.origin import of_report

RESULTS = Path(__file__).parents[1] / "docs" / "evaluation" / "performance-history.md"
REPORTS = 52_560
EVERY_NS = 600 * 10**9
GOAL_S = 1.0
REPEATS = 5


def entry_at(template: Entry, number: int, chance: random.Random) -> Entry:
    """Return the entry as of another time and commit, with other figures."""
    origin = replace(template.origin, at_ns=template.origin.at_ns + number * EVERY_NS, commit=f"{number // 144:040x}")
    figures = tuple(replace(figure, value=figure.value * chance.uniform(0.9, 1.1)) for figure in template.figures)
    id = digest(origin, template.report, plain=template.plain)
    return replace(template, id=id, origin=origin, figures=figures)


def seconds(work: Callable[[], Any]) -> float:
    """Return the median of some runs."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)


def main() -> None:
    """Fill a store, query it, and write the times."""
    report = read_report([SAMPLES / "training_prefetched.json.gz"], replayed=True)
    template = entry(report, of_report(report, otherwise_ns=0, job="train.py"))
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        with Store.open(path) as store:
            began = time.perf_counter()
            for number in range(REPORTS):
                store.add(entry_at(template, number, chance))
            added_s = (time.perf_counter() - began) / REPORTS

        middle = entry_at(template, REPORTS // 2, chance).id

        def metric() -> None:
            with Store.open(path, read_only=True) as store:
                assert len(store.points("efficiency_pct", Query(job="train.py"))) == REPORTS

        def rows() -> None:
            with Store.open(path, read_only=True) as store:
                assert len(store.rows()) == REPORTS

        def run_once() -> None:
            with Store.open(path, read_only=True) as store:
                store.entry(middle)

        lines = {
            "open the file, and read one metric of the year": seconds(metric),
            "open the file, and read what each report is of": seconds(rows),
            "open the file, and unpack one report": seconds(run_once),
            "`overlapscope history`, a cold process": median(
                run([*OURS, "history", "--history", path]).seconds for _ in range(REPEATS)
            ),
            "add one report": added_s,
        }
        bytes_a_report = path.stat().st_size / REPORTS
    asked_s = lines["open the file, and read one metric of the year"]
    met = "met" if asked_s < GOAL_S else "missed"
    page = [
        "# Performance of the history",
        "",
        f"Written by `python -m benchmarks.history`: a history of {REPORTS:,} reports, one every ten minutes "
        "for a year,",
        f"each of one device and {len(report.devices[0].steps)} steps with {len(template.figures)} figures. "
        f"Medians of {REPEATS}, on a machine with two cores.",
        "",
        f"Wanted: one metric of the year in under {GOAL_S:.0f} s. It took {asked_s:.2f} s: {met}.",
        "",
        "| | seconds |",
        "|---|---|",
        *(f"| {what} | {taken_s:.2g} |" for what, taken_s in lines.items()),
        "",
        f"A report takes {size(round(bytes_a_report))} of the file, {size(len(pack(template)))} of them the "
        f"packed report itself; the year takes {size(round(bytes_a_report * REPORTS))}.",
        "",
    ]
    RESULTS.write_text("\n".join(page))


if __name__ == "__main__":
    main()
