"""Predictions for jobs on several GPUs, beside the step of the fixed program, which was timed without the profiler."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from msgspec import Struct

from benchmarks.several_gpus_plan import ProgramResult
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.plugins.jobs.joint.join import RankSummary
from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
from overlapscope.plugins.jobs.joint.summary import summarize
from overlapscope.prediction.result import Estimate
from overlapscope.ranks.engine import reduce_by
from overlapscope.ranks.files import expand_urls
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import LIMIT_BYTES

JOBS = ("four", "two", "two-b")
"""Jobs whose variants are compared."""


class PlannedFix(Struct, frozen=True):
    """A variant with a loss, the variant without it, and the change that `whatif` offers for it."""

    program: str
    lossy: str
    fixed: str
    options: str = ""
    """Options of `whatif`; empty if no change undoes this loss."""
    job: JobChanges = JobChanges()
    ranks: tuple[str, ...] = ()
    """Changes on single ranks."""
    numbers: tuple[int, ...] | None = None
    """Ranks that are changed; None for all."""


def _sleep(program: str, lossy: str = "sleep") -> PlannedFix:
    return PlannedFix(program, lossy, "base", "--no-straggler", JobChanges(no_straggler=True))


def _buckets(program: str, lossy: str) -> PlannedFix:
    return PlannedFix(program, lossy, "base", "--bucket-mb 25", JobChanges(bucket_mb=25.0))


def _earlier(program: str, lossy: str) -> PlannedFix:
    return PlannedFix(program, lossy, "base", "--issue-earlier", JobChanges(issue_earlier=True))


def _unread(program: str, fixed: str) -> PlannedFix:
    return PlannedFix(program, "item", fixed, "--no-sync aten::item", ranks=("no-sync aten::item",))


FIXES = (
    _sleep("ddp"),
    _sleep("fsdp2"),
    _sleep("tensor_parallel"),
    _sleep("pipeline"),
    _sleep("experts"),
    _sleep("ddp", "slow-loader"),
    PlannedFix("ddp", "slow-loader", "base", "--faster-loader --rank 1", ranks=("faster-loader",), numbers=(1,)),
    _sleep("experts", "skew"),
    _buckets("ddp-narrow", "small-buckets"),
    _buckets("ddp", "large-buckets"),
    _earlier("fsdp2", "no-prefetch"),
    _unread("ddp", "norms"),
    _unread("tensor_parallel", "means"),
    _earlier("exposed", "late-issue"),
    PlannedFix(
        "exposed",
        "host-sync",
        "base",
        "--no-sync cudaEventSynchronize --issue-earlier",
        JobChanges(issue_earlier=True),
        ranks=("no-sync cudaEventSynchronize",),
    ),
    PlannedFix("exposed", "waiting-for-input", "base"),
    PlannedFix("exposed", "straggler", "no-compute", "--no-straggler", JobChanges(no_straggler=True)),
    PlannedFix("exposed", "same-stream", "base"),
    PlannedFix("exposed", "late-compute", "base"),
)
assert {change.split()[0] for fix in FIXES for change in fix.ranks} <= set(INTERVENTIONS)


class PredictedFix(Struct, frozen=True):
    """A prediction beside the measurement. Steps are those of the slowest rank, in nanoseconds."""

    fix: PlannedFix
    gpus: int
    lossy_ns: int
    """Median round of the variant with the loss, without the profiler."""
    fixed_ns: int
    """The same of the variant without it."""
    recorded_ns: int | None
    """Step with the loss by its recording, without the profiler."""
    predicted: Estimate | None
    refusal: str
    """Reason for the lack of a prediction; empty with a prediction."""

    @property
    def cost_pct(self) -> float:
        """Cost of the loss as a share of the step without it."""
        return 100 * (self.lossy_ns / self.fixed_ns - 1)

    @property
    def error_pct(self) -> float | None:
        """Difference of the predicted from the plain step."""
        return None if self.predicted is None else 100 * (self.predicted.value / self.fixed_ns - 1)

    @property
    def contained(self) -> bool:
        """True if the measured step lies in the predicted interval."""
        return self.predicted is not None and self.predicted.low <= self.fixed_ns <= self.predicted.high

    @property
    def lossless(self) -> bool:
        """True if the step without the change is a fifth shorter than that of the variant with the loss."""
        return self.recorded_ns is not None and self.recorded_ns < 0.8 * self.lossy_ns


def plain_step_ns(result: ProgramResult) -> int:
    """Return the step of a job without the profiler: the slowest rank's, in the median round."""
    slowest: list[int] = [max(ranks) for ranks in zip(*result.plain_ns, strict=True)]
    return round(median(slowest))


def predictions(out: Path, results: Iterable[ProgramResult]) -> Iterator[PredictedFix]:
    """Predict each fix from the recordings of the variant that needs it."""
    measured = {(each.job, each.program, each.variant): each for each in results if each.plain_ns}
    for job in JOBS:
        for fix in FIXES:
            lossy, fixed = (measured.get((job, fix.program, variant)) for variant in (fix.lossy, fix.fixed))
            if lossy is not None and fixed is not None:
                yield _predicted(out, fix, lossy, fixed)


def _predicted(out: Path, fix: PlannedFix, lossy: ProgramResult, fixed: ProgramResult) -> PredictedFix:
    steps = plain_step_ns(lossy), plain_step_ns(fixed)
    if not fix.options:
        return PredictedFix(fix, lossy.world, *steps, None, None, "no change offered")
    result = predict_job(summaries(out / lossy.trace, fix.ranks, fix.numbers), fix.job, fix.numbers)
    refusal = "" if result.valid else " ".join(result.reasons)
    untouched = result.valid and not any(change.touched for change in result.changes)
    if untouched:
        refusal = "The change does not apply."
    predicted = None if untouched else result.predicted_step_ns
    return PredictedFix(fix, lossy.world, *steps, result.replayed_step_ns, predicted, refusal)


def summaries(
    folder: Path, changes: tuple[str, ...] = (), numbers: tuple[int, ...] | None = None
) -> list[RankSummary | Unreadable]:
    reduction = partial(summarize, changes=changes, numbers=numbers)
    return [reduce_by(reduction, location, LIMIT_BYTES) for location in expand_urls(sorted(folder.glob("rank*")))]


def unpack(out: Path) -> None:
    """Unpack the archives of a measurement beside them, once."""
    for path in sorted(out.glob("traces-*.tar")):
        with tarfile.open(path) as archive:
            if any(not (out / name).exists() for name in archive.getnames()):
                archive.extractall(out, filter="data")
