"""Pipelines in sentences and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.average import rounded_mean
from overlapscope.base.median import median_ns
from overlapscope.base.words import Unit, bare_share, listed, number_runs, percent, plural, unit_for
from overlapscope.documents.table import Cell, Column, Table, table_of
from overlapscope.ranks.pipeline_result import Pipeline, StageTime
from overlapscope.ranks.result import RanksReport

_SCHEDULES: Final = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "interleaved 1F1B"}
_NAMED: Final = 5
"""Maximum number of runs of ranks that are named."""
_UNEVEN: Final = 1.05
"""Minimum compute of the longest stage to be named, as a multiple of the mean."""
_HELD_UP: Final = 0.05
"""Minimum idle time of a stage to be named, more than that of the others, as a fraction of a step."""


def worst_pipeline(report: RanksReport) -> Pipeline | None:
    """Return the pipeline with the largest bubble."""
    return max(report.pipelines, key=lambda pipeline: pipeline.bubble_pct, default=None)


def pipeline_sentences(report: RanksReport) -> Iterator[str]:
    """Yield sentences on the pipeline with the largest bubble."""
    pipeline = worst_pipeline(report)
    if pipeline is None:
        return
    theory = pipeline.theoretical_bubble_pct
    beside = "the order of its messages is of no known schedule" if theory is None else f"{percent(theory)} in theory"
    yield (
        f"The stages of the pipeline of ranks {listed(number_runs(pipeline.ranks), _NAMED)} compute nothing for "
        f"{percent(pipeline.bubble_pct)} of the time ({_schedule(pipeline)}{beside})."
    )
    yield from filter(None, (_held_up(pipeline), _uneven(pipeline)))


def _schedule(pipeline: Pipeline) -> str:
    if pipeline.schedule is None:
        return ""
    chunks = [f"{pipeline.chunks:,} chunks of layers"] if pipeline.chunks > 1 else []
    parts = listed([plural(pipeline.microbatches or 0, "microbatch"), *chunks])
    return f"{_SCHEDULES[pipeline.schedule]} with {parts}: "


def _uneven(pipeline: Pipeline) -> str:
    """Return a sentence that names the stage which computes most; empty if all compute about as long."""
    compute = _mean_of(pipeline, lambda stage: stage.compute_ns)
    stage = pipeline.ranks.index(pipeline.longest_stage)
    usual = mean(compute)
    if compute[stage] < _UNEVEN * usual:
        return ""
    unit = unit_for(compute[stage])
    even = pipeline.even_step_ns
    theory = f" With even stages a step of {unit.text(_step_ns(pipeline))} would take {unit.text(even)} in theory."
    return (
        f"Stage {stage} (rank {pipeline.longest_stage}) bounds it: it computes {unit.text(compute[stage])} a step, the "
        f"mean stage {unit.text(round(usual))}.{theory if even is not None else ''}"
    )


def _held_up(pipeline: Pipeline) -> str:
    """Return a sentence that names the stage which idles on its own account; empty if all do so about as long."""
    idle = _mean_of(pipeline, lambda stage: stage.warm_up.idle_ns + stage.steady.idle_ns + stage.drain.idle_ns)
    stage = idle.index(max(idle))
    usual = median_ns(idle[:stage] + idle[stage + 1 :])
    if idle[stage] - usual < _HELD_UP * _step_ns(pipeline):
        return ""
    unit = unit_for(idle[stage])
    return (
        f"Stage {stage} (rank {pipeline.ranks[stage]}) holds it up: it neither computes nor sends nor receives for "
        f"{unit.text(idle[stage])} a step, the median of the others {unit.text(usual)}."
    )


def _other_ns(stage: StageTime) -> int:
    return stage.warm_up.other_ns + stage.steady.other_ns + stage.drain.other_ns


def _step_ns(pipeline: Pipeline) -> int:
    """Return the length of an average step of an average stage."""
    lengths = [stage.length_ns for step in pipeline.steps for stage in step.stages]
    return rounded_mean(sum(lengths), len(lengths))


def _mean_of(pipeline: Pipeline, of: Callable[[StageTime], int]) -> list[int]:
    """Return a time of each stage in an average step."""
    steps = pipeline.steps
    return [
        rounded_mean(sum(of(step.stages[stage]) for step in steps), len(steps)) for stage in range(len(pipeline.ranks))
    ]


def pipeline_table(report: RanksReport) -> Table:
    """Return the table of the stages of the pipeline with the largest bubble, in an average step."""
    pipeline = worst_pipeline(report)
    if pipeline is None:
        return Table("", ())
    steps, length = pipeline.steps, _step_ns(pipeline)
    unit: Unit = unit_for(length)

    def time(of: Callable[[StageTime], int]) -> Callable[[int], Cell]:
        return lambda stage: Cell(unit.number(rounded_mean(sum(of(step.stages[stage]) for step in steps), len(steps))))

    def idle(stage: int) -> Cell:
        whole = sum(step.stages[stage].length_ns for step in steps)
        return Cell(bare_share(whole - sum(step.stages[stage].compute_ns for step in steps), whole))

    table = table_of(
        range(len(pipeline.ranks)),
        (Column("stage"), lambda stage: Cell(str(stage))),
        (Column("rank"), lambda stage: Cell(str(pipeline.ranks[stage]))),
        (Column(f"compute {unit.name}"), time(lambda stage: stage.compute_ns)),
        (Column("waits: warm-up"), time(lambda stage: stage.warm_up.waiting_ns)),
        (Column("steady"), time(lambda stage: stage.steady.waiting_ns)),
        (Column("drain"), time(lambda stage: stage.drain.waiting_ns)),
        (Column("other", spare=1), time(_other_ns)),
        (Column("bubble %"), idle),
        title=f"Stages of the pipeline, an average step of {unit.text(length)}",
    )
    note = "Each stage in its own steps. Waits: for the other side of a message, without compute. Bubble: no compute."
    if pipeline.formula:
        note += f" In theory: {pipeline.formula} with p stages, m microbatches and v chunks of layers."
    if others := len(report.pipelines) - 1:
        least = min(each.bubble_pct for each in report.pipelines)
        note += f" {plural(others, 'other pipeline')} of this job: bubbles from {percent(least)}."
    return replace(table, note=note)
