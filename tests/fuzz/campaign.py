"""Many files, judged by several processes.

Files that kill or hang the process are reported too, and another process goes on after them.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, field

from tests.fuzz.corpus import few, saved
from tests.fuzz.mutators import BOMB, LIMIT_BYTES, FuzzCase, make
from tests.fuzz.oracle import Defect, examine

HANG_S = 60.0
"""Wall time after which a file hangs; the process ends then with a traceback, whatever it is doing."""
MOST_S, MOST_S_PER_BYTE = 5.0, 5e-6
"""Limits of CPU time for a file, and for each of its unpacked bytes: about ten times the usual time."""
MOST_BYTES, MOST_BYTES_PER_BYTE = 96 << 20, 60
"""Limits of memory likewise, beyond the process's earlier peak."""
GROWTH_BYTES, SETTLED = 128 << 20, 5000
"""Maximum growth of a process after this many files: the memory that the largest of them leaves."""
MOST_ADDRESSES = 8 << 30
"""Address space of a process in bytes, so that no file takes all of the machine's memory."""
_IN_MEMORY = Path("/dev/shm")
TALLY = "tally.json"
"""File of the counts so far, beside the findings."""
KEPT = 3
"""Files written of each kind that is found."""
PART = 100
"""Number of seeds that a process takes at once. A part that is slow holds up no other."""
_REPORT_S = 10.0
_MOST_TIMES = 100
"""Unpacked size of a packed file, as a multiple of its size, that is read without a limit of the user's."""
_UNPACKED = 50
"""Packed bytes stand for so many at most (but bombs)."""


class Tally(Struct):
    """Results of a campaign so far."""

    files: int = 0
    files_by_kind: Counter[str] = field(default_factory=Counter)
    """Number of files of each kind."""
    findings_by_kind: Counter[str] = field(default_factory=Counter)
    rss_bytes: int = 0
    """The most that any process took."""
    growth_bytes: int = 0
    """The most that any process grew after `SETTLED` files."""


