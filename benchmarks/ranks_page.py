"""The text of `docs/evaluation/performance-ranks.md`, from what `benchmarks.ranks` measured."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from benchmarks.ranks_job import HOST_OFFSET_NS, LATE_NS, RANKS_PER_HOST, SyntheticJob

MANY = 10_000
CORES = (256,)
STORAGE_GB_PER_S = 1.0
"""Rate of a storage for all workers together, for the calculation."""


class RanksRun(Struct, frozen=True):
    """One run of the command."""

    seconds: float
    client_mb: float
    """Peak of the process that the user started."""
    worker_mb: float
    """Peak of the largest worker."""
    report: bytes


class JobCost(Struct, frozen=True):
    """All that was measured of a job."""

    job: SyntheticJob
    megabytes: float
    """Size of its traces, packed."""
    alone_s: float
    alone_mb: float
    together: RanksRun
    killed: RanksRun
    same: bool
    """True if all three runs gave the same report, to the byte."""


class Large(Struct, frozen=True):
    """Needs of one large rank."""

    megabytes: float
    seconds: float
    """Seconds of one core."""
    peak_mb: float
    reduced_kb: float
    join: dict[int, tuple[float, float, float]]
    """By how many such ranks are joined: seconds, peak MB, MB of the JSON report."""


def truth(size: JobCost) -> tuple[bool, float, float]:
    """Return whether the report names the late rank, the largest error of its clock offsets in us, and the error that
    it states.
    """
    report = json.loads(size.together.report)
    late = bool(report["stragglers"]) and report["stragglers"][0]["rank"] == size.job.late
    rows = [row for row in report["ranks"] if row["clock_offset_ns"] is not None]
    wrong = max(abs(row["clock_offset_ns"] - size.job.offset_ns(row["rank"])) for row in rows)
    return late and len(rows) == size.job.ranks, wrong / 1e3, report["clocks"]["largest_error_ns"] / 1e3


def speed(sizes: Sequence[JobCost], workers: int) -> list[str]:
    """Time and memory, as lines of markdown."""
    lines = [
        f"| ranks | MB, packed | one process, s | {workers} workers, s | efficiency | a worker killed, s | client, MB "
        "| largest worker, MB | one process, MB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        efficiency = 100 * size.alone_s / (workers * size.together.seconds)
        lines.append(
            f"| {size.job.ranks} | {size.megabytes:.0f} | {size.alone_s:.1f} | {size.together.seconds:.1f} "
            f"| {efficiency:.0f}% | {size.killed.seconds:.1f} | {size.together.client_mb:.0f} "
            f"| {size.together.worker_mb:.0f} | {size.alone_mb:.0f} |"
        )
    if len(sizes) > 1:
        logs = [(math.log(size.job.ranks), math.log(size.together.seconds)) for size in sizes]
        power, _ = statistics.linear_regression(*zip(*logs, strict=True))
        lines += ["", f"Time with workers grows with the number of ranks to the power of {power:.2f}."]
    return lines


def checks_of(sizes: Sequence[JobCost]) -> list[str]:
    """Return the reports' results beside the truth, as lines of markdown."""
    lines = [
        "| ranks | hosts | late rank named first | clock offsets wrong by at most, us | error stated, us "
        "| one report, killed or not |",
        "|---:|---:|---|---:|---:|---|",
    ]
    for size in sizes:
        named, wrong_us, stated_us = truth(size)
        hosts = -(-size.job.ranks // RANKS_PER_HOST)
        lines.append(
            f"| {size.job.ranks} | {hosts} | {'yes' if named else '**no**'} | {wrong_us:.1f} | {stated_us:.1f} "
            f"| {'yes' if size.same else '**no**'} |"
        )
    return lines


def paper(large: Large) -> list[str]:
    """Return the calculated needs of `MANY` large ranks, as lines of markdown."""
    (few, (few_s, few_mb, _)), (more, (more_s, more_mb, more_json_mb)) = large.join.items()
    mb_per_rank = (more_mb - few_mb) / (more - few)
    client_gb = (few_mb + mb_per_rank * (MANY - few)) / 1e3
    gigabytes = MANY * large.megabytes / 1e3
    busy = STORAGE_GB_PER_S * 1e3 / large.megabytes * large.seconds
    return [
        f"One rank of {large.megabytes:.0f} MB, not packed, takes one core {large.seconds:.1f} s and "
        f"{large.peak_mb:.0f} MB at its peak, and is reduced to {large.reduced_kb:.0f} kB.",
        f"Joining {few:,} such ranks took {few_s:.1f} s and {few_mb:.0f} MB; joining {more:,} took {more_s:.1f} s and "
        f"{more_mb:.0f} MB, for a JSON report of {more_json_mb:.1f} MB. From these:",
        "",
        "| | |",
        "|---|---|",
        *(on(cores, large) for cores in CORES),
        f"| storage of {STORAGE_GB_PER_S:.0f} GB/s | keeps {busy:.0f} cores busy: "
        f"{gigabytes / STORAGE_GB_PER_S / 60:.0f} minutes at least |",
        f"| memory of the client | {client_gb:.1f} GB, {mb_per_rank:.2f} MB for each rank |",
    ]


def on(cores: int, large: Large) -> str:
    """Return a line on a cluster of this many cores."""
    minutes = MANY * large.seconds / cores / 60
    read = cores * large.megabytes / large.seconds / 1e3
    memory = cores * large.peak_mb / 1e3
    return f"| {cores:,} cores | {minutes:.1f} minutes, reading {read:.1f} GB/s, {memory:.0f} GB of memory in all |"


def page(sizes: Sequence[JobCost], large: Large, workers: int, about: str) -> str:
    """Return the whole page."""
    ahead = f"{HOST_OFFSET_NS / 1e6:.3f} ms"
    return "\n".join(
        [
            "# Performance of ranks",
            "",
            "Written by `python -m benchmarks.ranks`. The jobs are two real recordings of a data-parallel training on",
            "two H200, multiplied by `benchmarks/ranks_job.py`: the events stay as recorded, while rank numbers,",
            f"process groups and clocks are rewritten. {RANKS_PER_HOST} ranks make a host, each host's clock is",
            f"{ahead} ahead of the one's before, and one rank begins each collective {LATE_NS / 1e3:.0f} us late. MB",
            "are 10^6 bytes; memory is resident memory at its peak.",
            "",
            about,
            "",
            "## Time and memory",
            "",
            "Whole processes, from the command to the report. One process reads all traces one after another;",
            "efficiency is its time divided by the workers' and by their number. A worker was killed (SIGKILL)",
            "halfway. A few small traces are read without workers.",
            "",
            *speed(sizes, workers),
            "",
            "A worker's memory is that of one trace, however many there are; the client's grows with what the ranks",
            "are reduced to.",
            "",
            "## What was found",
            "",
            *checks_of(sizes),
            "",
            f"## Extrapolated: {MANY:,} ranks of {large.megabytes:.0f} MB",
            "",
            *paper(large),
            "",
            "Not measured: the scheduler and the network of a cluster of that size. What passes through them is one",
            "small task for each rank, and what it is reduced to.",
            "",
        ]
    )
