"""Predictions of a job whose ranks are read by several processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from overlapscope.plugins.jobs.joint.join import RankSummary
from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
from overlapscope.plugins.jobs.joint.summary import summarize
from overlapscope.ranks.engine import reduce_by, reduce_each
from overlapscope.ranks.files import expand_urls
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import LIMIT_BYTES
from tests.process.test_ranks_engine import job

__all__ = ["job"]


def test_processes_predict_for_a_job_what_one_process_does(job: Path) -> None:
    summarized = partial(summarize, changes=("no-gc",), numbers=(1,))
    here = [reduce_by(summarized, location, LIMIT_BYTES) for location in expand_urls(job)]
    there = list(reduce_each(summarized, expand_urls(job), workers=2))
    results = [predict_job([_read(summary) for summary in them], JobChanges(bandwidth=2)) for them in (here, there)]
    assert results[0] == results[1]
    assert results[0].valid and [change.change for change in results[0].changes] == ["no-gc", "bandwidth 2x"]


def _read(summary: RankSummary | Unreadable) -> RankSummary:
    assert not isinstance(summary, Unreadable)
    return summary
