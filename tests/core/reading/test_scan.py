"""The compiled reader: it takes an array only if it is valid and usual, and makes of it what Python does."""

from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.reading import _scan
from overlapscope.reading._columns import EventColumns
from overlapscope.reading._events import Batch, EventTable, any_events, batch_of_events, convert
from overlapscope.reading._tables import Finished

TRACES = Path(__file__).parents[3] / "traces"
pytestmark = pytest.mark.skipif(not _scan.is_compiled(), reason="needs a C compiler when the package is installed")


def scanned(array: bytes) -> Batch | None:
    return _scan.scanner()(memoryview(bytearray(array)))


def columns_of(batch: Batch) -> list[Any]:
    """All that a Trace is made of."""
    columns = EventColumns("trace.json")
    columns.add(batch)
    contents: list[Any] = [batch.count, columns.repaired, columns.markers]
    for part in columns.parts:
        category, *others = (column.tolist() for column in part)
        contents += [[[*columns.categories][number] for number in category], *others]
    for table, values in columns.values.items():
        contents += [
            (table, at.tolist(), {name: column.tolist() for name, column in further.items()}) for at, further in values
        ]
    finished = Finished(columns, 0)
    return [*contents, finished.names]


def in_python(array: bytes) -> Batch:
    # Where bytes are not UTF-8, `_repair.py` reads the array in Python.
    converted = [convert(value) for value in any_events.decode(array.decode("utf-8", "replace"))]
    assert all(event is not None and not event[1] for event in converted), array
    return batch_of_events([event[0] for event in converted if event is not None])


def assert_taken_only_as_python_takes_it(array: bytes) -> bool:
    """Return whether the reader took it."""
    batch = scanned(array)
    if batch is None:
        return False
    assert columns_of(batch) == columns_of(in_python(array)), array
    return True


def event(**other: Any) -> dict[str, Any]:
    usual = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2.125}
    return usual | {"args": {"device": 0, "stream": 7, "correlation": 3, "bytes": 64}} | other


NOTES: dict[str, Any] = {
    "memory bandwidth (GB/s)": 12.5,
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Process Group Ranks": [0, 1],
    "Group size": 2,
    "dtype": "Float",
    "Seq": 4,
    "nested": {"a": [1, -2.5e-3, True, False, None, {"b": '\\ " é'}], "": {}},
}
EVENTS = [
    event(args={"device": 0, "stream": 7, "correlation": 3} | NOTES),
    event(cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 3, "External id": 9}),
    event(cat="cuda_sync", args={"stream": -1, "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 20}),
    event(cat="gpu_user_annotation", tid="stream 7", args=None),
    event(cat="Trace", pid="Spans", tid="PyTorch Profiler (0)", name="PyTorch Profiler (0)"),
    {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1.5, "cat": "ac2g", "name": "ac2g"},
    {"name": "late category", "ts": 3, "dur": 1, "tid": 4, "cat": "cpu_op", "ph": "X"},
    event(cat="python_function", name='a "quoted" \\ name\n\u00e9', args={"Python id": 1}),
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0.0, "args": {"name": "python"}},
    event(cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", ts=4370963868199.812, pid=3, args={}),
    {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace", "ts": 1.25, "s": "g"},
    {"name": "Record Window End", "ts": 1695835535574129.5, "pid": "", "tid": "", "cat": "", "ph": "i", "s": "g"},
    {"ph": "i", "name": "something else", "ts": 3, "s": "g"},
]
PIECES = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b".", b"e", b"\n", b"\x00", b"\xff", b"\xc3"]
PIECES += [b'"ts":', b'"cat":"ac2g",', b"null", b"true", b"\\ud800", b"\\u00e9", b"99999999999999999999", b'"args":{}']


def test_usual_events_are_taken() -> None:
    for indent in (None, 2):
        assert assert_taken_only_as_python_takes_it(json.dumps(EVENTS, indent=indent).encode())
    assert assert_taken_only_as_python_takes_it(b"[]") and assert_taken_only_as_python_takes_it(b"[ \n]")


@pytest.mark.parametrize("path", sorted(TRACES.glob("known_causes/*.gz"))[::8], ids=lambda path: path.stem)
def test_the_events_of_a_recording_are_taken(path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert assert_taken_only_as_python_takes_it(json.dumps(events).encode())
    batch = scanned(json.dumps(events).encode())
    assert batch is not None and batch.markers


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 3)), max_size=4))
def test_what_is_changed_anywhere_is_refused_or_means_the_same(changes: list[tuple[float, bytes, int]]) -> None:
    array = json.dumps(EVENTS).encode()
    for where, piece, removed in changes:
        at = int(where * (len(array) - 2)) + 1
        array = array[:at] + piece + array[min(at + removed, len(array) - 1) :]
    assert_taken_only_as_python_takes_it(array)


def test_every_byte_may_be_any_other() -> None:
    chance = random.Random(1)
    for event in EVENTS:
        array = json.dumps([event]).encode()
        for at in range(1, len(array) - 1):
            assert_taken_only_as_python_takes_it(array[:at] + chance.choice(PIECES) + array[at + 1 :])
            assert_taken_only_as_python_takes_it(array[:at] + b"]")


