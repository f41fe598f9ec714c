"""Mutations of a trace: of its numbers, structure, bytes, packing, order, and contents.

Each mutator takes the seed's own source of randomness and changes the document in place, or makes bytes of bytes. Text
that a JSON writer would not write goes into the document as a marker, which `text` replaces.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from msgspec import Struct, field

from overlapscope.base.marks import METADATA, PLAIN_STEPS
from tests.fuzz import other_files
from tests.fuzz.corpus import Event, OriginalTrace, few, origins, saved

Document = dict[str, Any]

LIMIT_BYTES = 3 << 20
"""Maximum unpacked size for the reader; bombs are larger."""

COPIES_LOST = "copies lost"
"""Value of `FuzzCase.tells` for a file whose copies were removed or made unreadable while their launches stayed."""
PREDICTED = "predicted"
"""Value of `FuzzCase.tells` for a predicted timeline."""
SAVED = "saved"
"""Value of `FuzzCase.tells` for a report or a baseline."""
OTHER = "other source"
"""Value of `FuzzCase.tells` for a file that is not a trace of torch.profiler; its suffix says what it is."""
SETTINGS = "settings"
"""Value of `FuzzCase.tells` for settings that are not a file."""
BOMB = "bomb"
"""In `FuzzCase.how`: more than `LIMIT_BYTES` when unpacked."""

NUMBERS = (
    *("0", "-0", "-0.0", "1", "-1", "0.1", "1e-400", "5e-324", "1e308", "-1e308", "1e400", "-1e400", "1.5e3", "1E5"),
    *("1e18", "1e19", "1e1000000", "1e99999999", "-1e99999999", "1e-99999999", "1e99999999999999999999"),
    *("2147483647", "2147483648", "-2147483649", "4294967296", "9007199254740993", "4611686018427387904"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "1" + "0" * 400, "9" * 5000, "0." + "0" * 500 + "1"),
    *("NaN", "Infinity", "-Infinity", "nan", "0x10", "1_000", "+1", "01", ".5", "5.", "1e", "--1", "1e+"),
    *("null", "true", "false", '""', '"7"', '"1e9"', '"NaN"', '"inf"', '"-3.5"', '"1e99999999"', '"٣"', '"² "'),
    *("[]", "{}", "[1]", '{"a": 1}', "[[[]]]", '"\\ud800"', '"\\u0000"', '"a\\nb"'),
)
"""Replacements of a number, as they are written."""

ESCAPES = (
    *(r"\n", r"\/", r"\\", r"\"", r"\u00e9", r"\u0000", r"\uD83D\uDE00", r"\ud800", r"\uDFFF", r"\uD83D\u0041"),
    *(r"\v", r"\x41", r"\u12g4", r"\U0041", r"\'"),
)
VALUES = (
    *(f'"{escape}"' for escape in (*ESCAPES, "\x1f", "\x7f", "\u00e9")),
    *("tru", "nulll", "[1,]", "[,1]", '{"a" 1}', '{"a": 1,}', "{1: 2}", "[1 2]", "{", '"', "[]]", "/**/1"),
)
"""Values as they are written, valid and invalid."""

NAMES = (
    *("", " ", "\n", "a\rb", "\t", "\x1b[31mred\x1b[0m", "\x00", "\x7f", "\u202eabc", "\ud800", "[red]x[/red]", "[/]"),
    *(
        "<script>alert(1)</script>",
        "'\"><img src=x>",
        "a|b|c",
        "`code`",
        "# h",
        "%s %d %n",
        "{0}{x}",
        "\\",
        "../../etc",
    ),
    *("x" * 3000, "ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#" + "9" * 60, "ProfilerStep#٣", "ProfilerStep#²"),
    *("ProfilerStep#0", "ProfilerStep#1.5", "Iteration Start: x", "Record Window End", "PyTorch Profiler (0)"),
    *("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclKernel_SendRecv", "void k<>()"),
    *(
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy",
    ),
    *("Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)", "Memset (Device)", "Memcpy HtoD ( -> )"),
    *("cudaMemcpyAsync", "cudaLaunchKernel", "cudaGraphLaunch", "cudaDeviceSynchronize", "cudaStreamSynchronize"),
    *("cudaStreamWaitEvent", "cudaEventRecord", "cudaEventSynchronize", "cudaMalloc", "cudaFree", "cudaHostAlloc"),
    *("hipLaunchKernel", "cuLaunchKernelEx", "aten::copy_", "aten::to", "aten::pin_memory", "DataLoader.__next__"),
    *("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#SGD.step", "train.py(1): f"),
    *("Stream Wait Event", "Stream Sync", "Context Sync", "overlapscope::event_record#1@0.7"),
    *(
        "overlapscope::event_wait#1@0.7",
        "overlapscope::event_wait#99999999999999999999@0.-7",
        "Activity Buffer Request",
    ),
)
CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation", "overhead"),
    *("gpu_user_annotation", "python_function", "cuda_sync", "ac2g", "Trace", "fwdbwd", "cpu_instant_event", "", "x"),
)
PHASES = ("X", "B", "E", "b", "e", "n", "i", "I", "C", "M", "s", "t", "f", "P", "", "XX", "\u0000")
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "bp", "s")
ARGUMENTS = (
    *("device", "stream", "correlation", "bytes", "context", "External id", "Ev Idx", "Python id", "Python parent id"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id", "memory bandwidth (GB/s)"),
    *("Collective name", "Group size", "Process Group Name", "Process Group Ranks", "In msg nelems", "Out msg nelems"),
    *("dtype", "Seq", "Input Dims", "Input type", "Concrete Inputs", "External id", "graph id", "cbid", "name"),
)
TOP = (
    *("schemaVersion", "baseTimeNanoseconds", "deviceProperties", "distributedInfo", "displayTimeUnit", "traceName"),
    *("trace_id", "with_stack", "record_shapes", "profile_memory", "cuda_runtime_version", METADATA),
)


class FuzzCase(Struct):
    """A mutated file, and how it came about."""

    seed: int
    origin: OriginalTrace
    data: bytes
    suffix: str = ".json"
    how: list[str] = field(default_factory=list)
    tells: set[str] = field(default_factory=set)
    """Facts about the file, whatever else was done to it: `COPIES_LOST`, `PREDICTED`, `SAVED`, `OTHER`, `SETTINGS`."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.seed}{self.suffix}"

    @property
    def kind(self) -> str:
        """Name under which the file is counted."""
        if OTHER in self.tells:
            return self.suffix[1:]
        return next(iter(self.tells), "packed trace" if self.how[-1:] in (["packed"], [BOMB]) else "trace")


