"""Judgements of recordings on several GPUs (`benchmarks.several_gpus`) by what was planted and measured."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.several_gpus_plan import PROGRAMS, ProgramResult
from overlapscope import load
from overlapscope.catalog.causes import CommCause
from overlapscope.plugins.jobs.part import Pipeline
from overlapscope.ranks.comparison import compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import RanksVerdict, judge

PLANTED = {
    "sleep": ("rank 1 sleeps in each step", 1),
    "slow-loader": ("the loader of rank 1 is slow", 1),
    "straggler": ("rank 1 sleeps before a collective", 1),
    "skew": ("20% more tokens go to rank 0", 0),
}
"""What a variant plants, and on which rank. The others change all ranks alike."""
RECORDED = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_allv",
}
"""Names that PyTorch records for the collectives of the sweep."""
CAUSES = {
    ("two_collectives", "one-communicator"): CommCause.BLOCKED_BEHIND,
    ("pipeline", "base"): CommCause.MESSAGE_WAIT,
    **{("exposed", variant): CommCause(variant) for variant in PROGRAMS["exposed"].variants if variant != "base"},
}
"""Cause of most of the exposed communication, by program and variant."""
LARGE = 128 << 20
MICROBATCHES = 8
ALONE = re.compile(r"Rank (\d+)(?: delays|'s GPU is idle for)|Stage \d+ \(rank (\d+)\) holds it up")
SCHEDULES = {"base": "1f1b", "sleep": "1f1b", "gpipe": "gpipe", "zero-bubble": "zero-bubble"}
"""Schedules of the variants of `pipeline`."""


class StragglerDiagnosis(Struct, frozen=True):
    """What is said of a recording."""

    result: ProgramResult
    verdict: RanksVerdict
    lost_pct: float
    """Share of the others' time that the costliest rank delays them by."""

    @property
    def named(self) -> int | None:
        """Rank that delays the others; None if none, or if the delay may be the profiler's."""
        match = ALONE.search(self.verdict.text)
        return None if match is None or "all of this delay" in self.verdict.text else int(match[1] or match[2])

    @property
    def right(self) -> bool:
        planted = PLANTED.get(self.result.variant)
        return self.named == (planted[1] if planted else None)


def ranks_of(folder: Path) -> list[ReducedRank]:
    return [rank for path in sorted(folder.glob("rank*")) for rank in reduce_any(load(str(path)))]


def report_of(folder: Path) -> RanksReport:
    """Return the comparison of the ranks of a recording."""
    return report_on(ranks_of(folder))


def answers(out: Path, results: list[ProgramResult]) -> Iterator[StragglerDiagnosis]:
    for result in results:
        if result.plain_ns:
            report = report_of(out / result.trace)
            late = report.straggler
            yield StragglerDiagnosis(result, judge(report), (late.lost_pct or 0.0) if late is not None else 0.0)


class PipelineDiagnosis(Struct, frozen=True):
    """What is found of a pipeline."""

    result: ProgramResult
    schedule: str
    """Schedule that the program runs."""
    found: Pipeline | None

    @property
    def right(self) -> bool:
        found = self.found
        return found is not None and found.schedule == self.schedule and found.microbatches == MICROBATCHES


def pipelines(out: Path, results: list[ProgramResult]) -> Iterator[PipelineDiagnosis]:
    for result in results:
        if result.plain_ns and result.program.startswith("pipeline"):
            schedule = SCHEDULES[result.variant] if result.program == "pipeline" else "interleaved-1f1b"
            found = report_of(out / result.trace).parts["jobs"].pipelines
            yield PipelineDiagnosis(result, schedule, found[0] if found else None)


class CommDiagnosis(Struct, frozen=True):
    """Exposed communication of a recording by cause."""

    result: ProgramResult
    exposed_pct: float
    """Share of communication that is exposed, of all ranks."""
    shares: dict[str, float]
    """Share of each cause of the exposed communication, the largest first, in percent."""

    @property
    def planted(self) -> CommCause | None:
        """Cause that was planted; None without one."""
        return CAUSES.get((self.result.program, self.result.variant))

    @property
    def named(self) -> str | None:
        """Cause of most exposed time; None if nine tenths of the communication are hidden."""
        return None if self.exposed_pct < 10 or not self.shares else next(iter(self.shares))


def exposed(out: Path, results: list[ProgramResult]) -> Iterator[CommDiagnosis]:
    """Yield the causes of exposed communication of each recorded variant."""
    for result in results:
        communication = report_of(out / result.trace).communication if result.plain_ns else None
        if communication is not None and communication.time.busy_ns:
            total = communication.time.exposed_ns
            causes = sorted(communication.exposed_by_cause.items(), key=lambda each: -each[1])
            shares = {cause: 100 * ns / total for cause, ns in causes if ns}
            yield CommDiagnosis(result, 100 * total / communication.time.busy_ns, shares)


class TimedCollective(Struct, frozen=True):
    """A collective of one size: by CUDA events, and from the last arrival to the end in the recording."""

    gpus: int
    collective: str
    bytes: int
    events_us: float
    """Mean of calls in a row, without pauses of Python's garbage collector."""
    first_us: float
    """The same with these."""
    recorded_us: float

    @property
    def off_pct(self) -> float:
        return 100 * (self.events_us / self.recorded_us - 1)


def timed(out: Path, results: list[ProgramResult]) -> Iterator[TimedCollective]:
    for result in results:
        if result.program != "bandwidth":
            continue
        waits = compare(ranks_of(out / result.trace)).waits
        kernels, took = waits.meetings.kernels, defaultdict(list)
        for row in waits.meetings.row[waits.latest.row].tolist():
            name = kernels.kinds[int(kernels.kind[row])].collective
            took[name, int(kernels.bytes[row])].append(int(kernels.end_ns[row] - kernels.start_ns[row]))
        first = {(figure["collective"], figure["bytes"]): float(figure["us"]) for figure in result.figures[::-1]}
        for figure in result.figures:
            name, size = str(figure["collective"]), int(figure["bytes"])
            each = took[RECORDED[name], size]
            if "again" in figure and each:
                recorded_us = statistics.median(each) / 1000
                yield TimedCollective(result.world, name, size, float(figure["us"]), first[name, size], recorded_us)


def reproduced(out: Path, results: list[ProgramResult]) -> Iterator[tuple[ProgramResult, float, float]]:
    """Yield for each unchanged program by how many percent its second recording's step and exposed time differ."""
    for result in results:
        if result.again:
            once, again = (_figures(report_of(out / trace)) for trace in (result.trace, result.again))
            pairs = zip(once, again, strict=True)
            step, share = (100 * (second / first - 1) if first else 0.0 for first, second in pairs)
            yield result, step, share


def _figures(report: RanksReport) -> tuple[float, float]:
    """Return the median rank's step, and the exposed communication of all ranks."""
    spans = ([span for span in row.step_spans_ns if span is not None] for row in report.ranks)
    steps = [statistics.median(each) for each in spans if each]
    exposed_ns = report.communication.time.exposed_ns
    return (statistics.median(steps) if steps else 0.0), exposed_ns
