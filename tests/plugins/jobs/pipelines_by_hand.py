"""Times of the stages of a pipeline on gloo, from the raw files and without our code.

It takes the rules from the guide to ranks: which message is which follows from the ranks that ops state, in order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

Span = tuple[int, int]


class RawEvent(NamedTuple):
    """An event of a file, in nanoseconds."""

    start: int
    end: int
    name: str
    category: str
    args: dict[str, Any]


def events_of(path: Path) -> list[RawEvent]:
    file = json.loads(path.read_text(), parse_float=Decimal)

    def ns(microseconds: Decimal) -> int:
        return int(Decimal(microseconds) * 1000)

    base = int(file["baseTimeNanoseconds"])
    events = [
        RawEvent(
            base + ns(each["ts"]), base + ns(each["ts"]) + ns(each["dur"]), each["name"], each["cat"], each["args"]
        )
        for each in file["traceEvents"]
        if each["ph"] == "X" and each["cat"] in ("cpu_op", "user_annotation")
    ]
    return sorted(events, key=lambda event: event.start)


def merged(spans: Iterable[Span]) -> list[Span]:
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], end)
        elif end > start:
            result.append((start, end))
    return result


def inside(spans: Iterable[Span], begin: int, end: int) -> list[Span]:
    return [(max(start, begin), min(stop, end)) for start, stop in spans if start < end and stop > begin]


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in merged(spans))


def steps_of(events: Sequence[RawEvent]) -> dict[str, Span]:
    """Return begin and end of each step, which lasts until the next one begins."""
    marks = sorted((event.start, event.end, event.name) for event in events if event.name.startswith("ProfilerStep#"))
    ends = [*(start for start, _, _ in marks[1:]), marks[-1][1]]
    return {name: (start, end) for (start, _, name), end in zip(marks, ends, strict=True)}


def stages_by_hand(paths: Sequence[Path]) -> dict[str, list[tuple[int, int, int]]]:
    """Return the compute, waiting and other time of each rank in each of its steps. Clocks must be equal."""
    ranks = [events_of(path) for path in paths]
    waits = waits_by_hand(ranks)
    steps = [steps_of(events) for events in ranks]
    compute = [
        merged((op.start, op.end) for op in events if op.category == "cpu_op" and not op.name.startswith("c10d::"))
        for events in ranks
    ]
    result = {}
    for name in steps[0]:
        times = []
        for rank, spans in enumerate(compute):
            begin, end = steps[rank][name]
            busy = inside(spans, begin, end)
            either = length([*busy, *inside(waits[rank], begin, end)])
            times.append((length(busy), either - length(busy), end - begin - either))
        result[name] = times
    return result


def waits_by_hand(ranks: Sequence[Sequence[RawEvent]]) -> dict[int, list[Span]]:
    """Return when the sends and receives of each rank waited for their other sides."""
    sides: defaultdict[tuple[int, int, str], list[tuple[RawEvent, RawEvent]]] = defaultdict(list)
    for rank, events in enumerate(ranks):
        ops = [event for event in events if event.name in ("c10d::send", "c10d::recv_")]
        ranges = [event for event in events if event.name in ("gloo:send", "gloo:recv")]
        for op, ran in zip(ops, ranges, strict=True):
            peer = int(op.args["Concrete Inputs"][2])
            pair = (rank, peer) if op.name == "c10d::send" else (peer, rank)
            sides[*pair, ran.name].append((op, ran))
    waits: defaultdict[int, list[Span]] = defaultdict(list)
    for (source, target, name), sent in list(sides.items()):
        if name == "gloo:send":
            for (send, sending), (receive, receiving) in zip(sent, sides[source, target, "gloo:recv"], strict=True):
                if sending.end >= receive.start:
                    waits[source].append((sending.start, min(receive.start, sending.end)))
                waits[target].append((receiving.start, min(send.start, receiving.end)))
    return waits
