"""Time of each stage inside one process, and the distance of reading from the machine's limit.

    python -m benchmarks.stages TRACE [--repeats N] [--profile reading|analysis]

Prints JSON: for each stage the median of its seconds, and the sizes that they are for; or, with `--profile`, the
functions with the most time of their own.
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import json
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.base.saved import encode
from overlapscope.reading import kineto
from overlapscope.reading._stream import boundaries
from overlapscope.reading.files import BLOCK_BYTES
from overlapscope.report.model import build

_MOST = 16


class _TypedEvent(msgspec.Struct, gc=False):
    """The fields of an event that any reader needs."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"null")


_EVENTS = msgspec.json.Decoder(list[_TypedEvent])


def plain_read(path: Path) -> None:
    """All bytes of the file into one buffer, again and again."""
    buffer = bytearray(BLOCK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def arrays(path: Path) -> list[bytes]:
    """Return the file's events in pieces, each a JSON array of about a block."""
    text = path.read_bytes()
    at, end = text.index(b"[", text.index(b'"traceEvents"')) + 1, text.rindex(b"]")
    pieces = []
    while at < end:
        stop = min(at + BLOCK_BYTES, end)
        if stop < end:
            stop = at + next(boundaries(text[at:stop]))
        pieces.append(b"[" + text[at:stop].strip().removeprefix(b",") + b"]")
        at = stop
    return pieces


def typed_decode(pieces: list[bytes]) -> int:
    """Decode all events into typed structs and drop them: the least that any reader with msgspec needs."""
    return sum(len(_EVENTS.decode(piece)) for piece in pieces)


def stages(path: Path, repeats: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        seconds.setdefault(stage, []).append(time.perf_counter() - start)
        return result

    pieces = arrays(path)
    with tempfile.TemporaryDirectory() as directory:
        packed = Path(directory, "packed.json.gz")
        packed.write_bytes(gzip.compress(path.read_bytes(), 6))
        os.environ["OVERLAPSCOPE_CACHE_DIR"] = directory
        ov.load(path, progress=False)
        for _ in range(repeats):
            timed("plain read", lambda: plain_read(path))
            timed("bare typed decode, one process", lambda: typed_decode(pieces))
            timed("reading, one process", lambda: kineto.read(path, progress=False, threads=1))
            timed("reading packed, one process", lambda: kineto.read(packed, progress=False, threads=1))
            timed("reading packed, all cores", lambda: kineto.read(packed, progress=False))
            timed("reading from the cache", lambda: ov.load(path, progress=False))
            trace = timed("reading, all cores", lambda: kineto.read(path, progress=False))
            analysis = timed("analysis", partial(analyze_trace, trace))
            report = timed("rules", partial(build, [analysis]))
            timed("writing JSON", partial(encode, report))
        return {
            "bytes": path.stat().st_size,
            "packed_bytes": packed.stat().st_size,
            "cached_bytes": sum(file.stat().st_size for file in Path(directory).rglob("*") if file != packed),
            "events": sum(len(_EVENTS.decode(piece)) for piece in pieces),
            "gpu_ops": len(trace.gpu_ops),
            "seconds": {stage: statistics.median(each) for stage, each in seconds.items()},
        }


def profile(path: Path, what: str) -> list[dict[str, Any]]:
    """Return the functions with the most time of their own; under the profiler everything in Python takes longer."""
    profiler = cProfile.Profile()
    if what == "reading":
        profiler.runcall(kineto.read, path, progress=False, threads=1)
    else:
        trace = kineto.read(path, progress=False)
        profiler.enable()
        build([analyze_trace(trace)])
        profiler.disable()
    every: dict[tuple[str, int, str], Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(values[2] for values in every.values())
    most = sorted(every.items(), key=lambda item: -item[1][2])[:_MOST]
    return [
        {"function": _named(*key), "calls": values[0], "seconds": values[2], "share": values[2] / total}
        for key, values in most
    ]


def _named(file: str, line: int, function: str) -> str:
    where = file.rpartition("overlapscope/")[2] if "overlapscope" in file else Path(file).name
    return function.strip("<>") if file == "~" else f"{where}: {function}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--profile", choices=("reading", "analysis"))
    options = parser.parse_args()
    timings = profile(options.trace, options.profile) if options.profile else stages(options.trace, options.repeats)
    print(json.dumps(timings))


if __name__ == "__main__":
    main()
