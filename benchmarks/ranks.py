"""Measures `overlapscope ranks` on jobs of many ranks, into `docs/evaluation/performance-ranks.md`.

    python -m benchmarks.ranks [--ranks 8 64 512] [--workers N] [--large-mb 250]

The jobs are made by `benchmarks.ranks_job` out of two real recordings. For a large rank, a recording grown by
`benchmarks.grow`, it measures the needs of a worker and the size of the reduced trace, and calculates those of ten
thousand ranks. Needs 2 GB of disk and some five minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.processes import HERE, machine, run, say
from benchmarks.ranks_job import RECORDINGS, SyntheticJob
from benchmarks.ranks_page import JobCost, Large, RanksRun, page

PAGE = HERE.parent / "docs" / "evaluation" / "performance-ranks.md"
RANKS = (8, 64, 512)
LARGE_MB = 250
JOINED = (250, 1000)
"""Numbers of ranks to join, to see the growth."""

ONE_PROCESS = """
import sys
from overlapscope.ranks.engine import reduce_by
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.files import expand_urls
from overlapscope.ranks.join import report_on
from overlapscope.base.saved import encode
joined = []
for location in expand_urls(sys.argv[1]):
    for rank in reduce_by(reduce_any, location, 1 << 40):
        joined.append(rank)
sys.stdout.buffer.write(encode(report_on(joined)))
"""

ONE_LARGE = """
import pickle, resource, sys, threading, time
from overlapscope.ranks.engine import reduce_by
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.files import expand_urls
(location,) = expand_urls(sys.argv[1])
ranks = []
# As in a worker: in a thread, where the reader has no help of other processes.
thread = threading.Thread(target=lambda: ranks.extend(reduce_by(reduce_any, location, 1 << 40)))
begin = time.perf_counter()
thread.start()
thread.join()
seconds = time.perf_counter() - begin
with open(sys.argv[2], "wb") as file:
    pickle.dump(ranks, file, protocol=5)
print(seconds)
"""

JOIN = """
import pickle, sys, time
from msgspec.structs import replace
from overlapscope.ranks.join import report_on
from overlapscope.base.saved import encode
count, data = int(sys.argv[1]), [open(path, "rb").read() for path in sys.argv[2:]]
joined = []
for number in range(count):
    for rank in pickle.loads(data[number % len(data)]):
        joined.append(replace(rank, rank=number, world_size=count))
begin = time.perf_counter()
report = report_on(joined)
size = len(encode(report))
print(time.perf_counter() - begin, size)
"""


def measure(job: SyntheticJob, folder: Path, workers: int) -> JobCost:
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
    return JobCost(job, megabytes, alone.seconds, alone.peak_mb, together, killed, same)


def command(folder: Path, workers: int, kill_after_s: float | None = None) -> RanksRun:
    """Run `overlapscope ranks`; with `kill_after_s`, kill one of its workers then."""
    line: list[str | Path] = [
        sys.executable,
        "-m",
        "overlapscope",
        "ranks",
        folder,
        "--workers",
        str(workers),
        "--format",
        "json",
    ]
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
        return RanksRun(seconds, client_mb, worker_mb, out.read())


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
    """Return the peak memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)


def measure_large(folder: Path, megabytes: int) -> Large:
    """Measure a rank of that size alone on a worker, and its reduced size."""
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
        max(float(run.stdout) for run in runs),
        max(run.peak_mb for run in runs),
        max(pickle.stat().st_size for pickle in pickles) / 1e3,
        join,
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
        sizes = [measure(SyntheticJob(ranks), Path(scratch) / str(ranks), options.workers) for ranks in options.ranks]
    text = page(sizes, large, options.workers, machine({"overlapscope": sys.executable}))
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
