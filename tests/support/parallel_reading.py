"""Files read by several threads, held against the same read by one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import fields

from overlapscope.reading import files, kineto
from overlapscope.reading._events import Batch
from overlapscope.reading._stream import EventStream
from overlapscope.trace.model import Trace, TraceTable
from tests.support.helpers import various

RECORDINGS = various()
BASE_NS = 1_790_857_026_000_000_000


def assert_identical(first: Trace, other: Trace) -> None:
    for field in fields(Trace):
        a, b = getattr(first, field.name), getattr(other, field.name)
        if not isinstance(a, TraceTable):
            assert a == b, field.name
            continue
        for column in fields(a):
            x, y = getattr(a, column.name), getattr(b, column.name)
            if column.name == "names":
                assert x == y
            else:
                assert x.dtype == y.dtype
                assert np.array_equal(x, y), (field.name, column.name)


@contextmanager
def patched(where: Any, name: str, value: Any) -> Iterator[None]:
    """Yield a monkeypatch that ends within one example of hypothesis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, value)
        yield


class Both(NamedTuple):
    trace: Trace
    counted: int
    """Blocks that threads scanned before their turn."""


def read_both(path: Path, block: int, threads: int = 2) -> Both:
    """Return the Trace in a file, which is the same either way."""
    counted = 0
    take = EventStream._take

    def counting(self: EventStream, block: bytes, ahead: Any) -> Batch | None:
        nonlocal counted
        counted += ahead is not None and ahead.rest == self._rest and ahead.scanned.result() is not None
        return take(self, block, ahead)

    with patched(files, "BLOCK_BYTES", block), patched(EventStream, "_take", counting):
        alone = kineto.read(path, threads=1)
        assert not counted
        trace = kineto.read(path, threads=threads)
    assert_identical(trace, alone)
    return Both(trace, counted)


def complete(number: int, name: str = "gemm", cat: str = "kernel", **rest: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": number, **rest}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": 10.0 + 3 * number,
        "dur": 1.5,
        "args": args,
    }


def events_of_all_kinds(count: int) -> list[dict[str, Any]]:
    """Events whose names, categories and large streams are first met in every part of the file."""
    random_one = random.Random(count)
    kinds = ("kernel", "cuda_runtime", "cpu_op", "gpu_memcpy", "cuda_sync", "user_annotation", "python_function")
    events: list[dict[str, Any]] = []
    for number in range(count):
        stream = random_one.choice([7, -1, 20, 94_000_000_000_000 + random_one.randrange(12)])
        event = complete(
            number,
            name=f"name {random_one.randrange(1 + number // 2)}",
            cat=random_one.choice([*kinds, f"own {number // 9}"]),
            stream=stream,
            wait_on_stream=random_one.choice([stream, 94_000_000_000_500 + number % 5]),
            bytes=random_one.choice([12, "12", None]),
        )
        events.append(event)
        if number % 10 == 3:
            events.append({"ph": "f", "id": 2, "pid": 0, "tid": 7, "ts": 5.5, "cat": "fwdbwd", "name": "fwdbwd"})
    events.insert(count // 3, {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1.0, "s": "g"})
    events.append({"ph": "i", "name": "Record Window End", "ts": 10.0 + 4 * count, "s": "g"})
    return events


def dialect(events: list[dict[str, Any]], how: str) -> bytes:
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "distributedInfo": {"rank": 3, "world_size": 8}}
    whole = {**head, "traceEvents": events, "traceName": "t"}
    match how:
        case "one line":
            return json.dumps(whole, separators=(",", ":")).encode()
        case "indented":
            return json.dumps(whole, indent=2).encode()
        case "crlf":
            return json.dumps(whole, indent=2).replace("\n", "\r\n").encode()
        case "bare":
            return json.dumps(events, ensure_ascii=False).encode()
        case "footer":
            return json.dumps({"traceEvents": events, **head}).encode()
        case "epoch":
            return json.dumps(
                {"traceEvents": [{**event, "ts": 1_790_857_026_000_000.25 + event["ts"]} for event in events]}
            ).encode()
    raise AssertionError(how)


DIALECTS = ("one line", "indented", "crlf", "bare", "footer", "epoch")


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    return path