@contextmanager
def judging() -> Iterator[Path]:
    """Yield a folder for files. The package's warnings are errors, as in its tests, and memory is limited."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    with TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", module="overlapscope")
        yield Path(folder)


def judge(case: FuzzCase, folder: Path) -> list[Defect]:
    """Return the findings of a case, including those on its time and memory."""
    path = folder / case.name
    path.write_bytes(case.data)
    before_s, before_bytes = time.process_time(), _most_bytes()
    try:
        findings = list(examine(case, path))
    finally:
        path.unlink()
    took_s, took_bytes = time.process_time() - before_s, _most_bytes() - before_bytes
    size = len(case.data) if case.data[:1] in b"{[ " else min(_UNPACKED * len(case.data), LIMIT_BYTES)
    if BOMB in case.how:
        size = max(LIMIT_BYTES, _MOST_TIMES * len(case.data))
    if took_s > MOST_S + MOST_S_PER_BYTE * size:
        findings.append(Defect("too slow", f"{took_s:.1f} s for {size} bytes"))
    if took_bytes > MOST_BYTES + MOST_BYTES_PER_BYTE * size:
        findings.append(Defect("too much memory", f"{took_bytes >> 20} MiB for {size} bytes"))
    return findings


def _most_bytes() -> int:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def run(first: int, files: int | None, *, jobs: int, seconds: float | None, out: Path) -> Tally:
    """Judge files from the seed `first` on, for a number of files or a length of time. Failing files are written to
    `out`.

    Each process takes a part of the seeds after the other.
    """
    out.mkdir(parents=True, exist_ok=True)
    saved()
    few()
    # The collector of garbage need not look at modules and origins again and again.
    gc.freeze()
    last = first + files if files is not None else 1 << 62
    taken = multiprocessing.get_context("fork").Value("q", first)
    workers = [_Worker(number, taken, last, out) for number in range(jobs)]
    tally, began, reported_s = Tally(), time.monotonic(), 0.0
    for worker in workers:
        worker.start()
    try:
        while any(worker.running for worker in workers):
            by_end = {worker.end: worker for worker in workers if worker.running}
            for end in wait(list(by_end), timeout=1.0):
                by_end[end].heard(tally)  # type: ignore[index]
            elapsed = time.monotonic() - began
            if elapsed - reported_s > _REPORT_S:
                reported_s = elapsed
                print(_progress(tally, elapsed), flush=True)
                (out / TALLY).write_bytes(msgspec.json.encode(tally))
            if seconds is not None and elapsed > seconds:
                break
    finally:
        for worker in workers:
            worker.stop(tally)
    (out / TALLY).write_bytes(msgspec.json.encode(tally))
    print(_summary(tally, first, jobs, time.monotonic() - began), flush=True)
    return tally


class _Worker:
    """One process after the other on parts of the seeds."""

    def __init__(self, number: int, taken: Any, last: int, out: Path) -> None:
        self._log = out / f"job{number}.log"
        self._taken, self._last, self._out = taken, last, out
        self._context = multiprocessing.get_context("fork")
        self._at = self._context.RawArray("q", 2)
        """Seed of the file that is judged, and number of files until then, that one included."""
        self._process: Any = None
        self.end: Connection
        self.running = True
        self.done = 0

    def start(self, resumed: int = 0) -> None:
        """Start the next process, on the rest of a part from the seed `resumed` on."""
        self.end, other = self._context.Pipe(duplex=False)
        arguments = (self._at, self._taken, resumed, self._last, other, self._log, os.getpid())
        self._process = self._context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def heard(self, tally: Tally) -> None:
        """Handle the process's messages, or its end."""
        try:
            seed, findings, file_kinds, rss, growth = self.end.recv()
        except EOFError:
            self._ended(tally)
            return
        self._count(tally, file_kinds.total())
        tally.files_by_kind += file_kinds
        tally.rss_bytes, tally.growth_bytes = max(tally.rss_bytes, rss), max(tally.growth_bytes, growth)
        for match in findings:
            self._keep(tally, seed, match)

    def _count(self, tally: Tally, files: int) -> None:
        self.done += files
        tally.files += files

    def _ended(self, tally: Tally) -> None:
        self._process.join()
        if self._process.exitcode == 0:
            self.running = False
            return
        seed, begun = self._at
        self._count(tally, begun - self.done)
        text = self._log.read_text(errors="replace")
        what = "hangs" if "Timeout" in text else f"process died ({self._process.exitcode})"
        self._keep(tally, seed, Defect(f"{what}: {_innermost(text)}", text[-3000:]))
        self.start(seed + 1)

    def stop(self, tally: Tally) -> None:
        """End it; whatever it has said until then counts."""
        if self._process is None:
            return
        while self.running and self.end.poll():
            self.heard(tally)
        self._process.kill()
        self._process.join()

    def _keep(self, tally: Tally, seed: int, finding: Defect) -> None:
        tally.findings_by_kind[finding.kind] += 1
        if tally.findings_by_kind[finding.kind] > KEPT:
            return
        case = make(seed)
        slug = re.sub(r"[^A-Za-z0-9]+", "-", finding.kind).strip("-")[:80]
        (self._out / f"{slug}-{case.name}").write_bytes(case.data)
        line = f"seed {seed}: {finding.kind}\n  {case.origin.name}, {', '.join(case.how) or 'unchanged'}\n"
        line += f"  Repeat it with python -m tests.fuzz --seed {seed}\n"
        detail = "".join(f"  {line}\n" for line in finding.detail.splitlines())
        with (self._out / "found.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + detail)
        print(line, end="", flush=True)


def _seeds(taken: Any, resumed: int, last: int) -> Iterator[int]:
    """Yield the seeds of a part from `resumed` on, and of each part that no other process has taken."""
    yield from range(resumed, min(-(-resumed // PART) * PART, last))
    while True:
        with taken.get_lock():
            begin = taken.value
            taken.value = end = (begin // PART + 1) * PART
        if begin >= last:
            return
        yield from range(begin, min(end, last))


def _work(at: Any, taken: Any, resumed: int, last: int, end: Connection, log: Path, parent: int) -> None:
    """Judge parts of the seeds in this process; say what was found, and once in a while how far it is."""
    settled = files = seed = 0
    watched, last_message_s = 0.0, time.monotonic()
    file_kinds: Counter[str] = Counter()
    with judging() as folder, log.open("w") as file:
        faulthandler.enable(file)
        for files, seed in enumerate(_seeds(taken, resumed, last), 1):
            at[0], at[1] = seed, at[1] + 1
            if time.monotonic() > watched + 1:
                # Setting it costs as much as reading a small file.
                watched = time.monotonic()
                faulthandler.dump_traceback_later(HANG_S + 1, exit=True, file=file)
            case = make(seed)
            file_kinds[case.kind] += 1
            result = judge(case, folder)
            if files == SETTLED:
                settled = _resident_bytes()
            if result or time.monotonic() - last_message_s > 1.0:
                last_message_s, rss = time.monotonic(), _resident_bytes()
                growth = rss - settled if settled else 0
                if growth > GROWTH_BYTES:
                    result.append(Defect("the process grows", f"{growth >> 20} MiB after {files} files"))
                    settled = rss
                if os.getppid() != parent:
                    return
                end.send((seed, result, file_kinds, rss, growth))
                file_kinds = Counter()
        faulthandler.cancel_dump_traceback_later()
        end.send((seed, [], file_kinds, _resident_bytes(), 0))


def _resident_bytes() -> int:
    """Return the memory that this process has now; where the system does not say, the most that it has had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _most_bytes()
    return pages * resource.getpagesize()


def _innermost(traceback: str) -> str:
    """Return the innermost line of the package in a traceback of faulthandler's."""
    match = re.search(r'File "[^"]*/(overlapscope/[^"]+)", line \d+ in (\w+)', traceback)
    return f"{match[1]} {match[2]}" if match else "outside the package"


def _progress(tally: Tally, elapsed: float) -> str:
    return (
        f"{elapsed:6.0f} s: {tally.files:,} files, {tally.files / elapsed:.0f} a second, "
        f"{len(tally.findings_by_kind)} kinds of findings, {tally.rss_bytes >> 20} MiB at most"
    )


def _summary(tally: Tally, first: int, jobs: int, elapsed: float) -> str:
    summary = (
        "nothing found"
        if not tally.findings_by_kind
        else f"{tally.findings_by_kind.total()} findings of {len(tally.findings_by_kind)} kinds"
    )
    kinds = "".join(f"\n  {count:,} x {kind}" for kind, count in tally.findings_by_kind.most_common())
    file_kinds = ", ".join(f"{count:,} {kind}" for kind, count in tally.files_by_kind.most_common())
    return (
        f"{tally.files:,} files ({file_kinds}) from seed {first} in {elapsed:.0f} s by {jobs} jobs "
        f"({tally.files / elapsed:.0f} a second): {summary}. A process takes {tally.rss_bytes >> 20} MiB at most, and "
        f"grew by {tally.growth_bytes >> 20} MiB at most after its first {SETTLED:,} files.{kinds}"
    )
