"""Part of jobs in a report of ranks (`ranks.parts.RankPart`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.base.words import percent
from overlapscope.documents.model import Card
from overlapscope.plugins.jobs.experts import find_experts
from overlapscope.plugins.jobs.part import Jobs
from overlapscope.plugins.jobs.pipelines import find_pipelines
from overlapscope.plugins.jobs.words import (
    expert_sentences,
    load_of_experts,
    pipeline_sentences,
    pipeline_table,
    worst_pipeline,
)
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.parts import PartTable
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport

Part = Jobs


def join(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[Jobs, tuple[str, ...]]:
    """Return the experts and pipelines of the ranks compared, and notes on pipelines that are not judged."""
    pipelines, notes = find_pipelines(ranks, comparison)
    return Jobs(experts=find_experts(ranks, comparison), pipelines=pipelines), notes


def why_late(report: RanksReport, part: Jobs) -> Iterator[str]:
    """Return a sentence on the load of the costliest straggler's experts, if that explains its delay."""
    return expert_sentences(report, part.experts)


def sentences(part: Jobs) -> Iterator[str]:
    """Return sentences on the pipeline with the largest bubble."""
    return pipeline_sentences(part.pipelines)


def cards(part: Jobs) -> Iterator[Card]:
    """Yield the bubble of that pipeline."""
    pipeline = worst_pipeline(part.pipelines)
    if pipeline is not None:
        theory = pipeline.theoretical_bubble_pct
        beside = "" if theory is None else f"{percent(theory)} in theory"
        meaning = "Share of the steps, over all stages of the pipeline, in which a stage computes nothing."
        yield Card("pipeline bubble", percent(pipeline.bubble_pct), beside, meaning)


def tables(report: RanksReport, part: Jobs, *, rows: int) -> tuple[PartTable, ...]:
    """Return the tables of stages and of the load of experts."""
    return (
        PartTable("stages", "stages of the pipeline", pipeline_table(part.pipelines), leads=True),
        PartTable("experts", "the load of experts", load_of_experts(report, part.experts, rows=rows)),
    )
