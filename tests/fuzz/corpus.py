"""Files to mutate: pieces of the bundled recordings, made-up programs, predictions, and reports of them. All small.

Analyzing a trace of few events costs much less than one of many and finds nearly as much, so most files are made of
`few`, and only some of `origins`.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.base.marks import METADATA, PLAIN_STEPS
from overlapscope.base.saved import encode
from overlapscope.budgets import baseline
from overlapscope.errors import UsageError
from overlapscope.export import chrome_trace
from overlapscope.prediction.predict import predict
from overlapscope.reading import kineto, load
from overlapscope.report.model import Report, build
from overlapscope.trace.model import Trace
from tests.support.helpers import MS, TRACES, recordings
from tests.support.made_up_programs import Do, record, repeated
from tests.support.served import Frames, Pass, write_server

Event = dict[str, Any]


class SizeLimits(Struct, frozen=True):
    """Maximum numbers of steps, of ops per step and per lane of a step, and of host events of a kind.

    The compiled scanner leaves arrays with instants to Python.
    """

    steps: int = 3
    ops: int = 8
    lane: int = 3
    host: int = 20
    instants: bool = True


SOME = SizeLimits()
FEW = (SizeLimits(1, 2, 2, 2, instants=False), SizeLimits(1, 4, 2, 4), SizeLimits(2, 2, 1, 3, instants=False))
_LARGEST_PACKED_BYTES = 60_000
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_ORDERING = ("Synchronize", "WaitEvent", "EventRecord", "Malloc", "Free", "HostAlloc")


class OriginalTrace(Struct, frozen=True):
    """A trace before it is mutated, as JSON."""

    name: str
    text: bytes
    predicted: bool = False

    def document(self) -> dict[str, Any]:
        """Return a copy of the document, to be changed."""
        document: dict[str, Any] = json.loads(self.text)
        return document


@cache
def origins() -> tuple[OriginalTrace, ...]:
    """All of them, in the same order every time."""
    return (*_pieces(), *_made_up())


@cache
def few() -> tuple[OriginalTrace, ...]:
    """Smaller pieces of the same recordings, several of each."""
    return tuple(
        OriginalTrace(f"{origin.name}, few events", json.dumps(cut(origin.document(), size)).encode(), origin.predicted)
        for origin in origins()
        for size in FEW
    )


@cache
def saved() -> tuple[OriginalTrace, ...]:
    """Return reports and baselines of some traces, as this package writes them."""
    saved_reports = []
    for origin in origins()[::8]:
        report = report_of(origin)
        saved_reports.append(OriginalTrace(f"report of {origin.name}", encode(report)))
        with suppress(UsageError):
            saved_reports.append(OriginalTrace(f"baseline of {origin.name}", baseline.to_json(baseline.of(report))))
    return tuple(saved_reports)


@cache
def trace_of(origin: OriginalTrace) -> Trace:
    """Return the trace, read."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "origin.json"
        path.write_bytes(origin.text)
        return replace(kineto.read(path, progress=False), source=origin.name)


@cache
def report_of(origin: OriginalTrace) -> Report:
    """Return the report to compare and judge."""
    return build([analyze_trace(trace_of(origin))], replayed=False)


def _pieces() -> Iterator[OriginalTrace]:
    for path in recordings():
        if path.stat().st_size <= _LARGEST_PACKED_BYTES or path.parent.name == "ddp":
            piece = cut(json.loads(gzip.decompress(path.read_bytes())))
            yield OriginalTrace(str(path.relative_to(TRACES)), json.dumps(piece).encode())