# -- from a document to text

_RAW, _TWIN = "@raw:", "@twin"
_MARKED = re.compile(rb'"@raw:((?:[^"\\]|\\.)*)"')
_TWINS = re.compile(rb'@twin\d+"\s*:')


def raw(literal: str) -> str:
    """Stands for something that is to be written as it is."""
    return _RAW + literal


def text(document: Any, **style: Any) -> bytes:
    """Return the document as JSON, markers resolved."""
    data = json.dumps(document, **style).encode("utf-8", "surrogatepass")
    if b"@raw:" in data:
        data = _MARKED.sub(lambda match: json.loads(b'"' + match[1] + b'"').encode("utf-8", "surrogatepass"), data)
    return _TWINS.sub(b'":', data) if b"@twin" in data else data


# -- choices


def _number(rng: random.Random) -> Any:
    return raw(rng.choice(NUMBERS))


def _value(rng: random.Random) -> Any:
    """Anything at all."""
    kind = rng.randrange(6)
    if kind < 3:
        return _number(rng)
    if kind == 3:
        return rng.choice(NAMES)
    if kind == 4:
        return rng.choice(([], {}, [1, "a", None], {"a": {"b": []}}, True, None, -5, 2.5, [[0, 1], [2]], "[0, 1]"))
    return rng.choice((CATEGORIES, PHASES, KEYS))[0]


