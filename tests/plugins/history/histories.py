"""Histories as jobs leave them: some weeks of recordings of a program that a commit made slower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from overlapscope.plugins.history.entry import Entry, entry
from overlapscope.plugins.history.store import Store
from overlapscope.report.origin import Origin
from tests.support.helpers import TRACES
from tests.support.recordings import report_of

FAST, SLOW = (TRACES / f"pipeline_{streams}stream.json.gz" for streams in (3, 1))
JOB, BRANCH = "train.py", "main"
BEGIN_NS = 1_750_000_000 * 10**9
HOUR_NS = 3600 * 10**9


def commit_of(number: int) -> str:
    return f"{number:02x}" * 20


def weeks(
    commits: int = 20, each: int = 3, *, slow_from: int | None = 12, noise: float = 0.01, job: str = JOB, seed: int = 1
) -> Iterator[Entry]:
    """Yield the entries of a job that is recorded `each` times a commit, eight hours apart.

    Reports are those of bundled recordings, of a program on three streams and from `slow_from` on on one; their figures
    are shaken by so much of themselves.
    """
    random = np.random.default_rng(seed)
    for number in range(commits * each):
        commit = number // each
        slow = slow_from is not None and commit >= slow_from
        origin = Origin(
            at_ns=BEGIN_NS + 8 * HOUR_NS * number, job=job, commit=commit_of(commit), branch=BRANCH, host="gpu-box"
        )
        result = entry(report_of(SLOW if slow else FAST), origin)
        shaken = (
            msgspec.structs.replace(figure, value=figure.value * random.normal(1, noise)) for figure in result.figures
        )
        yield msgspec.structs.replace(result, figures=tuple(shaken))


def write(path: Path, *entries: Entry) -> Path:
    """Return a store of the entries; of `weeks()` where none are given."""
    with Store.open(path) as store:
        for item in entries or weeks():
            store.add(item)
    return path
