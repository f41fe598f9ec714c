"""Part of jobs in a report of ranks (`ranks.parts.RankPart`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Final, TypeAlias

from msgspec.structs import replace

from overlapscope.analysis.facts import rounded_mean
from overlapscope.base.median import median_ns
from overlapscope.base.words import NOTHING, Unit, bare_share, listed, number_runs, percent, plural, size, unit_for
from overlapscope.documents.table import Cell, Column, Table, table_of, words
from overlapscope.plugins.jobs.experts import find_experts
from overlapscope.plugins.jobs.part import ExpertExchange, ExpertRank, Jobs, Pipeline, StageTime
from overlapscope.plugins.jobs.pipelines import find_pipelines
from overlapscope.ranks.comm_result import CommTime
from overlapscope.ranks.comm_words import group_name
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.parts import PartTable
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport, rows_of

Part = Jobs


def join(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[Jobs, tuple[str, ...]]:
    """Return the experts and pipelines of the ranks compared, and notes on pipelines that are not judged."""
    pipelines, notes = find_pipelines(ranks, comparison)
    return Jobs(experts=find_experts(ranks, comparison), pipelines=pipelines), notes


def tables(report: RanksReport, part: Jobs, *, rows: int) -> tuple[PartTable, ...]:
    """Return the tables of stages and of the load of experts."""
    return (
        PartTable("stages of the pipeline", pipeline_table(part.pipelines), leads=True),
        PartTable("the load of experts", load_of_experts(report, part.experts, rows=rows)),
    )


_SCHEDULES: Final = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "interleaved 1F1B"}
_MAX_NAMED_RUNS: Final = 5
"""Maximum number of runs of ranks that are named."""
_MIN_UNEVENNESS: Final = 1.05
"""Minimum compute of the longest stage to be named, as a multiple of the mean."""
_HELD_UP: Final = 0.05
"""Minimum idle time of a stage to be named, more than that of the others, as a fraction of a step."""
_MIN_EXPERT_LOAD: Final = 1.1
"""Minimum load of experts that may explain why their rank is late."""
_MIN_SHARE: Final = 0.01
"""Minimum share of the elements of all exchanges to be shown: counts of tokens are exchanged before tokens."""

_Row: TypeAlias = tuple[ExpertExchange, ExpertRank]


def _worst(pipelines: Sequence[Pipeline]) -> Pipeline | None:
    return max(pipelines, key=lambda pipeline: pipeline.bubble_pct, default=None)


def sentences(part: Jobs) -> Iterator[str]:
    """Yield sentences on the pipeline with the largest bubble."""
    pipeline = _worst(part.pipelines)
    if pipeline is None:
        return
    theory = pipeline.theoretical_bubble_pct
    beside = "the order of its messages is of no known schedule" if theory is None else f"{percent(theory)} in theory"
    yield (
        f"The stages of the pipeline of ranks {listed(number_runs(pipeline.ranks), _MAX_NAMED_RUNS)} compute nothing "
        f"for {percent(pipeline.bubble_pct)} of the time ({_schedule(pipeline)}{beside})."
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
    if compute[stage] < _MIN_UNEVENNESS * usual:
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
    idle = _mean_of(pipeline, lambda stage: sum(phase.idle_ns for phase in stage.phases))
    stage = idle.index(max(idle))
    usual = median_ns(idle[:stage] + idle[stage + 1 :])
    if idle[stage] - usual < _HELD_UP * _step_ns(pipeline):
        return ""
    unit = unit_for(idle[stage])
    return (
        f"Stage {stage} (rank {pipeline.ranks[stage]}) holds it up: it neither computes nor sends nor receives for "
        f"{unit.text(idle[stage])} a step, the median of the others {unit.text(usual)}."
    )


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


def pipeline_table(pipelines: Sequence[Pipeline]) -> Table:
    """Return the table of the stages of the pipeline with the largest bubble, in an average step."""
    pipeline = _worst(pipelines)
    if pipeline is None:
        return Table("", ())
    steps, length = pipeline.steps, _step_ns(pipeline)
    unit: Unit = unit_for(length)

    def time(of: Callable[[StageTime], int]) -> Callable[[int], Cell]:
        means = _mean_of(pipeline, of)
        return lambda stage: Cell(unit.number(means[stage]))

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
        (Column("other", spare=1), time(lambda stage: sum(phase.other_ns for phase in stage.phases))),
        (Column("bubble %"), idle),
        title=f"Stages of the pipeline, an average step of {unit.text(length)}",
    )
    note = "Each stage in its own steps. Waits: for the other side of a message, without compute. Bubble: no compute."
    if pipeline.formula:
        note += f" In theory: {pipeline.formula} with p stages, m microbatches and v chunks of layers."
    if others := len(pipelines) - 1:
        least = min(each.bubble_pct for each in pipelines)
        note += f" {plural(others, 'other pipeline')} of this job: bubbles from {percent(least)}."
    return replace(table, note=note, id="stages")


# -- Experts ----------------------------------------------------------------------------------------


def why_late(report: RanksReport, part: Jobs) -> Iterator[str]:
    """State that the costliest straggler is late because its experts get more than others, if it is."""
    late = report.straggler
    for exchange in part.experts:
        most = max(exchange.ranks, key=lambda rank: rank.load or 0)
        explained = exchange.followed and 2 * exchange.largest_last >= exchange.followed
        if late is not None and late.rank == most.rank and (most.load or 0) >= _MIN_EXPERT_LOAD and explained:
            what = "rows" if most.loaded_rows is not None else "elements"
            yield (
                f"Its experts receive {most.load:.2f} times as many {what} as those of the mean rank; after "
                f"{exchange.largest_last:,} of {plural(exchange.followed, 'such exchange')} the rank that received "
                "most comes last to the next collective."
            )
            return


def load_of_experts(report: RanksReport, experts: Sequence[ExpertExchange], *, rows: int) -> Table:
    """Return the table of ranks by the load of their experts, the highest first: figures of an average step."""
    elements = [sum(rank.received_elements or 0 for rank in exchange.ranks) for exchange in experts]
    least, steps = max(1, _MIN_SHARE * sum(elements)), report.communication.steps or 1
    exchanges = [exchange for exchange, count in zip(experts, elements, strict=True) if count >= least]
    pairs: list[_Row] = [(exchange, rank) for exchange in exchanges for rank in exchange.ranks]
    pairs.sort(key=lambda row: (-(row[1].load or 0), -(row[1].received_elements or 0), row[1].rank))
    computed = {row.rank: row.buckets.compute_ns for row in rows_of(report) if row.joined}
    unit = unit_for(max((rank.time.busy_ns // steps for _, rank in pairs), default=0))
    longest = unit_for(max((computed.get(rank.rank) or 0 for _, rank in pairs), default=0))
    counted = any(rank.loaded_rows is not None for _, rank in pairs)

    def mean_of(total: int | None) -> int | None:
        return None if total is None else rounded_mean(total, steps)

    def loaded(row: _Row) -> Cell:
        count = mean_of(row[1].loaded_rows)
        return Cell(NOTHING if count is None else f"{count:,}")

    def moved(of: Callable[[ExpertRank], int | None]) -> Callable[[_Row], Cell]:
        def cell(row: _Row) -> Cell:
            count, element_bytes = of(row[1]), row[0].element_bytes
            return Cell(size(mean_of(None if count is None or element_bytes is None else count * element_bytes)))

        return cell

    def time(of: Callable[[CommTime], int | None]) -> Callable[[_Row], Cell]:
        return lambda row: Cell(unit.number(mean_of(of(row[1].time))))

    def judged(of: Callable[[CommTime], int]) -> Callable[[_Row], Cell]:
        return time(lambda spent: of(spent) if spent.unjudged_ns < spent.busy_ns else None)

    table = table_of(
        pairs[:rows],
        (words("rank"), lambda row: Cell(str(row[1].rank))),
        (
            Column("group", number=False, flexible=True),
            lambda row: Cell(group_name(row[0].group, row[0].description, row[0].group_ranks)),
        ),
        (Column("load"), lambda row: Cell(NOTHING if row[1].load is None else f"{row[1].load:.2f}")),
        (Column("rows", spare=1), loaded) if counted else None,
        (Column("sends", spare=2), moved(lambda rank: rank.sent_elements)),
        (Column("receives"), moved(lambda rank: rank.received_elements)),
        (Column(f"busy {unit.name}"), time(lambda spent: spent.busy_ns)),
        (Column("waiting"), judged(lambda spent: spent.waiting_ns)),
        (Column("transfer", spare=3), judged(lambda spent: spent.transfer_ns)),
        (Column(f"compute {longest.name}"), lambda row: Cell(longest.number(computed.get(row[1].rank)))),
        title=f"Load of experts, {'an average step' if report.communication.steps else 'all time after the lead-in'}",
    )
    return replace(table, note=_note(exchanges, len(pairs) - rows, counted=counted), id="experts")


def _note(exchanges: list[ExpertExchange], left_out: int, *, counted: bool) -> str:
    known = [exchange for exchange in exchanges if exchange.skew is not None]
    if known:
        note = "Load: elements that the rank receives for its experts, as a multiple of the mean rank's."
        note += f" In a single exchange, the most is {max(each.skew or 0 for each in known):.2f} times the mean."
        followed, last = sum(each.followed for each in known), sum(each.largest_last for each in known)
        if followed:
            note += (
                f" After {last:,} of {plural(followed, 'exchange')} the rank that received most comes last to the next."
            )
        if not counted:
            note += " Rows are unknown, because PyTorch shortened the lists of split sizes."
    else:
        note = "Load is unknown: no exchange could be compared between all ranks of its group."
    return f"{note} {plural(left_out, 'more row')} in the JSON." if left_out > 0 else note