def _shifted(rng: random.Random, value: Any) -> Any:
    """Return a number near the old one, or far from it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _number(rng)
    return rng.choice(
        (-value, value + 1, value - 1, value * 2, value / 3, int(value), float(value), value + 1e6, value - 1e6)
        + (value + 0.0005, str(value), value * 1e6, 0, rng.randrange(100), rng.randrange(1 << 62), rng.random())
    )


def _events(document: Document) -> list[Event]:
    """Return the events that are still objects."""
    events = document.get("traceEvents")
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def _some(rng: random.Random, events: list[Any]) -> list[Any]:
    """One of them, several, or all."""
    if not events:
        return []
    how = rng.randrange(4)
    if how < 2:
        return [rng.choice(events)]
    return rng.sample(events, rng.randint(1, len(events))) if how == 2 else events


def _of(document: Document, *categories: str) -> list[Event]:
    return [event for event in _events(document) if event.get("cat") in categories]


def _leave_out(document: Document, events: list[Event]) -> None:
    gone = {id(event) for event in events}
    if gone:
        document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else event.setdefault("no args", {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


# -- numbers


def numbers_of_events(rng: random.Random, document: Document) -> None:
    """Replace the same number field of some events."""
    events = _events(document)
    key = rng.choice(("ts", "dur", "ts", "dur", "pid", "tid", "id", "device", "stream", "correlation", "bytes", "any"))
    near = rng.random() < 0.4
    for event in _some(rng, events):
        holder = event if key in event else _args(event)
        name = key if key != "any" else rng.choice(list(holder) or ["x"])
        if name in holder or rng.random() < 0.1:
            holder[name] = _shifted(rng, holder.get(name)) if near else _number(rng)


def fine_times(rng: random.Random, document: Document) -> None:
    """Write the times of some events with other digits, as other writers would."""
    key, digits, style = rng.choice(("ts", "dur")), rng.randrange(8), rng.choice("ffe")
    for event in _some(rng, _events(document)):
        if _is_number(event.get(key)):
            event[key] = raw(f"{event[key] + rng.random() * 10 ** rng.choice((-4, -2, 1)):.{digits}{style}}")


def unread(rng: random.Random, document: Document) -> None:
    """Add fields and arguments that nothing reads, with valid and invalid values."""
    key = rng.choice(("x", "id", "cname", "External id", "kernel"))
    for event in _some(rng, _events(document)):
        literal = rng.choice((*NUMBERS, *VALUES))
        rng.choice((event, _args(event)))[key] = raw(literal if rng.random() < 0.7 else f'[1, {{"a": [{literal}]}}, 2]')


def number_for_all(rng: random.Random, document: Document) -> None:
    """Set a field of all events of a category to the same number."""
    key, value = rng.choice((*KEYS[3:7], *ARGUMENTS)), _number(rng)
    for event in _of(document, rng.choice(CATEGORIES[:8])):
        holder = event if key in KEYS else _args(event)
        holder[key] = value


def numbers_of_metadata(rng: random.Random, document: Document) -> None:
    """Something outside the events, at any depth."""
    slots = [(document, key) for key in document if key != "traceEvents"]
    slots += [slot for holder, key in list(slots) for slot in _slots(holder[key])]
    for _ in range(rng.randint(1, 3)):
        if slots:
            holder, key = rng.choice(slots)
            holder[key] = rng.choice((_number, _value))(rng)


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside a value: what holds it, and under which key or index."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield value, key
        yield from _slots(inner)


def own_metadata(rng: random.Random, document: Document) -> None:
    """Change the recorder's metadata for the reader."""
    lengths = [event["dur"] for event in _of(document, "user_annotation") if _is_number(event.get("dur"))]
    about = abs(rng.choice(lengths or [1000.0])) * rng.choice((0.3, 0.7, 0.9, 1.0, 1.2))
    odd = _number(rng) if rng.random() < 0.3 else int(about * 1000)
    some = [rng.choice((int(about * 1000), int(about * 1010), odd)) for _ in range(rng.choice((0, 1, 3, 12, 12)))]
    timed = {"host_ns": some, "device_ns": rng.choice(([], some, _value(rng)))}
    document[METADATA] = rng.choice(
        (
            _value(rng),
            {"warm_up_steps": _number(rng)},
            {"warm_up_steps": rng.randrange(6)},
            *[{PLAIN_STEPS: {"before": timed, "after": timed}}] * 4,
            {PLAIN_STEPS: {"before": timed}, "torch": _value(rng)},
            {PLAIN_STEPS: _value(rng), "warm_up_steps": 1},
            {"prediction": _value(rng)},
        )
    )


def job_metadata(rng: random.Random, document: Document) -> None:
    """Change the metadata of a distributed job's traces."""
    document["distributedInfo"] = rng.choice(
        (
            _value(rng),
            {"rank": rng.randrange(4), "world_size": 4, "backend": "nccl"},
            {"rank": _number(rng), "world_size": _number(rng)},
            {"rank": 1, "pg_config": _value(rng), "nccl_version": _value(rng)},
        )
    )


# -- structure


def drop_keys(rng: random.Random, document: Document) -> None:
    """Remove a field from some events."""
    key = rng.choice((*KEYS, *ARGUMENTS[:4]))
    for event in _some(rng, _events(document)):
        (event if key in KEYS else _args(event)).pop(key, None)


def twin_keys(rng: random.Random, document: Document) -> None:
    """Write a field twice, which JSON allows."""
    key = rng.choice((*KEYS, *ARGUMENTS[:4]))
    for event in _some(rng, _events(document)):
        holder = event if key in KEYS else _args(event)
        holder[f"{key}{_TWIN}1"] = holder.get(key) if rng.random() < 0.3 else _value(rng)


def swap_values(rng: random.Random, document: Document) -> None:
    """Two fields of an event, or the same field of two events."""
    events = _events(document)
    if not events:
        return
    for _ in range(rng.randint(1, 4)):
        event, key = rng.choice(events), rng.choice(KEYS)
        other, second = (event, rng.choice(KEYS)) if rng.random() < 0.5 else (rng.choice(events), key)
        event[key], other[second] = other.get(second), event.get(key)


def wrong_types(rng: random.Random, document: Document) -> None:
    """Replace fields by values of any type."""
    key = rng.choice((*KEYS, *ARGUMENTS))
    for event in _some(rng, _events(document)):
        (event if key in KEYS else _args(event))[key] = _value(rng)


def drop_events(rng: random.Random, document: Document) -> None:
    """Remove some events."""
    events = document.get("traceEvents")
    if isinstance(events, list):
        share = rng.choice((0.02, 0.1, 0.5, 0.9, 1.0))
        document["traceEvents"] = [event for event in events if rng.random() >= share]


