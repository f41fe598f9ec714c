"""A single file again: its findings, and the smallest file with the same finding."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.fuzz import campaign
from tests.fuzz.mutators import FuzzCase, make
from tests.fuzz.oracle import Defect

LIMIT_S = 15.0
"""Time after which a file hangs here."""
SMALLER_S = 60.0
"""Time spent on making the file smaller."""


def again(seed: int, out: Path) -> int:
    """Judge a seed's file and say what is found; 0 where that is nothing, else 1. The file is written to `out`."""
    case = make(seed)
    out.mkdir(parents=True, exist_ok=True)
    path = out / case.name
    path.write_bytes(case.data)
    print(f"{path}: {len(case.data):,} bytes; {case.origin.name}, {', '.join(case.how) or 'unchanged'}")
    outcome = judged(case)
    for finding in outcome:
        print(f"{finding.kind}\n{finding.detail}")
    if not outcome:
        print("Nothing is found with it.")
        return 0
    smaller = smallest(case, outcome[0].kind)
    small = out / f"{seed}.small{case.suffix}"
    small.write_bytes(smaller.data)
    print(f"{small}: {len(smaller.data):,} bytes with the same finding")
    return 1


def judged(case: FuzzCase) -> list[Defect]:
    """Return the findings of a case, from a separate process, which may hang or die."""
    context = multiprocessing.get_context("fork")
    end, other = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(case, other), daemon=True)
    process.start()
    other.close()
    try:
        if not end.poll(LIMIT_S):
            return [Defect("hangs", f"longer than {LIMIT_S:.0f} s")]
        message: list[Defect] = end.recv()
    except EOFError:
        process.join()
        return [Defect(f"process died ({process.exitcode})", "")]
    finally:
        process.kill()
        process.join()
    return message


def _work(case: FuzzCase, end: Connection) -> None:
    with campaign.judging() as folder:
        end.send(campaign.judge(case, folder))


def smallest(case: FuzzCase, kind: str) -> FuzzCase:
    """Return the case with as much left out as the finding allows, in the time there is."""
    until = time.monotonic() + SMALLER_S

    def still(data: bytes) -> bool:
        return time.monotonic() < until and any(finding.kind == kind for finding in judged(replace(case, data=data)))

    data = case.data
    try:
        document = json.loads(data)
        events = document["traceEvents"]
        whole = all(isinstance(event, dict) for event in events) and still(json.dumps(document).encode())
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        return replace(case, data=bytes(_without(list(data), lambda kept: still(bytes(kept)))))
    top = [key for key in document if key != "traceEvents"]

    def text(events: list[Any], keys: list[str]) -> bytes:
        return json.dumps({key: document[key] for key in keys} | {"traceEvents": events}).encode()

    events = _without(events, lambda kept: still(text(kept, top)))
    top = _without(top, lambda kept: still(text(events, kept)))
    return replace(case, data=text(events, top))


def _without(items: list[Any], still: Callable[[list[Any]], bool]) -> list[Any]:
    """Return the items after removing as many as possible, in halves, quarters, and so on."""
    for size in _halves(len(items)):
        at = 0
        while at < len(items):
            kept = items[:at] + items[at + size :]
            if still(kept):
                items = kept
            else:
                at += size
    return items


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size = (size + 1) // 2
        yield size