def _made_up() -> Iterator[OriginalTrace]:
    step = [
        Do("h2d", MS // 5, stream=13),
        Do("kernel", MS // 2),
        Do("pageable", MS // 9),
        Do("d2h", MS // 7),
        Do("sync"),
    ]
    program = record(repeated(step, 4))
    written = json.loads(_written(program))
    yield OriginalTrace("made up", json.dumps(written).encode())
    timed = {"host_ns": [MS + 1000 * number for number in range(12)], "device_ns": []}
    plain = written | {METADATA: {PLAIN_STEPS: {"before": timed, "after": timed}}}
    yield OriginalTrace("made up, with plain steps", json.dumps(plain).encode())
    with TemporaryDirectory() as folder:
        decode = Pass(["execute_context_0(0)_generation_7(7)"], graph=True, schedule=300)
        prefill = Pass(["execute_context_2(600)_generation_0(0)"], kernels=2, wait=3000)
        served = write_server(Path(folder) / "served.json", [decode, decode, prefill, decode], frames=Frames())
        yield OriginalTrace("made up, of a server", _written(load(served, cache=False, progress=False)))
    for change in ("pin", "side-stream"):
        after = predict(program, [change]).after
        assert after is not None
        yield OriginalTrace(f"predicted with {change}", _written(after), predicted=True)


def _written(trace: Trace) -> bytes:
    return b"".join(chrome_trace.blocks(trace, packed=False))


def cut(document: dict[str, Any], size: SizeLimits = SOME) -> dict[str, Any]:
    """Return a few ops of a few steps, with their launch calls and the events around these."""
    events: list[Event] = document["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and "cat" in event]
    marked = [span for span in spans if span["cat"] == "user_annotation" and span["name"].startswith("ProfilerStep#")]
    if len(marked) > size.steps:
        marked = sorted(marked, key=lambda item: float(item["ts"]))[1 : size.steps + 1]
    launch = {_correlation(span): span for span in spans if span["cat"] in _CALLS}
    kept = {id(event) for event in marked}
    moments: list[tuple[Any, float]] = []
    lanes: Counter[tuple[Any, ...]] = Counter()
    for member in sorted(spans, key=lambda span: float(span["ts"])):
        if member["cat"] not in _GPU:
            continue
        call = launch.get(_correlation(member))
        step = _around(marked, member if call is None else call)
        if marked and step is None:
            continue
        lane = (step, member["cat"], member["tid"], member["name"][:14])
        if lanes[lane] >= size.lane or lanes[step,] >= size.ops * (1 if marked else size.steps):
            continue
        lanes[lane] += 1
        lanes[step,] += 1
        kept.add(id(member))
        if call is not None:
            kept.add(id(call))
            moments.append((call["tid"], float(call["ts"])))
    correlations = {_correlation(span) for span in spans if id(span) in kept}
    others: Counter[str] = Counter()
    for member in spans:
        cat = member["cat"]
        ordering = cat in _CALLS and any(word in member["name"] for word in _ORDERING) and _in(marked, member)
        host = cat in ("cpu_op", "user_annotation", "python_function") and any(
            member["tid"] == tid and 0 <= at - float(member["ts"]) < float(member["dur"]) for tid, at in moments
        )
        sync = cat == "cuda_sync" and (_in(marked, member) or _correlation(member) in correlations)
        few = cat not in (*_GPU, *_CALLS, "cpu_op", "user_annotation", "python_function", "cuda_sync")
        if ordering or host or sync or few:
            others[cat] += 1
            if others[cat] <= (2 if few else size.host):
                kept.add(id(member))
    named = 0
    chosen = []
    for event in events:
        named += event.get("ph") == "M"
        instant = event.get("ph") == "i" and size.instants
        if id(event) in kept or instant or (event.get("ph") == "M" and named <= 4):
            chosen.append(event)
    return document | {"traceEvents": chosen}


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _around(marked: list[Event], event: Event) -> int | None:
    at = float(event["ts"])
    inside = (n for n, step in enumerate(marked) if 0 <= at - float(step["ts"]) < float(step["dur"]))
    return next(inside, None)


def _in(marked: list[Event], event: Event) -> bool:
    return not marked or _around(marked, event) is not None
