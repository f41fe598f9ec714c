"""Measures `overlapscope ranks` on jobs of many ranks, into `docs/ranks-performance.md`.

    python -m benchmarks.ranks [--ranks 8 64 512] [--workers N] [--large-mb 250]

The jobs are made by `benchmarks.ranks_job` out of two real recordings. Of a large rank, one of these recordings grown by
`benchmarks.grow`, it is measured what a worker needs for it and what it is reduced to; what ten thousand of them need is
calculated from that. Needs some 2 GB of disk and, with the defaults, five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.analyze import machine, run, say
from benchmarks.ranks_job import HOST_OFFSET_NS, LATE_NS, RANKS_PER_HOST, RECORDINGS, Job

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "ranks-performance.md"
RANKS = (8, 64, 512)
LARGE_MB = 250
MANY = 10_000
JOINED = (250, 1000)
"""How many ranks are joined, to see how that grows."""
DOWNLOAD_GB_PER_S = 1.0
"""What a storage may give to all workers together, for the calculation."""

ONE_PROCESS = """
import sys
from overlapscope.ranks.engine import reduce_one
from overlapscope.ranks.files import expand_urls
from overlapscope.ranks.join import Joined
from overlapscope.ranks.result import to_json
joined = Joined()
for location in expand_urls(sys.argv[1]):
    for rank in reduce_one(location, 1 << 40):
        joined.add(rank)
sys.stdout.buffer.write(to_json(joined.report()))
"""

ONE_LARGE = """
import pickle, resource, sys, threading, time
from overlapscope.ranks.engine import reduce_one
from overlapscope.ranks.files import expand_urls
(location,) = expand_urls(sys.argv[1])
ranks = []
# As in a worker: in a thread, where the reader has no help of other processes.
thread = threading.Thread(target=lambda: ranks.extend(reduce_one(location, 1 << 40)))
begin = time.perf_counter()
thread.start()
thread.join()
seconds = time.perf_counter() - begin
with open(sys.argv[2], "wb") as file:
    pickle.dump(ranks, file, protocol=5)
print(seconds)
"""

JOIN = """
import dataclasses, pickle, sys, time
from overlapscope.ranks.join import Joined
from overlapscope.ranks.result import to_json
count, data = int(sys.argv[1]), [open(path, "rb").read() for path in sys.argv[2:]]
joined = Joined()
for number in range(count):
    for rank in pickle.loads(data[number % len(data)]):
        joined.add(dataclasses.replace(rank, rank=number, world_size=count))
begin = time.perf_counter()
report = joined.report()
size = len(to_json(report))
print(time.perf_counter() - begin, size)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the command."""

    seconds: float
    client_mb: float
    """Peak of the process that the user started."""
    worker_mb: float
    """Peak of the largest worker."""
    report: bytes


@dataclass(frozen=True, slots=True)
class Size:
    """All that was measured of a job."""

    job: Job
    megabytes: float
    """Of its traces, packed."""
    alone_s: float
    alone_mb: float
    together: Measured
    killed: Measured
    same: bool
    """Whether all three gave one report, to the byte."""


@dataclass(frozen=True, slots=True)
class Large:
    """What one large rank needs."""

    megabytes: float
    seconds: float
    """Of one core."""
    peak_mb: float
    reduced_kb: float
    join: dict[int, tuple[float, float, float]]
    """By how many such ranks are joined: seconds, peak MB, MB of the JSON report."""


def measure(job: Job, folder: Path, workers: int) -> Size:
    """Run it in one process, by a cluster, and by a cluster that loses a worker in the middle."""
    say(f"{job.ranks} ranks: making them")
    folder.mkdir()
    megabytes = sum(path.stat().st_size for path in job.write(folder)) / 1e6
    say(f"{job.ranks} ranks: one process")
    alone = run([sys.executable, "-c", ONE_PROCESS, folder])
    say(f"{job.ranks} ranks: {workers} workers")
    together = command(folder, workers)
    say(f"{job.ranks} ranks: {workers} workers, one of them killed")
    killed = command(folder, workers, kill_after_s=together.seconds / 2)
    same = alone.stdout.encode() == together.report == killed.report
    return Size(job, megabytes, alone.seconds, alone.peak_mb, together, killed, same)


def command(folder: Path, workers: int, kill_after_s: float | None = None) -> Measured:
    """Run `overlapscope ranks`; with `kill_after_s`, kill one of its workers then."""
    line = [sys.executable, "-m", "overlapscope", "ranks", folder, "--workers", str(workers), "--format", "json"]
    client_mb = worker_mb = 0.0
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        with subprocess.Popen(line, stdout=out) as process:
            client = psutil.Process(process.pid)
            while process.poll() is None:
                client_mb = max(client_mb, peak_mb(client))
                readers = [child for child in children(client) if "--multiprocessing-fork" in words(child)]
                worker_mb = max([worker_mb, *map(peak_mb, readers)])
                if kill_after_s is not None and time.perf_counter() - begin > kill_after_s and readers:
                    readers[0].kill()
                    kill_after_s = None
                time.sleep(0.05)
            seconds = time.perf_counter() - begin
        if process.returncode or kill_after_s is not None:
            raise RuntimeError(f"it ended with {process.returncode}, or before a worker could be killed")
        out.seek(0)
        return Measured(seconds, client_mb, worker_mb, out.read())


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def peak_mb(process: psutil.Process) -> float:
    """The most memory that a process has had, 0 where it is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)


