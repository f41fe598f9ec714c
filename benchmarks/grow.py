"""Grows a real trace to any size: `python benchmarks/grow.py SOURCE TARGET --mb 250`.

The source's events are written again and again, each copy after the one before, with its times, correlations,
`External id`s, flow ids and step numbers moved on, in the layout in which Kineto writes them. No copy shares an
id with another, so every flow and every launch still has one partner.

Traces in the wild also hold Python frames and memory events, which this source was recorded without: 36% of the
events of a 260 MB file were `python_function`, 27% `cpu_op`, 12% instants, 10% flows and 5% GPU ops. Frames and
`[memory]` instants are therefore made up to reach these shares of the source's own CPU ops: nested frames around
the outermost operators of the main thread, pairs of an allocation and a free inside operators.

The result is the same for the same source and size. It is written piece by piece, and compressed if
its name ends in `.gz`.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

PYTHON_SHARE, CPU_OP_SHARE, INSTANT_SHARE = 0.36, 0.27, 0.12

FRAMES = (
    "train.py(87): train_step",
    "torch/nn/modules/module.py(1775): _wrapped_call_impl",
    "nn.Module: GPT2LMHeadModel_0",
    "transformers/models/gpt2/modeling_gpt2.py(1050): forward",
    "torch/nn/modules/module.py(1783): _call_impl",
    "nn.Module: GPT2Block_{k}",
    "transformers/models/gpt2/modeling_gpt2.py(412): forward",
    "transformers/pytorch_utils.py(104): forward",
    "nn.Module: Conv1D_{k}",
    "torch/nn/functional.py(2298): linear",
)

NUMBER = re.compile(
    r'"(ts|correlation|External id|id|Ev Idx|Sequence number|Python id|Python parent id)": (\d+)|(ProfilerStep#)(\d+)'
)


class Event(msgspec.Struct, frozen=True):
    """One event's text, with `%d` for each number that moves from copy to copy."""

    template: str
    start_ns: int
    values: tuple[int, ...]
    kinds: tuple[str, ...]


def parse_event(text: str) -> Event:
    """Return the event that `text` holds, as Kineto wrote it."""
    values: list[int] = []
    kinds: list[str] = []

    def replace(match: re.Match[str]) -> str:
        key, number, prefix, step = match.groups()
        values.append(int(number or step))
        kinds.append(key or "step")
        return f'"{key}": %d' if key else f"{prefix}%d"

    template = NUMBER.sub(replace, text.replace("%", "%%"))
    start = re.search(r'"ts": (\d+)\.(\d{3})', text)
    start_ns = int(start[1] + start[2]) if start else 0
    return Event(template, start_ns, tuple(values), tuple(kinds))


def split(text: str) -> tuple[str, list[str], str]:
    """Return a trace's text as what comes before its events, the events, and what follows them."""
    head, opening, rest = text.partition('"traceEvents": [')
    body, closing, tail = rest.rpartition("\n  ]")
    events = body.strip("\n").removeprefix("  {\n").removesuffix("\n  }").split("\n  },\n  {\n")
    return head + opening + "\n", ["  {\n" + event + "\n  }" for event in events], closing + tail


def microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def frame(thread: tuple[int, int], name: str, start_ns: int, end_ns: int, parent: int | None, index: int) -> str:
    pid, tid = thread
    return (
        f'  {{\n    "ph": "X", "cat": "python_function", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {microseconds(start_ns)}, "dur": {microseconds(end_ns - start_ns)},\n    "args": {{\n'
        f'      "Python parent id": {"null" if parent is None else parent}, "Python id": {index}, "Ev Idx": {index}\n'
        "    }\n  }"
    )


def instant(thread: tuple[int, int], time_ns: int, size: int, total: int, index: int) -> str:
    pid, tid = thread
    return (
        f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
        f'    "pid": {pid}, "tid": {tid},\n    "ts": {microseconds(time_ns)},\n    "args": {{\n'
        f'      "Total Reserved": 2147483648, "Total Allocated": {total}, "Bytes": {size}, "Device Id": 0, '
        f'"Device Type": 1, "Addr": {139_000_000_000_000 + 512 * (index // 2)}, "Ev Idx": {index}\n    }}\n  }}'
    )