NUMBERS = st.one_of(
    st.from_regex(r"-?(0|[1-9]\d{0,18})(\.\d{0,17})?([eE][+-]?\d{0,3})?", fullmatch=True),
    st.decimals(0, 1 << 44, places=3).map(str),
    st.decimals(0, 1 << 33, places=5).map(str),
    st.sampled_from(["-0", "-0.0", "00", "01", "1.", ".5", "+1", "0x1", "NaN", "8796093022207.999", "8796093022208"]),
    st.integers(-(1 << 70), 1 << 70).map(str),
)


@given(st.lists(NUMBERS, min_size=3, max_size=3), st.sampled_from(["cpu_op", "kernel", "ac2g"]))
def test_numbers_are_the_same_to_the_nanosecond(numbers: list[str], category: str) -> None:
    start, length, thread = numbers
    text = f'{{"ph": "X", "cat": "{category}", "ts": {start}, "dur": {length}, "tid": {thread}}}'
    assert_taken_only_as_python_takes_it(f"[{text}]".encode())


@pytest.mark.parametrize(
    "times",
    ["1", "2.5", "1234567.891", "4370963868199.812", "12.3456", "0.00049", "-3.25"]
    + ["1695835535574129", "1695835535574129.25", "3999999999999999.999"],
)
def test_times_as_profilers_write_them_are_taken(times: str) -> None:
    text = f'[{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": {times}, "dur": 1, "tid": 7}}]'
    assert assert_taken_only_as_python_takes_it(text.encode())


def test_texts_of_all_lengths_are_distinguished() -> None:
    names = [letter * length for length in range(40) for letter in ("a", "é", "b")]
    names += [f"{number:05}" for number in range(5000)]
    array = json.dumps([event(cat="cpu_op", name=name) for name in names], ensure_ascii=False).encode()
    batch = scanned(array)
    assert batch is not None and [batch.words[at] for at in batch.name.tolist()] == names


@pytest.mark.parametrize("field", ["name", "pid", "tid"])
def test_a_text_that_is_not_utf_8_is_left_to_python(field: str) -> None:
    for category in _scan.CATEGORIES:
        array = json.dumps([event(cat=category, **{field: "@"})]).encode()
        assert assert_taken_only_as_python_takes_it(array)
        assert scanned(array.replace(b"@", b"a\xff")) is None, category


@pytest.mark.parametrize("field", ["pid", "tid"])
@pytest.mark.parametrize("text", ["7", " 7 ", "stream 7", "-5", "+7", "1_0", "0x10", "", r"\u0663", "9" * 19, "9" * 30])
def test_a_process_or_thread_in_a_text_has_the_same_number(field: str, text: str) -> None:
    for category in _scan.CATEGORIES:
        event = f'{{"ph":"X","cat":"{category}","name":"a","ts":1,"dur":1,"args":{{}},"{field}":"{text}"}}'
        assert assert_taken_only_as_python_takes_it(f"[{event}]".encode())


@pytest.mark.parametrize("process", [b"9" * 5000, b"[" + b"9" * 5000 + b"]", b"null", b"1.5", b"{}"])
def test_a_process_that_is_not_a_whole_number_or_text_is_left_to_python(process: bytes) -> None:
    for category in _scan.CATEGORIES:
        array = json.dumps([event(cat=category, pid="@")]).encode()
        assert scanned(array.replace(b'"@"', process)) is None, category


def test_what_is_deep_or_long_is_left_to_python() -> None:
    deep = event(args={"deep": json.loads("[" * 200 + "]" * 200)})
    assert not assert_taken_only_as_python_takes_it(json.dumps([deep]).encode())
    assert not assert_taken_only_as_python_takes_it(json.dumps([event(tid=10**19)]).encode())


def test_a_grid_has_up_to_three_extents_and_a_hostile_one_takes_no_time() -> None:
    blocks = {"[4, 2, 1]": 8, "[4]": 4, "[]": -1, "[4, 0, 1]": -1, "[4, -2, -1]": -1, "[1, 1, 1, 1]": -1}
    blocks |= {f"[{1 << 62}, 1, 1]": 1 << 62, f"[{1 << 62}, 2, 1]": -1, str([1 << 62] * 40_000): -1}
    array = json.dumps([event(args={"grid": json.loads(grid)}) for grid in blocks]).encode()
    began = time.perf_counter()
    assert assert_taken_only_as_python_takes_it(array)
    # The product of the last one would take each reader ten seconds.
    assert time.perf_counter() - began < 5
    columns = EventColumns("trace.json")
    columns.add(in_python(array))
    assert columns.values[EventTable.GPU][0][1]["blocks"].tolist() == [*blocks.values()]


def test_a_scanner_is_used_again_after_what_it_refused() -> None:
    scan = _scan.scanner()
    usual = bytearray(json.dumps(EVENTS).encode())
    first = scan(memoryview(usual))
    assert scan(memoryview(usual)[: len(usual) // 2]) is None
    second = scan(memoryview(usual))
    assert first is not None and second is not None
    assert columns_of(first) == columns_of(second)
    assert not np.shares_memory(first.start_ns, second.start_ns)