def measure_large(folder: Path, megabytes: int) -> Large:
    """What a rank of that size takes, alone on a worker, and what it is reduced to."""
    runs, sizes, pickles = [], [], []
    for recording in sorted(RECORDINGS.glob("rank*.json.gz")):
        name = recording.name.partition(".")[0]
        say(f"{megabytes} MB: {name}")
        trace, pickled = folder / f"large_{name}.json", folder / f"{name}.pickle"
        run([sys.executable, HERE / "grow.py", recording, trace, "--mb", str(megabytes)])
        runs.append(run([sys.executable, "-c", ONE_LARGE, trace, pickled]))
        sizes.append(trace.stat().st_size / 1e6)
        pickles.append(pickled)
        trace.unlink()
    join = {}
    for count in JOINED:
        say(f"joining {count} ranks of {megabytes} MB")
        done = run([sys.executable, "-c", JOIN, str(count), *pickles])
        seconds, size = map(float, done.stdout.split())
        join[count] = (seconds, done.peak_mb, size / 1e6)
    return Large(
        max(sizes),
        max(float(one.stdout) for one in runs),
        max(one.peak_mb for one in runs),
        max(one.stat().st_size for one in pickles) / 1e3,
        join,
    )


def truth(size: Size) -> tuple[bool, float]:
    """Whether the report names the rank that is late, and by how many us its clock offsets are wrong at most."""
    report = json.loads(size.together.report)
    late = bool(report["stragglers"]) and report["stragglers"][0]["rank"] == size.job.late
    wrong = [
        abs((row["clock_offset_ns"] or 0) - size.job.offset_ns(row["rank"])) / 1e3
        for row in report["ranks"]
        if row["clock_offset_ns"] is not None
    ]
    return late and len(wrong) == size.job.ranks, max(wrong, default=0.0)