def drop_category(rng: random.Random, document: Document) -> None:
    """Remove all events of a kind."""
    _leave_out(document, _of(document, rng.choice(CATEGORIES[:11])))


def double_events(rng: random.Random, document: Document) -> None:
    """Repeat some events."""
    events = document.get("traceEvents")
    if isinstance(events, list) and events:
        for _ in range(rng.choice((1, 5, 50))):
            events.insert(rng.randrange(len(events) + 1), rng.choice(events))


def no_events(rng: random.Random, document: Document) -> None:
    """Between the events stands something else."""
    events = document.get("traceEvents")
    if not isinstance(events, list):
        return
    strange = rng.choice((1, "x", None, [], {}, [[1]], True, [{"ph": "X"}], {"a": 1}, "@deep"))
    times = rng.choice((1, 3, 200 if strange != "@deep" else 5))
    for _ in range(times):
        written = raw(_deep(rng)) if strange == "@deep" else strange
        events.insert(rng.randrange(len(events) + 1), written)


def _deep(rng: random.Random) -> str:
    depth = rng.choice((10, 100, 1000, 5000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"args":', "}]")))
    return opening * depth + "1" + closing * (depth if rng.random() < 0.8 else depth - 1)


def nested(rng: random.Random, document: Document) -> None:
    """Args within args, or very deep ones."""
    for event in _some(rng, _events(document)):
        event["args"] = rng.choice(({"args": event.get("args")}, [event.get("args")], raw(_deep(rng))))


def other_phase(rng: random.Random, document: Document) -> None:
    """Other kinds of events."""
    phase = rng.choice(PHASES)
    for event in _some(rng, _events(document)):
        event["ph"] = phase


def other_category(rng: random.Random, document: Document) -> None:
    """Move events of a category to another."""
    to = rng.choice(CATEGORIES)
    for event in _some(rng, _of(document, rng.choice(CATEGORIES[:11]))):
        event["cat"] = to


def other_names(rng: random.Random, document: Document) -> None:
    """Other names, hostile ones among them."""
    name = rng.choice(NAMES)
    categories = rng.choice((CATEGORIES, CATEGORIES[:3], CATEGORIES[3:5], ("cpu_op",), ("user_annotation",)))
    for event in _some(rng, _of(document, *categories)):
        event["name"] = name if rng.random() < 0.7 else rng.choice(NAMES)


def other_texts(rng: random.Random, document: Document) -> None:
    """Texts in the metadata, which people read: the GPU's name, the trace's."""
    document["deviceProperties"] = [{"id": number, "name": rng.choice(NAMES)} for number in range(rng.randint(0, 3))]
    for key in rng.sample(TOP, 3):
        document.setdefault(key, rng.choice(NAMES))


def other_top(rng: random.Random, document: Document) -> None:
    """Something else than an object with a list of events."""
    events = _events(document)
    how = rng.randrange(7)
    if how == 0:
        document["traceEvents"] = {str(number): event for number, event in enumerate(events)}
    elif how == 1:
        document["traceEvents"] = _value(rng)
    elif how == 2:
        document["a"] = {"traceEvents": events[: len(events) // 2]}
    elif how == 3:
        document[f"traceEvents{_TWIN}1"] = rng.choice((events[:5], [], None, 5))
    elif how == 4:
        document[rng.choice(TOP)] = raw(_deep(rng))
    elif how == 5:
        document[rng.choice(("TraceEvents", "traceEvents ", "events"))] = document.pop("traceEvents", [])
    else:
        moved = document.pop(rng.choice(TOP), None)
        document["x"] = moved


# -- order


def shuffled(rng: random.Random, document: Document) -> None:
    """Events in any order."""
    events = document.get("traceEvents")
    if isinstance(events, list):
        how = rng.randrange(3)
        if how == 0:
            rng.shuffle(events)
        elif how == 1:
            events.reverse()
        else:
            events.sort(key=lambda item: str(item.get("ts")) if isinstance(item, dict) else "")


def ties(rng: random.Random, document: Document) -> None:
    """Make times equal."""
    events = [event for event in _events(document) if _is_number(event.get("ts"))]
    if not events:
        return
    grain = rng.choice((1, 10, 1000, 100_000))
    same = rng.choice(events)["ts"]
    for event in _some(rng, events):
        event["ts"] = same if grain == 10 else event["ts"] // grain * grain
        if rng.random() < 0.3:
            event["dur"] = 0


# -- contents of the trace


_UNKNOWN_COPIES = ("", None, "Memcpy", "Memcpy ", "Memcpy <unknown> (Unknown -> Unknown)", "Copy", "\u0000")
"""Names of copies that leave the direction open."""


def lost_copies(rng: random.Random, document: Document) -> None:
    """Remove the copies, or their times."""
    how = rng.randrange(6)
    copies = _of(document, "gpu_memcpy")
    if how == 0:
        _leave_out(document, copies)
    for event in copies:
        if how == 1:
            event["dur"] = -abs(event["dur"])
        elif how == 2:
            event.pop("dur", None)
        elif how == 3:
            event["dur"] = rng.choice(("", "x", "1.5 ms"))
        elif how == 4:
            event["dur"] = rng.choice((None, [], {}, True))
        elif how == 5:
            event["ts"] = rng.choice((-event["ts"], raw("1e99999999"), raw("NaN"), "x"))


def unknown_copies(rng: random.Random, document: Document) -> None:
    """Make the direction of every copy unknown."""
    for event in _of(document, "gpu_memcpy"):
        name = rng.choice(_UNKNOWN_COPIES)
        event["name"] = name
        if name is None and rng.random() < 0.5:
            del event["name"]


def swallowing_lead_in(rng: random.Random, document: Document) -> None:
    """Let an op without a recorded launch run near the end, so that nearly everything may be lead-in."""
    ops = [
        event
        for event in _of(document, *CATEGORIES[:3])
        if _is_number(event.get("ts")) and _is_number(event.get("dur"))
    ]
    if not ops:
        return
    if rng.random() < 0.4:
        _leave_out(document, _of(document, "user_annotation"))
    ids = [correlation for op in ops if isinstance(correlation := _args(op).get("correlation"), int)]
    begin, end = min(op["ts"] for op in ops), max(op["ts"] + op["dur"] for op in ops)
    args = _args(rng.choice(ops)) | {"correlation": min(ids, default=1) - rng.choice((1, 1, 0, -1000))}
    at = begin + (end - begin) * rng.choice((0.5, 0.95, 0.99, 0.9999, 1))
    kernel = {"ph": "X", "cat": "kernel", "name": "orphan", "pid": 0, "tid": 7, "ts": at, "dur": 1, "args": args}
    document["traceEvents"].append(kernel)


def negative(rng: random.Random, document: Document) -> None:
    """Durations below zero."""
    for event in _some(rng, _of(document, *rng.choice(((*CATEGORIES[:3],), CATEGORIES)))):
        if _is_number(event.get("dur")):
            event["dur"] = -event["dur"]


def one_stream(rng: random.Random, document: Document) -> None:
    """All on one stream, thread, or device."""
    key, value = rng.choice((("stream", 7), ("stream", 0), ("device", 0), ("tid", 1), ("pid", 1), ("context", 1)))
    for event in _events(document):
        holder = event if key in KEYS else _args(event)
        if key in holder:
            holder[key] = value


def many_lanes(rng: random.Random, document: Document) -> None:
    """Each on a stream, device or thread of its own."""
    key = rng.choice(("stream", "device", "tid", "pid"))
    few = rng.choice((2, 3, 8, 256, 1 << 16, 1 << 31, 1 << 62))
    for event in _events(document):
        holder = event if key in KEYS else _args(event)
        if key in holder:
            holder[key] = rng.randrange(few)


def other_clock(rng: random.Random, document: Document) -> None:
    """Shift the GPU's clock or the host's, or let it run faster."""
    mine = _of(document, *rng.choice((CATEGORIES[:3], CATEGORIES[3:5], CATEGORIES[3:8], ("user_annotation",))))
    shift = rng.choice((-1e9, -5000, -900, -60, 60, 1500, 1e6, 1e12, -1e12))
    factor = rng.choice((1, 1, 1, 1.5, 0.001, 1000))
    for event in mine:
        if _is_number(event.get("ts")) and _is_number(event.get("dur")):
            event["ts"] += shift
            event["dur"] *= factor


def stretched(rng: random.Random, document: Document) -> None:
    """Ops that last much longer or shorter."""
    factor = rng.choice((0, 1e-6, 0.1, 3, 50, 1e5))
    for event in _some(rng, _of(document, *CATEGORIES[:3])):
        if _is_number(event.get("dur")):
            event["dur"] *= factor


def lost_launches(rng: random.Random, document: Document) -> None:
    """Remove launches."""
    _leave_out(document, _some(rng, _of(document, *CATEGORIES[3:5])))


def same_correlations(rng: random.Random, document: Document) -> None:
    """Correlation ids that several launches and ops share."""
    few = rng.choice((1, 2, 5))
    for event in _some(rng, _of(document, *CATEGORIES[:5], "cuda_sync")):
        _args(event)["correlation"] = rng.randrange(few)


def huge_copies(rng: random.Random, document: Document) -> None:
    """Copies of very many bytes, or none."""
    size = rng.choice((0, 1, 1 << 29, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -1, 1 << 63))
    for event in _some(rng, _of(document, *CATEGORIES[1:3])):
        _args(event)["bytes"] = size
        if rng.random() < 0.2:
            event["dur"] = 0.001


def far_away(rng: random.Random, document: Document) -> None:
    """One event a long time after the others."""
    for event in _some(rng, _of(document, *CATEGORIES[:8]))[:3]:
        if _is_number(event.get("ts")):
            event["ts"] += rng.choice((1e7, 1e12, 4e12, 9e15, -1e12))


def other_steps(rng: random.Random, document: Document) -> None:
    """Let steps overlap, skip or share numbers, or become many."""
    steps = [event for event in _of(document, "user_annotation") if str(event.get("name")).startswith("ProfilerStep#")]
    how = rng.randrange(4)
    for event in steps:
        if how == 0:
            event["name"] = f"ProfilerStep#{rng.choice((1, 2, 1 << 40, 0))}"
        elif how == 1 and _is_number(event.get("dur")):
            event["dur"] *= rng.choice((0, 0.1, 3, 20))
        elif how == 2:
            event["tid"] = rng.randrange(3)
        else:
            document["traceEvents"].append(event | {"name": f"ProfilerStep#{rng.randrange(30)}"})


def collectives(rng: random.Random, document: Document) -> None:
    """Kernels become collectives that say something of themselves."""
    for event in _some(rng, _of(document, "kernel")):
        event["name"] = rng.choice(NAMES[21:23])
        notes = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "0", "Seq": rng.randrange(5)}
        notes |= {"Process Group Ranks": "[0, 1]", "dtype": "Float", "In msg nelems": 10, "Out msg nelems": 10}
        if rng.random() < 0.3:
            notes[rng.choice(list(notes))] = _value(rng)
        _args(event).update(notes)


def graphs(rng: random.Random, document: Document) -> None:
    """Make one graph launch start many ops."""
    calls = _of(document, *CATEGORIES[3:5])
    if calls:
        call = rng.choice(calls)
        call["name"] = "cudaGraphLaunch"
        for event in _some(rng, _of(document, *CATEGORIES[:3])):
            _args(event)["correlation"] = _args(call).get("correlation")


def moved_in_time(rng: random.Random, document: Document) -> None:
    """All of it at another time."""
    by = rng.choice((-1e15, -4e12, 1e9, 9e15, 1e18))
    if rng.random() < 0.5:
        document["baseTimeNanoseconds"] = rng.choice((0, 1 << 61, -(1 << 61), (1 << 62) + 1, 1, -5))
    else:
        for event in _events(document):
            if _is_number(event.get("ts")):
                event["ts"] += by


def multiplied(rng: random.Random, document: Document) -> None:
    """Repeat the events at other times or on other lanes, so that work that is not linear shows."""
    events = [event for event in _events(document) if _is_number(event.get("ts")) and event.get("ph") == "X"]
    period, lane = rng.choice((0.0, 5.0, 4000.0)), rng.choice(("stream", "device", "tid", "", ""))
    identifiers = rng.choice((("correlation", "External id", "Ev Idx"), ()))
    times = rng.choice((10, 30, 100))
    # A report has each range on each device, so it grows with the square of these.
    for number in range(1, min(times, 30) if lane == "device" else times):
        for event in events:
            args = dict(_args(event))
            for key in (*identifiers, lane):
                if isinstance(args.get(key), int):
                    args[key] += number if key == lane else 100_000 * number
            moved = event | {"ts": event["ts"] + period * number, "args": args}
            if lane == "tid" and isinstance(event.get("tid"), int):
                moved["tid"] = event["tid"] + number
            document["traceEvents"].append(moved)


def crowded(rng: random.Random, document: Document) -> None:
    """Repeat an op or a call on lanes of its own, longer than all of them take to begin, so that all run at once."""
    spans = _of(document, rng.choice(("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op")))
    spans = [event for event in spans if _is_number(event.get("ts")) and _is_number(event.get("dur"))]
    if not spans:
        return
    event = rng.choice(spans)
    if rng.random() < 0.5:
        (collectives if event["cat"] == "kernel" else blocking)(rng, {"traceEvents": [event]})
    for number in range(1, _CROWD):
        args = dict(_args(event))
        for key in ("correlation", "External id", "Ev Idx", "stream"):
            if isinstance(args.get(key), int):
                args[key] += (1 if key == "stream" else 100_000) * number
        moved = event | {"ts": event["ts"] + number, "dur": 2.0 * _CROWD, "args": args}
        document["traceEvents"].append(moved | {"tid": number})


def blocking(rng: random.Random, document: Document) -> None:
    """Let calls wait for the GPU."""
    for event in _of(document, *CATEGORIES[3:5]):
        event["name"] = rng.choice(("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))


# -- bytes


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Flip some bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut_short(rng: random.Random, data: bytes) -> bytes:
    """Cut off the end or the beginning."""
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.85 else data[at:]


def hole(rng: random.Random, data: bytes) -> bytes:
    """Something in the middle is missing, or twice."""
    begin = rng.randrange(len(data) + 1)
    end = min(len(data), begin + rng.choice((1, 5, 100, 3000)))
    return data[:begin] + data[end:] if rng.random() < 0.6 else data[:end] + data[begin:]


_STRANGE = (
    *(b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x00", b"\x00" * 300, b"\xef\xbb\xbf", b"\\"),
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"1,",
        b"//x\n",
        b"\\ud800",
        b"\\u12",
        b"\r\n",
        b"\t",
        b"\x0b",
        b"\x85",
    ),
    *(b"}, {", b"]}", b'"traceEvents": [', b'], "traceEvents": [', b"NaN", b"'", b"\xe2\x80\xa8", b'{"ph": "X"},'),
    *(
        b" " * 3000,
        b"1," * 3000,
        b'"a",' * 1000,
        b"[" * 3000,
        b"{" * 1000,
        b'{"ph":' * 500,
        b"null," * 300,
        b"{}," * 30_000,
        b"[]," * 900,
        b"}," * 900,
    ),
)


def inserted(rng: random.Random, data: bytes) -> bytes:
    """Bytes that do not belong there."""
    for _ in range(rng.choice((1, 1, 2, 8))):
        # Cut at an event's boundary as often as anywhere else.
        places = (rng.randrange(len(data) + 1), 0, len(data), data.find(b"{", rng.randrange(len(data) + 1)))
        at = max(rng.choice(places), 0)
        data = data[:at] + rng.choice(_STRANGE) + data[at:]
    return data


_TEXTS = (re.compile(rb'"[^"\\]+"'), re.compile(rb'(?<=: )"[^"\\]+"'))
_INSERTED = (
    *(escape.encode() for escape in ESCAPES),
    *(b"\x1f", b"\x7f", b"\xc3\xa9", b"\xc3", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"),
)


def escaped(rng: random.Random, data: bytes) -> bytes:
    """Put escapes and other characters into some texts, allowed and not."""
    texts = list(rng.choice(_TEXTS).finditer(data))
    for text in sorted(rng.sample(texts, min(len(texts), rng.choice((1, 1, 3)))), key=lambda text: -text.start()):
        at = rng.randrange(text.start() + 1, text.end())
        data = data[:at] + rng.choice(_INSERTED) + data[at:]
    return data


def other_text(rng: random.Random, data: bytes) -> bytes:
    """Return the same text in another encoding or notation."""
    how = rng.randrange(6)
    if how == 0:
        return b"\xef\xbb\xbf" + data
    if how == 1:
        return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32-le", "utf-16-be")))
    if how == 2:
        return data.replace(b", ", b" ,\r\n\t ")
    if how == 3:
        return data.replace(b'"', b"'")
    if how == 4:
        begin = data.find(b"[")
        return data[begin : data.rfind(b"]") + rng.randrange(2)]
    return rng.choice((b"", b" ", b"\x00", b"[]", b"{}", b"null", b"[", b"-1e999", b'"traceEvents"', b"[1]" * 9))


# -- packing


def packed(rng: random.Random, case: FuzzCase) -> None:
    """Gzip and zstd, whole and broken, under any name."""
    case.suffix = rng.choice((".json", ".json.gz", ".json.gz", ".json.zst", ".trace", ".rank3.json.gz", ""))
    data = case.data
    how = rng.randrange(9)
    if how == 0:
        at = rng.randrange(len(data) + 1)
        case.data = _gzip(data[:at]) + _gzip(data[at:])
    elif how == 1:
        case.data = cut_short(rng, _gzip(data))
    elif how == 2:
        case.data = flipped(rng, _gzip(data))
    elif how == 3:
        case.data = _gzip(data) + rng.choice((b"\x00" * 100, b"garbage", b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"{}"))
    elif how == 4 and (pack := _zstd()) is not None:
        case.data = pack(data)
        if rng.random() < 0.5:
            case.data = rng.choice((cut_short, flipped, hole))(rng, case.data)
    elif how == 5:
        case.data = _gzip(_gzip(data))
    elif how == 6 and rng.random() < 0.03:
        case.how.append(BOMB)
        case.data = _bomb(rng, data)
    elif how == 7:
        case.data = rng.choice((b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00", b"\x80\x02", b"\x1f\x8b")) + data
    else:
        case.data = _gzip(data)


def _bomb(rng: random.Random, data: bytes) -> bytes:
    """Much more than the reader may unpack."""
    at = max(data.find(b"{", rng.randrange(len(data) + 1)), 0)
    filling = rng.choice(
        (b" ", b"\x00", b"1,", b"{},", b"null,", b'{"ph": "X"},', b'{"ph":"X","cat":"kernel","ts":1,"dur":1},', b"[")
    )
    return _gzip(data[:at] + filling * (LIMIT_BYTES // len(filling) + 1) + data[at:])


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


@cache
def _zstd() -> Callable[[bytes], bytes] | None:
    try:
        from backports import zstd
    except ImportError:
        return None
    pack: Callable[[bytes], bytes] = zstd.compress
    return pack


# -- a case

_OF_DOCUMENTS: tuple[tuple[int, Callable[[random.Random, Document], None]], ...] = (
    *((6, item) for item in (numbers_of_events, number_for_all)),
    *((4, item) for item in (fine_times, unread)),
    *((3, item) for item in (numbers_of_metadata, own_metadata, job_metadata)),
    *(
        (3, item)
        for item in (drop_keys, twin_keys, swap_values, wrong_types, drop_events, drop_category, double_events)
    ),
    *((2, item) for item in (swallowing_lead_in, unknown_copies)),
    *((2, item) for item in (no_events, nested, other_phase, other_category, other_names, other_texts, other_top)),
    *((3, item) for item in (shuffled, ties, negative, one_stream, many_lanes, other_clock, stretched, lost_launches)),
    *(
        (3, item)
        for item in (same_correlations, huge_copies, far_away, other_steps, collectives, graphs, moved_in_time)
    ),
)
OTHERS = (
    *((".sqlite", other_files.database_case), (".xplane.pb", other_files.plane_case)),
    *((".history", other_files.history_case), (".toml", other_files.settings_case)),
    *((".cached", other_files.cached_case), (".ascend.json", other_files.ascend_case)),
)
_OF_BYTES = (flipped, cut_short, hole, inserted, inserted, escaped, escaped, other_text)
_RARELY = 800
_CROWD = 2000
"""Number of ops that run at once."""
FEW = 0.9
"""Share of the files with few events."""


def make(seed: int) -> FuzzCase:
    """Return the file of a seed."""
    rng = random.Random(seed)
    if rng.random() < 0.04:
        return _saved_case(rng, seed)
    if rng.random() < 0.02:
        return _other_case(rng, seed)
    origin = rng.choice(few() if rng.random() < FEW else origins())
    document = origin.document()
    case = FuzzCase(seed, origin, b"")
    if origin.predicted and rng.random() < 0.5:
        # As it was written, except its packing.
        case.tells.add(PREDICTED)
    elif rng.random() < 0.08 and _of(document, "gpu_memcpy") and _copies_are_launched(document):
        case.tells.add(COPIES_LOST)
        _apply(rng, case, document, lost_copies if rng.random() < 0.7 else unknown_copies)
        if rng.random() < 0.5:
            _apply(rng, case, document, shuffled)
    else:
        functions, weights = [mutator for _, mutator in _OF_DOCUMENTS], [weight for weight, _ in _OF_DOCUMENTS]
        for choice in rng.choices(functions, weights, k=rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            _apply(rng, case, document, choice)
        if rng.randrange(_RARELY) == 0:
            _apply(rng, case, document, multiplied)
        if rng.randrange(2 * _RARELY) == 0:
            _apply(rng, case, document, crowded)
    case.data = text(document, indent=rng.choice((None, None, 2)), ensure_ascii=rng.random() < 0.7)
    if not case.tells:
        for one_of in rng.choices(_OF_BYTES, k=rng.choice((0, 0, 0, 1, 1, 2))):
            case.how.append(one_of.__name__)
            case.data = one_of(rng, case.data)
    if rng.random() < 0.2 and not case.tells:
        case.how.append("packed")
        packed(rng, case)
    return case


def _saved_case(rng: random.Random, seed: int) -> FuzzCase:
    """Return a report or a baseline, with something in it changed."""
    case = FuzzCase(seed, rng.choice(saved()), b"", tells={SAVED})
    document = case.origin.document()
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        slots = list(_slots(document))
        if not slots:
            break
        holder, key = rng.choice(slots)
        how = rng.randrange(5)
        case.how.append(f"{key}")
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder[key], list):
            holder[key] = holder[key] * rng.choice((0, 2, 3))
        else:
            holder[key] = _shifted(rng, holder[key]) if rng.random() < 0.5 else _value(rng)
    case.data = text(document)
    if rng.random() < 0.2:
        case.data = rng.choice(_OF_BYTES)(rng, case.data)
    return case


def _other_case(rng: random.Random, seed: int) -> FuzzCase:
    """Return a file of another source, or settings that are not a file."""
    if rng.random() < 0.1:
        how = rng.choice(other_files.SETTINGS_KINDS)
        return FuzzCase(seed, origins()[0], origins()[0].text, how=[how], tells={SETTINGS})
    suffix, new = rng.choice(OTHERS)
    origin, data, applied = new(rng)
    return FuzzCase(seed, origin, data, suffix, applied, {OTHER})


def _apply(
    rng: random.Random, case: FuzzCase, document: Document, mutator: Callable[[random.Random, Document], None]
) -> None:
    case.how.append(mutator.__name__)
    # An earlier mutator may have left something unexpected here.
    mutator(rng, document)


def _copies_are_launched(document: Document) -> bool:
    """Return whether a copy between host and device is the only op of a recorded call, which shows the loss."""
    called = {_args(event).get("correlation") for event in _of(document, *CATEGORIES[3:5])}
    called -= {_args(event).get("correlation") for event in _of(document, "kernel", "gpu_memset")}
    of_host = (event for event in _of(document, "gpu_memcpy") if "Device -> Device" not in str(event.get("name")))
    return any(_args(event).get("correlation") in called for event in of_host)
