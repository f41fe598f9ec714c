"""Pipelines of recorded ranks, from their sends and receives."""

from __future__ import annotations

from pathlib import Path

from tests.core.ranks.test_ranks_messages import STEP, report, three_ranks, two_stages


def test_the_pipeline_of_two_such_ranks_has_the_second_as_its_second_stage(tmp_path: Path) -> None:
    (found,) = report(*two_stages(tmp_path, batched=True)).parts["jobs"].pipelines
    assert (found.ranks, found.microbatches) == ((0, 1), 1)
    (step, *_) = found.steps
    first, second = step.stages
    # Each step lasts until the next one begins.
    assert first.length_ns == second.length_ns == 1000 * STEP
    assert (first.compute_ns, second.compute_ns) == (3_500_000, 2_000_000)
    assert (first.warm_up.waiting_ns, second.warm_up.waiting_ns) == (2_000_000, 2_970_000)


def test_ranks_with_messages_to_a_missing_rank_are_no_pipeline(tmp_path: Path) -> None:
    assert report(*three_ranks(tmp_path)[:2]).parts["jobs"].pipelines == ()