def speed(sizes: Sequence[Size], workers: int) -> list[str]:
    """Time and memory, as lines of markdown."""
    lines = [
        f"| ranks | MB, packed | one process, s | {workers} workers, s | efficiency | a worker killed, s | client, MB "
        "| largest worker, MB | one process, MB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sizes:
        efficiency = 100 * one.alone_s / (workers * one.together.seconds)
        lines.append(
            f"| {one.job.ranks} | {one.megabytes:.0f} | {one.alone_s:.1f} | {one.together.seconds:.1f} | {efficiency:.0f} % "
            f"| {one.killed.seconds:.1f} | {one.together.client_mb:.0f} | {one.together.worker_mb:.0f} "
            f"| {one.alone_mb:.0f} |"
        )
    return lines


def found(sizes: Sequence[Size]) -> list[str]:
    """What the reports say against what is true, as lines of markdown."""
    lines = [
        "| ranks | hosts | late rank named first | clock offsets wrong by at most, us | one report, killed or not |",
        "|---:|---:|---|---:|---|",
    ]
    for one in sizes:
        named, wrong_us = truth(one)
        hosts = -(-one.job.ranks // RANKS_PER_HOST)
        lines.append(
            f"| {one.job.ranks} | {hosts} | {'yes' if named else '**no**'} | {wrong_us:.1f} "
            f"| {'yes' if one.same else '**no**'} |"
        )
    return lines


def paper(large: Large) -> list[str]:
    """What `MANY` large ranks need, calculated, as lines of markdown."""
    core_hours = MANY * large.seconds / 3600
    terabytes = MANY * large.megabytes / 1e6
    (few, (few_s, few_mb, _)), (more, (more_s, more_mb, more_json)) = large.join.items()
    mb_per_rank = (more_mb - few_mb) / (more - few)
    client_gb = (few_mb + mb_per_rank * (MANY - few)) / 1e3
    join_s = more_s * MANY / more
    lines = [
        f"One rank of {large.megabytes:.0f} MB ({large.megabytes / 1e3:.2g} GB, not packed) takes one core "
        f"{large.seconds:.1f} s and {large.peak_mb:.0f} MB at its peak, and is reduced to {large.reduced_kb:.0f} kB. "
        f"Joining {few:,} such ranks took {few_s:.1f} s and {few_mb:.0f} MB, {more:,} took {more_s:.1f} s and "
        f"{more_mb:.0f} MB for a report of {more_json:.1f} MB. From these:",
        "",
        "| | |",
        "|---|---|",
        f"| traces | {terabytes:.2g} TB |",
        f"| computing | {core_hours:.1f} hours of one core |",
        *(
            f"| on {cores:,} cores | {MANY * large.seconds / cores / 60:.1f} minutes, reading {rate(large, cores):.1f} GB/s, "
            f"{cores * large.peak_mb / 1e3:.0f} GB of memory over all workers |"
            for cores in (64, 256, 1024)
        ),
        f"| if the storage gives {DOWNLOAD_GB_PER_S:.0f} GB/s | {terabytes * 1e3 / DOWNLOAD_GB_PER_S / 60:.0f} minutes at "
        f"least, which keeps {DOWNLOAD_GB_PER_S * 1e3 / large.megabytes * large.seconds:.0f} cores busy |",
        f"| disk of a worker, for URLs | {large.megabytes:.0f} MB for each of its threads |",
        f"| through the scheduler to the client | {MANY * large.reduced_kb / 1e6:.1f} GB |",
        f"| memory of the client | {client_gb:.1f} GB ({mb_per_rank:.2f} MB for each rank) |",
        f"| joining, at the end | {join_s:.0f} s, if it grows as it did from {few:,} to {more:,} |",
        f"| the JSON report | {more_json * MANY / more:.0f} MB |",
    ]
    return lines


def rate(large: Large, cores: int) -> float:
    """GB/s that so many cores read together."""
    return cores * large.megabytes / large.seconds / 1e3


def page(sizes: Sequence[Size], large: Large, workers: int, about: str) -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Many ranks: speed and memory",
            "",
            "Written by `python -m benchmarks.ranks`. The jobs are two real recordings of a data-parallel training on two",
            "H200, multiplied by `benchmarks/ranks_job.py`: the events stay as recorded, while rank numbers, process groups",
            f"and clocks are rewritten. There are {RANKS_PER_HOST} ranks to a host, each host's clock is "
            f"{HOST_OFFSET_NS / 1e6:.3f} ms ahead of the one's before it,",
            f"and one rank begins each of its collectives {LATE_NS / 1e3:.0f} us late. MB are 10^6 bytes; memory is resident",
            "memory at its peak.",
            "",
            about,
            "",
            "## Time and memory",
            "",
            "Whole processes, from the command to the report. One process reads all traces one after another, without Dask;",
            "efficiency is its time over that of the workers, for each of them. A worker was killed (SIGKILL) halfway.",
            "",
            *speed(sizes, workers),
            "",
            "Starting the workers takes about a second, which is what small jobs lose. A worker's memory is that of one trace,",
            "however many there are; the client's grows with what the ranks are reduced to.",
            "",
            "## What was found",
            "",
            *found(sizes),
            "",
            f"## On paper: {MANY:,} ranks of {large.megabytes:.0f} MB",
            "",
            *paper(large),
            "",
            "Not measured: the scheduler and the network of a real cluster of that size. What passes through them is small:",
            "one task for each rank, and what it is reduced to.",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, metavar="N")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--large-mb", type=int, default=LARGE_MB, metavar="MB")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        large = measure_large(Path(scratch), options.large_mb)
        sizes = [measure(Job(ranks), Path(scratch) / str(ranks), options.workers) for ranks in options.ranks]
    text = page(sizes, large, options.workers, machine(sys.executable))
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