def times_ns(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end; the digits of `ts` are all in the double here, as Kineto counts from a base."""
    start = round(event["ts"] * 1000)
    return start, start + round(event.get("dur", 0) * 1000)


def frames(ops: list[dict[str, Any]], total: int) -> Iterator[str]:
    """`total` frames in nests around the outermost of `ops`, which are one thread's, below two that cover all."""
    outermost: list[tuple[int, int]] = []
    for start, end in sorted(map(times_ns, ops), key=lambda times: (times[0], -times[1])):
        if not outermost or start >= outermost[-1][1]:
            outermost.append((start, end))
    thread = ops[0]["pid"], ops[0]["tid"]
    first, last = outermost[0][0] - 10_000, outermost[-1][1] + 10_000
    yield frame(thread, "train.py(141): <module>", first, last, None, 1)
    yield frame(thread, "train.py(118): main", first, last, 1, 2)
    index = 2
    for i, (start, end) in enumerate(outermost):
        depth = (i + 1) * (total - 2) // len(outermost) - i * (total - 2) // len(outermost)
        before = start - (outermost[i - 1][1] if i else first)
        after = (outermost[i + 1][0] if i + 1 < len(outermost) else last) - end
        for level in range(depth):
            index += 1
            margin = (depth - level) / (2 * depth + 2)
            yield frame(
                thread,
                FRAMES[level % len(FRAMES)].format(k=i % 48),
                start - int(before * margin),
                end + int(after * margin),
                index - 1 if level else 2,
                index,
            )


def instants(ops: list[dict[str, Any]], total: int, first_index: int) -> Iterator[str]:
    """`total` memory events, an allocation and a free at a time, spread evenly over `ops`."""
    pairs = total // 2
    for i in range(pairs):
        op = ops[i * len(ops) // pairs]
        start, end = times_ns(op)
        size, allocated = 512 * (1 + i % 4096), 1_000_000_000 + 512 * (i % 997)
        third = (end - start) // 3
        index = first_index + 2 * i
        yield instant((op["pid"], op["tid"]), start + third, size, allocated + size, index)
        yield instant((op["pid"], op["tid"]), end - third, -size, allocated, index + 1)


def is_whole(event: dict[str, Any], launched: set[int]) -> bool:
    """Return false for ops launched before the source's recording, which cannot occur inside a copy."""
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        return event["args"]["correlation"] in launched
    return event.get("cat") != "ac2g" or event["id"] in launched


class Seed(msgspec.Struct, frozen=True):
    """A trace, taken apart so that it can be written many times."""

    head: str
    events: list[Event]
    once: list[str]
    """Metadata and the profiler's own marks, which a trace holds once."""
    tail: str
    shift: dict[str, int]
    """Distance of each kind of number from one copy to the next."""


def plant(text: str) -> Seed:
    """Take a trace apart and add the frames and memory events that it lacks."""
    head, texts, tail = split(text)
    decode = msgspec.json.Decoder()
    parsed = [decode.decode(text) for text in texts]
    ops = [event for event in parsed if event.get("cat") == "cpu_op"]
    main = next(event["tid"] for event in parsed if event["name"].startswith("ProfilerStep#"))
    share = len(ops) / CPU_OP_SHARE
    have = {cat: sum(event.get("cat") == cat for event in parsed) for cat in ("python_function", "cpu_instant_event")}
    python_frames = int(PYTHON_SHARE * share) - have["python_function"]
    memory_events = int(INSTANT_SHARE * share) - have["cpu_instant_event"]

    launched = {event["args"]["correlation"] for event in parsed if event.get("cat") in ("cuda_runtime", "cuda_driver")}
    keep = [is_whole(event, launched) for event in parsed]
    texts = [text for text, kept in zip(texts, keep, strict=True) if kept]
    parsed = [event for event, kept in zip(parsed, keep, strict=True) if kept]
    once = [text for text, event in zip(texts, parsed, strict=True) if event.get("cat") in (None, "Trace")]
    repeated = [text for text, event in zip(texts, parsed, strict=True) if event.get("cat") not in (None, "Trace")]
    repeated += frames([op for op in ops if op["tid"] == main], python_frames)
    repeated += instants(ops, memory_events, python_frames + 1)
    events = [parse_event(item) for item in repeated]

    largest: dict[str, int] = {}
    for event in events:
        for kind, value in zip(event.kinds, event.values, strict=True):
            largest[kind] = max(largest.get(kind, 0), value)
    ids = 1 + max(largest.get(kind, 0) for kind in ("correlation", "External id", "id"))
    shift = dict.fromkeys(largest, ids)
    times = [times_ns(event) for event in parsed if event.get("cat") not in (None, "Trace")]
    shift["ts"] = (max(end for _, end in times) - min(start for start, _ in times)) // 1000 + 100
    steps = {value for event in events for kind, value in zip(event.kinds, event.values, strict=True) if kind == "step"}
    shift["step"] = len(steps)
    for kind in ("Ev Idx", "Sequence number", "Python id"):
        shift[kind] = largest.get(kind, 0) + 1
    shift["Python parent id"] = shift["Python id"]
    return Seed(head, events, once, tail, shift)


def copies(events: list[Event], shift: dict[str, int]) -> Iterator[str]:
    """Yield the text of `events`, copy after copy, without end. An id of 0 means none and stays."""
    template = ",\n".join(event.template for event in events)
    values = np.array([value for event in events for value in event.values], dtype=np.int64)
    step = np.array([shift[kind] for event in events for kind in event.kinds], dtype=np.int64)
    kinds = np.array([kind not in ("ts", "step") for event in events for kind in event.kinds])
    step[kinds & (values == 0)] = 0
    while True:
        yield template % tuple(values.tolist())
        values += step


def earliest(events: list[Event], size: int) -> list[Event]:
    """Return the events with the earliest starts that fill `size` bytes, in their order in the file."""
    order = sorted(range(len(events)), key=lambda i: events[i].start_ns)
    lengths = np.array([len(events[i].template) + 8 * len(events[i].values) for i in order])
    count = int(np.searchsorted(np.cumsum(lengths), size))
    return [events[i] for i in sorted(order[:count])]


def moved(text: str, by_us: int) -> str:
    """Return a mark of the profiler's, moved to where the grown trace ends; its own span becomes longer by as much."""
    if '"cat": "Trace"' in text:
        return re.sub(r'"dur": (\d+)', lambda match: f'"dur": {int(match[1]) + by_us}', text)
    if '"Record Window End"' in text:
        return re.sub(r'"ts": (\d+)', lambda match: f'"ts": {int(match[1]) + by_us}', text)
    return text


def write(seed: Seed, target: TextIO, size: int) -> None:
    """Write about `size` bytes: whole copies as far as they fit, then the beginning of another."""
    written = target.write(seed.head) + len(seed.tail) + sum(len(item) + 2 for item in seed.once)
    number = 0
    for number, text in enumerate(copies(seed.events, seed.shift)):  # noqa: B007
        if written + len(text) > size:
            break
        written += target.write(text) + target.write(",\n")
    rest = earliest(seed.events, size - written)
    if rest:
        values = {kind: number * by for kind, by in seed.shift.items()}
        last = [
            Event(
                event.template,
                event.start_ns,
                tuple(
                    value + (values[kind] if value or kind in ("ts", "step") else 0)
                    for kind, value in zip(event.kinds, event.values, strict=True)
                ),
                event.kinds,
            )
            for event in rest
        ]
        target.write(next(copies(last, seed.shift)) + ",\n")
    target.write(",\n".join(moved(item, number * seed.shift["ts"]) for item in seed.once) + seed.tail)


def grow(source: Path, target: Path, megabytes: float) -> None:
    """Write `target`, of about `megabytes` MB (10^6 bytes, before any compression), from the trace in `source`."""
    opened: Any = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt", encoding="utf-8") as file:
        seed = plant(file.read())
    opened = gzip.open if target.suffix == ".gz" else open
    with opened(target, "wt", encoding="utf-8") as file:
        write(seed, file, int(megabytes * 1e6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mb", type=float, required=True, help="size in MB (10^6 bytes)")
    options = parser.parse_args()
    grow(options.source, options.target, options.mb)


if __name__ == "__main__":
    main()
