"""Tests of bad input: damaged files are read as far as possible, with a count of the loss, and other files give a clear
message.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import sys
import tracemalloc
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope import analyze
from overlapscope.analysis import analyze_trace
from overlapscope.base import memory
from overlapscope.base.saved import encode
from overlapscope.errors import OverlapscopeError, UnreadableTrace
from overlapscope.reading import _columns, _stream, files, kineto, load
from overlapscope.reading.files import SourceFile
from overlapscope.trace.model import Damage, Kind, Trace
from tests.support.helpers import Op, in_turn, make_trace
from tests.support.kineto_files import kernel, write

pytestmark = pytest.mark.afresh

DATA = Path(__file__).parents[3] / "traces"
REAL = DATA / "known_causes" / "host_sync.json.gz"
CLEAN = Damage()


def kernel_text(ts: str = "5.0", dur: str = "1.0", name: str = "gemm", args: str = '{"device": 0, "stream": 7}') -> str:
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, '
        f'"ts": {ts}, "dur": {dur}, "args": {args}}}'
    )


def around(*events: str) -> str:
    """Return a trace of the given events between two good ones."""
    inner = ",\n".join((kernel_text("1.0", name="first"), *events, kernel_text("9.0", name="last")))
    return f'{{"schemaVersion": 1, "traceEvents": [\n{inner}\n], "traceName": "t"}}'


def read(tmp_path: Path, content: str | bytes, name: str = "trace.json") -> Trace:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return load(path)


def names(trace: Trace) -> list[str]:
    return [trace.gpu_ops.name(i) for i in range(len(trace.gpu_ops))]


# -- files that are not traces


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"  \n\t ", "white space"),
        (b"hello", "not JSON"),
        (b"<html><body>404</body></html>", "web page"),
        (b'"traceEvents"', "not JSON"),
        (b"{}", "traceEvents"),
        (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": 5}', "traceEvents"),
        (b'{"traceEvents": null}', "traceEvents"),
        (b'{"a": {"traceEvents": 1}', "traceEvents"),
        (b'{"a": ', "traceEvents"),
        (b"{", "."),
        (b"[", "none of its events"),
        (b"[1, 2, 3]", "none of its events"),
        (b'["a"]', "none of its events"),
        (b'[{"a": 1}]', "none of its events"),
        (b'{"traceEvents": [', "none of its events"),
        (b'[{"file": "rank0.json.gz"}]', "it is not a trace, or it is damaged"),
        (b"[" * 200_000, "none of its events"),
        (b"{" * 200_000, "not JSON"),
        (b'{"a":' * 200_000, "traceEvents"),
        (b'{"traceEvents":' + b"[" * 200_000, "none of its events"),
        (b'{"traceEvents":[{"args":' + b"[" * 200_000 + b"]" * 200_000 + b"}]}", "none of its events"),
        (random.Random(1).randbytes(50_000), "not JSON"),
        (b"{" + random.Random(2).randbytes(50_000), "."),
        (b"\x1f\x8b" + random.Random(3).randbytes(5000), "."),
        (b"\x1f\x8b", "."),
        (gzip.compress(b"", mtime=0), "."),
        (b"\x28\xb5\x2f\xfd" + random.Random(4).randbytes(500), "."),
        (b"PK\x03\x04" + bytes(100), "zip"),
        (b"SQLite format 3\0" + bytes(100), "the database cannot be read"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"\0" * 100_000, "not JSON"),
    ],
)
def test_what_is_not_a_trace_is_one_sentence_that_names_the_file(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(UnreadableTrace, match=re.escape(says)) as caught:
        read(tmp_path, content)
    sentence = str(caught.value)
    assert sentence.startswith(str(tmp_path / "trace.json"))
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="the file does not exist"):
        load(tmp_path / "nowhere.json")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="directory"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(around())
    path.chmod(0)
    with pytest.raises(UnreadableTrace, match="permissions"):
        load(path)


@given(st.binary(max_size=300))
def test_no_bytes_whatever_escape_as_another_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "t.json"
    for prefix in (b"", b"{", b"[", b'{"traceEvents": [', b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1'):
        path.write_bytes(prefix + content)
        try:
            load(path)
        except OverlapscopeError:
            continue


# -- cut files


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_anywhere_keeps_every_whole_event(tmp_path: Path, packed: bool) -> None:
    content = gzip.decompress(REAL.read_bytes())
    whole = load(REAL)
    ends = [m.end() for m in re.finditer(rb'"dur": [\d.]+,\s*"args": \{[^}]*\}\s*\}', content)]
    random_cuts = random.Random(5).sample(range(ends[0], len(content) - 3), 10)
    for cut in random_cuts:
        data = content[:cut]
        trace = read(tmp_path, gzip.compress(data)[:-8] if packed else data)
        tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.syncs)
        kept = sum(len(table) for table in tables)
        present = sum(1 for e in json.loads(_close(data))["traceEvents"] if _in_a_table(e))
        assert kept == present, cut
        assert trace.damage.truncated
        assert trace.damage.repaired_events == 0
        assert trace.rank == whole.rank
        assert trace.device_names == whole.device_names


def _in_a_table(event: dict[str, Any]) -> bool:
    return event["ph"] == "X" and event["cat"] not in ("gpu_user_annotation", "Trace")


def _close(data: bytes) -> bytes:
    """Return the cut trace with its last partial event taken off, as valid JSON."""
    start = data.index(b'"traceEvents": [')
    for end in reversed([m.end() for m in re.finditer(rb"\}", data[start:])]):
        try:
            candidate = data[: start + end] + b"]}"
            json.loads(candidate)
        except ValueError:
            continue
        return candidate
    return data


def test_the_loss_of_a_cut_file_is_counted(tmp_path: Path) -> None:
    text = around()
    cut = text[: text.index('"last"') + 3]
    trace = read(tmp_path, cut)
    assert names(trace) == ["first"]
    assert trace.damage.truncated
    assert trace.damage.lost_bytes == len(cut) - cut.rindex('{"ph"')
    assert trace.damage.lost_events == 1
    assert trace.damage.examples


def test_a_cut_after_the_events_loses_none_of_them(tmp_path: Path) -> None:
    text = around()
    for end in (text.rindex("]") + 1, text.rindex('"t"'), len(text) - 1):
        trace = read(tmp_path, text[:end])
        assert names(trace) == ["first", "last"]
        assert trace.damage.truncated
        assert trace.damage.lost_events == 0


def test_gzip_cut_in_the_middle_gives_what_came_before(tmp_path: Path) -> None:
    packed = (DATA / "known_causes" / "launch_bound.json.gz").read_bytes()
    trace = read(tmp_path, packed[: len(packed) // 2])
    assert trace.damage.truncated
    assert len(trace.gpu_ops) + len(trace.cpu_ops) > 500


def test_gzip_with_a_wrong_checksum_is_read_whole(tmp_path: Path) -> None:
    packed = bytearray(REAL.read_bytes())
    packed[-6] ^= 0xFF
    trace = read(tmp_path, bytes(packed))
    assert len(trace.gpu_ops) == len(load(REAL).gpu_ops)
    assert trace.damage.truncated


def test_gzip_with_a_broken_middle_gives_what_came_before(tmp_path: Path) -> None:
    packed = bytearray((DATA / "known_causes" / "backward_on_side_stream.json.gz").read_bytes())
    middle = len(packed) // 2
    packed[middle : middle + 400] = bytes(400)
    trace = read(tmp_path, bytes(packed))
    assert trace.damage.truncated
    assert len(trace.gpu_ops) + len(trace.cpu_ops) > 500


# -- broken JSON


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("C:\\temp\\q.py", "C:\temp\\q.py"),  # \t happens to be an escape
        ("C:\\dir\\x.py", "C:\\dir\\x.py"),
        ("a\\u12 b", "a\\u12 b"),
        ("tab\there", "tab\there"),
        ("line\nbreak", "line\nbreak"),
        ("nul\x00byte", "nul\x00byte"),
        ('say "hello" twice', 'say "hello" twice'),
        ('{"device": "cpu"}.py(3): f', '{"device": "cpu"}.py(3): f'),
        ('<eval_with_key>{"a": "b", "c": 1}', '<eval_with_key>{"a": "b", "c": 1}'),
        ('trailing"', 'trailing"'),
        ("bad \udcff\udcfe utf-8", "bad \ufffd\ufffd utf-8"),
    ],
)
def test_a_name_that_breaks_the_json_is_read_all_the_same(tmp_path: Path, written: str, meant: str) -> None:
    trace = read(tmp_path, around(kernel_text(name=written)))
    assert names(trace) == ["first", meant, "last"]
    assert trace.damage.repaired_events == 1
    assert trace.damage.lost_events == 0
    assert len(trace.damage.examples) == 1


def test_a_lone_surrogate_in_a_name_is_replaced(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text(name="a\\ud800b")))
    name = names(trace)[1]
    assert name.startswith("a")
    name.encode()


@pytest.mark.parametrize("word", ["NaN", "nan", "-NaN", "Infinity", "-Infinity", "inf", "N/A", "undefined", "None"])
def test_a_bare_word_among_the_arguments_costs_nothing(tmp_path: Path, word: str) -> None:
    args = f'{{"device": 0, "stream": 7, "est. achieved occupancy %": {word}, "correlation": 5}}'
    trace = read(tmp_path, around(kernel_text(args=args)))
    assert names(trace) == ["first", "gemm", "last"]
    assert trace.gpu_ops.correlation.tolist() == [-1, 5, -1]
    assert trace.damage.repaired_events == 1


def test_an_event_beyond_repair_costs_no_other(tmp_path: Path) -> None:
    broken = '{"ph": "X", "cat": "kernel", "name": "x", "ts": 4.0.0.0, "dur": }'
    trace = read(tmp_path, around(kernel_text("3.0", name="a"), broken, kernel_text("6.0", name="b")))
    assert names(trace) == ["first", "a", "b", "last"]
    assert trace.damage.lost_events == 1
    assert trace.damage.lost_bytes == len(broken)


@pytest.mark.parametrize("value", ["null", "5", '"text"', "[]", "[1]", "{}", '{"a": 1}', "true"])
def test_a_value_that_is_not_an_event_costs_no_other(tmp_path: Path, value: str) -> None:
    trace = read(tmp_path, around(value))
    assert names(trace) == ["first", "last"]
    assert trace.damage.lost_events == 1


@pytest.mark.parametrize("comma", ["", ",,", ", ,"])
def test_missing_and_doubled_commas_cost_nothing(tmp_path: Path, comma: str) -> None:
    text = f'{{"traceEvents": [{kernel_text("1.0")}{comma}{kernel_text("2.0")}{comma and ","}]}}'
    assert len(read(tmp_path, text).gpu_ops) == 2


@pytest.mark.parametrize("stray", ["]", "]}", "}", "],"])
def test_a_stray_bracket_does_not_end_the_events(tmp_path: Path, stray: str) -> None:
    many = [kernel_text(f"{i}.5") for i in range(2, 60)]
    text = around(*many[:9], many[9] + stray, *many[10:])
    trace = read(tmp_path, text)
    assert len(trace.gpu_ops) >= 59
    assert trace.damage.lost_bytes or trace.damage.repaired_events


def test_invalid_text_among_the_arguments_costs_only_what_it_stands_in(tmp_path: Path) -> None:
    args = '{"device": 0, "stream": 7, "note": "\udcff\udcfe", "correlation": 5}'
    trace = read(tmp_path, around(kernel_text(args=args)))
    assert names(trace) == ["first", "gemm", "last"]
    assert trace.gpu_ops.correlation.tolist() == [-1, 5, -1]


def test_invalid_metadata_does_not_cost_the_events(tmp_path: Path) -> None:
    text = around().replace('"schemaVersion": 1', '"schemaVersion": 1, "baseTimeNanoseconds": 7000, "mine": {oops}')
    trace = read(tmp_path, text)
    assert trace.gpu_ops.start_ns.tolist() == [8000, 16000]
    assert trace.damage.repaired_events == 1


def test_a_bracket_before_an_event_does_not_take_the_others_along(tmp_path: Path) -> None:
    trace = read(tmp_path, around("[" + kernel_text(), kernel_text()))
    assert len(trace.gpu_ops) == 4
    assert trace.damage.lost_bytes == 1


@given(seed=st.integers(0, 10**9), flips=st.integers(1, 12), size=st.sampled_from([256, 3000, 1 << 19]))
def test_random_damage_costs_little_and_never_more_than_it_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int, size: int
) -> None:
    rng = random.Random(seed)
    content = bytearray(gzip.decompress(REAL.read_bytes()))
    start = content.index(b'"traceEvents": [') + 30
    for _ in range(flips):
        content[rng.randrange(start, len(content) - 200)] = rng.choice(b'"\\{}[],:x9\x00\xff\n ')
    path = tmp_path_factory.mktemp("flips") / "t.json"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", size)
        try:
            traces = [load(path)]
        except UnreadableTrace as error:
            # A launch whose process has another number is another process's.
            if "processes; name one of" not in str(error):
                raise
            traces = [load(f"{path}@{process}") for process in range(kineto.parts(path))]
    whole = load(REAL)
    # A flipped byte ruins its own event, and at worst the neighbors it runs into.
    left = sum(len(trace.gpu_ops) + len(trace.runtime_calls) for trace in traces)
    assert left >= len(whole.gpu_ops) + len(whole.runtime_calls) - 3 * flips


def test_damage_in_every_event_is_still_read_at_speed(tmp_path: Path) -> None:
    many = [kernel_text(f"{i}.5", args='{"device": 0, "stream": 7, "occupancy": NaN}') for i in range(1, 10_001)]
    trace = read(tmp_path, around(*many))
    assert len(trace.gpu_ops) == 10_002
    assert trace.damage.repaired_events == 10_000
    assert len(trace.damage.examples) == 3


@pytest.mark.parametrize(
    "noise",
    [
        "1,",
        '"a",',
        "null,",
        "[{}],",
        '""',
        "0",
        '{"ph":"X"}]',
        '{"ph":"X"},1,',
        '{"ph":"X"},"',
        "]}",
        '],"',
        '{"a":[' + "{}," * 300,
    ]
    + ['"traceEvents":[', '{"a":"\\q"},', '{"a":{},', '{"ph":"M"},],'],
)
def test_however_much_noise_is_read_in_a_time_that_grows_with_it(tmp_path: Path, noise: str) -> None:
    # Enough characters that a new search at each of them would take a minute.
    many = noise * (100_000 // len(noise))
    with suppress(UnreadableTrace):
        assert "last" in names(read(tmp_path, f"[{kernel_text('1.0')},{many},{kernel_text('9.0', name='last')}]"))
    if noise == '"traceEvents":[':
        with suppress(UnreadableTrace):
            read(tmp_path, f'{{"a": {{{many}')


@pytest.mark.parametrize("noise", ["\0", "x", "x]"])
def test_noise_up_to_the_end_is_read_in_a_time_that_grows_with_it(tmp_path: Path, noise: str) -> None:
    trace = read(tmp_path, f"[{kernel_text('1.0')}," + noise * (300_000 // len(noise)))
    assert len(trace.gpu_ops) == 1


# -- figures beyond belief


def copy_text(ts: float, dur: float, size: int, way: str = "HtoD (Pinned -> Device)") -> str:
    args = f'{{"device": 0, "stream": 9, "bytes": {size}}}'
    return kernel_text(str(ts), str(dur), f"Memcpy {way}", args).replace('"kernel"', '"gpu_memcpy"')


@pytest.mark.parametrize(
    "sizes",
    [[(1 << 63) - 1] * 2, [1 << 62] * 3, [(1 << 50) + 1] * 3, [1 << 50] * 10_000],
    ids=["2", "3", "each", "sum"],
)
def test_sizes_never_add_up_to_less_than_nothing(tmp_path: Path, sizes: list[int]) -> None:
    # Half of them on the device, where any bandwidth is possible.
    ways = ("HtoD (Pinned -> Device)", "DtoD (Device -> Device)")
    copies = [copy_text(10 + 8e6 * number, 8e6, size, ways[number % 2]) for number, size in enumerate(sizes)]
    trace = read(tmp_path, around(*copies, copy_text(2, 1, 1000)))
    assert sum(trace.damage.impossible_sizes.values()) >= len(sizes)
    [device] = analyze(trace).devices
    assert all(group.bytes is None or 0 <= group.bytes <= 1000 for group in device.copies)


def test_a_copy_at_an_impossible_bandwidth_is_not_measure_of_others(tmp_path: Path) -> None:
    honest = [copy_text(1000.5 * number, 2.0, 50_000) for number in range(1, 5)]
    large = [copy_text(1000.0 * number, 900.0, 512 << 20) for number in range(5, 15)]
    trace = read(tmp_path, around(*honest, *large, copy_text(20_000, 0.001, 512 << 20)))
    assert trace.gpu_ops.bytes[-1] == -1
    assert (trace.gpu_ops.bytes[trace.gpu_ops.stream == 9] >= 0).sum() == 14
    report = analyze(trace)
    assert not [finding for finding in report.findings if finding.rule == "slow-link"]
    [check] = [check for check in report.traces[0].trust.checks if check.id == "copy-sizes"]
    assert check.status == "warn"
    assert check.detail.startswith("1 GPU op has an impossible size")


def test_a_copy_of_a_time_rounded_to_nothing_keeps_its_size(tmp_path: Path) -> None:
    trace = read(tmp_path, around(copy_text(5, 0, 4096)))
    assert trace.damage == CLEAN
    assert 4096 in trace.gpu_ops.bytes


def test_durations_that_add_up_to_years_are_no_recording(tmp_path: Path) -> None:
    # Events all along ten days, each as long as that: their sum exceeds 64 bits.
    days = [kernel_text(str(500_000_000 * number), "8.6e11") for number in range(1, 1800)]
    with pytest.raises(UnreadableTrace, match="more than two years"):
        read(tmp_path, around(*days * 6))


# -- values of a wrong type


def test_numbers_in_strings_are_read(tmp_path: Path) -> None:
    args = '{"device": "1", "stream": "9", "correlation": "0x10", "bytes": "64"}'
    trace = read(tmp_path, around(kernel_text('"5.125"', '"1.5"', args=args)))
    ops = trace.gpu_ops
    assert (ops.start_ns[1], ops.end_ns[1]) == (5125, 6625)
    assert (ops.device[1], ops.stream[1], ops.correlation[1], ops.bytes[1]) == (1, 9, 16, 64)
    assert trace.damage.repaired_events >= 1


HUGE = ("1e99999999", "-1e99999999", "1e1000000", "1e99999999999999999999", '"1e99999999"', "9" * 400, "9" * 9999)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("key", ["pid", "tid", "ts", "dur"])
def test_a_number_of_a_million_digits_costs_its_own_event_at_most(tmp_path: Path, key: str, number: str) -> None:
    keys = {
        "ph": '"X"',
        "cat": '"kernel"',
        "name": '"huge"',
        "pid": "0",
        "tid": "7",
        "ts": "5",
        "dur": "1",
        key: number,
    }
    trace = read(tmp_path, around("{" + ", ".join(f'"{key}": {value}' for key, value in keys.items()) + "}"))
    assert {"first", "last"} <= set(names(trace))
    assert trace.damage != CLEAN or key in ("pid", "tid")


@pytest.mark.parametrize("number", [*HUGE, "1e-99999999", "0e99999999999999999999"])
@pytest.mark.parametrize("category", ["kernel", "cuda_sync", "cuda_runtime"])
def test_arguments_of_a_million_digits_are_as_good_as_none(tmp_path: Path, category: str, number: str) -> None:
    keys = ("device", "stream", "bytes", "correlation", "wait_on_stream", "Seq", "Process Group Ranks", "sycl queue")
    args = ", ".join(f'"{key}": {number}' for key in (*keys, "memory bandwidth (GB/s)"))
    event = kernel_text(args=f'{{{args}, "Collective name": "c"}}').replace('"kernel"', f'"{category}"')
    trace = read(tmp_path, around(event))
    assert {"first", "last"} <= set(names(trace))
    assert len(trace.gpu_ops) + len(trace.syncs) + len(trace.runtime_calls) >= 2 + (category == "kernel")


@pytest.mark.parametrize("number", [*HUGE, '"--5"', '"\u00b2"', '"' + "9" * 9999 + '"'])
def test_metadata_of_a_million_digits_says_nothing(tmp_path: Path, number: str) -> None:
    keys = ("schemaVersion", "baseTimeNanoseconds", "with_stack", "cuda_runtime_version")
    metadata = f'"overlapscope": {{"warm_up_steps": {number}, "plain_steps": {{"before": {{"host_ns": [{number}]}}}}}}'
    ranks = f'"distributedInfo": {{"rank": {number}, "world_size": {number}}}'
    devices = f'"deviceProperties": [{{"id": {number}, "name": "gpu"}}]'
    around_events = ", ".join((*(f'"{key}": {number}' for key in keys), metadata, ranks, devices))
    for text in (
        around().replace('"schemaVersion": 1', around_events),
        around().replace('"traceName": "t"', around_events),
    ):
        trace = read(tmp_path, text)
        assert names(trace) == ["first", "last"]
        assert trace.rank is trace.world_size is None
        assert not trace.warm_up_steps
        assert encode(analyze(trace))


@pytest.mark.parametrize("args", ["null", "[]", '"x"', "5", '{"device": null, "stream": [], "correlation": {}}'])
def test_arguments_of_a_wrong_type_are_as_good_as_none(tmp_path: Path, args: str) -> None:
    trace = read(tmp_path, around(kernel_text(args=args)))
    assert names(trace) == ["first", "gemm", "last"]
    assert (trace.gpu_ops.device[1], trace.gpu_ops.stream[1]) == (0, 7)
    assert trace.gpu_ops.correlation[1] == -1


def test_missing_keys_are_no_error(tmp_path: Path) -> None:
    trace = read(tmp_path, around('{"ph": "X", "cat": "kernel", "ts": 5.0, "dur": 1.0}', '{"ph": "X"}', '{"ph": "i"}'))
    assert names(trace) == ["first", "", "last"]


def test_a_complete_event_without_its_phase_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text().replace('"ph": "X", ', "")))
    assert names(trace) == ["first", "gemm", "last"]
    assert trace.damage.repaired_events == 1


def test_names_and_categories_of_a_wrong_type_are_read(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text().replace('"gemm"', "12"), kernel_text().replace('"kernel"', "null")))
    assert names(trace) == ["first", "12", "last"]
    assert trace.damage.repaired_events == 2


# -- impossible times


@pytest.mark.parametrize("dur", ["-1.0", "NaN", "Infinity", "1e300", "3.15e13", "null", '"N/A"', "20000000.0"])
def test_an_op_of_impossible_length_is_left_out_and_counted(tmp_path: Path, dur: str) -> None:
    trace = read(tmp_path, around(kernel_text("5.0", dur)))
    assert names(trace) == ["first", "last"]
    assert trace.damage.impossible_times == 1
    assert trace.damage.lost_events == 0


def test_a_stray_op_is_left_out_where_the_stated_span_reaches_to_it(tmp_path: Path) -> None:
    span = '{"ph": "X", "cat": "Trace", "name": "x", "pid": "Spans", "tid": "x", "ts": 10.0, "dur": 4371000000000.0}'
    good = [kernel_text(f"{4_370_000_000_000 + 2 * i}.5", name=f"good{i}") for i in range(9)]
    trace = read(tmp_path, f'{{"traceEvents": [{", ".join([span, kernel_text("17.0"), *good])}]}}')
    assert names(trace) == [f"good{i}" for i in range(9)]
    assert trace.damage.impossible_times == 1


def test_what_was_repaired_can_be_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(around(kernel_text().replace('"name"', '\xff "name"')).encode("latin-1"))
    trace = load(path)
    assert trace.damage.examples
    assert b"repaired" in encode(analyze(trace))


@pytest.mark.parametrize("ts", ["0", "-5.0", "1e300", "null", "NaN", "900000000000.0", '"x"'])
def test_an_op_at_an_impossible_time_is_left_out_and_counted(tmp_path: Path, ts: str) -> None:
    origin = 4_371_210_987_288
    good = [kernel_text(f"{origin + i}.125", name=f"good{i}") for i in range(5)]
    trace = read(tmp_path, f'{{"traceEvents": [{", ".join([*good, kernel_text(ts)])}]}}')
    assert names(trace) == [f"good{i}" for i in range(5)]
    assert trace.damage.impossible_times == 1


def test_an_op_without_a_start_is_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text().replace('"ts": 5.0, ', "")))
    assert names(trace) == ["first", "last"]
    assert trace.damage.impossible_times == 1


def test_an_op_without_a_duration_is_kept_with_none(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text().replace('"dur": 1.0, ', ""), kernel_text("6.0", "0")))
    lengths = (trace.gpu_ops.end_ns - trace.gpu_ops.start_ns).tolist()
    assert lengths == [1000, 0, 0, 1000]
    assert trace.damage.repaired_events == 1


def test_impossible_times_in_host_tables_are_left_out_too(tmp_path: Path) -> None:
    trace = read(tmp_path, around(kernel_text(dur="1e15").replace("kernel", "cpu_op")))
    assert len(trace.cpu_ops) == 0
    assert trace.damage.impossible_times == 1


def test_one_corrupt_duration_does_not_stretch_the_window(tmp_path: Path) -> None:
    content = gzip.decompress(REAL.read_bytes()).decode()
    at = content.index('"cat": "gpu_memcpy"')
    corrupt = content[:at] + re.sub(r'"dur": [\d.]+', '"dur": 9999999999.5', content[at:], count=1)
    trace, whole = read(tmp_path, corrupt), load(REAL)
    assert len(trace.gpu_ops) == len(whole.gpu_ops) - 1
    assert trace.gpu_ops.end_ns.max() == whole.gpu_ops.end_ns.max()
    assert trace.damage.impossible_times == 1


def test_an_absurd_recording_span_does_not_make_absurd_times_possible(tmp_path: Path) -> None:
    span = '{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1.0, "dur": 9e14}'
    trace = read(tmp_path, around(span, kernel_text("5.0", "8e14")))
    assert names(trace) == ["first", "last"]
    assert trace.start_ns == -1


def test_lines_before_a_broken_event_are_not_counted(tmp_path: Path) -> None:
    broken = kernel_text(args='{"device": 0, "stream": 7, "grid": [1, 1, 1,]}')
    text = around(*[f"\n{broken}"] * 500)
    counted: list[int] = []

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in ("count", "rfind") and "pos" in frame.f_locals:
            counted.append(frame.f_locals["pos"])

    sys.setprofile(called)
    try:
        read(tmp_path, text)
    finally:
        sys.setprofile(None)
    assert 0 < sum(counted) < 100 * len(text)


# -- bounded memory


def test_a_gzip_bomb_stops_at_the_limit_and_names_the_flag(tmp_path: Path) -> None:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    event = (kernel_text() + ",").encode()
    bomb = pack.compress(b'{"traceEvents": [') + pack.compress(event * 400_000) + pack.flush()
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(bomb)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        load(path, limit_bytes=10 << 20)


def packed(tmp_path: Path, *parts: tuple[bytes, int]) -> Path:
    """Return a packed file of some texts, each of them repeated."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(b"".join(pack.compress(text * count) for text, count in parts) + pack.flush())
    return path


def test_without_a_limit_of_the_users_no_file_is_unpacked_to_more_than_a_recording_can_be(tmp_path: Path) -> None:
    event = (kernel_text() + ",").encode()
    path = packed(tmp_path, (b"[", 1), (event, 2_000_000 // len(event) * 10), (b"{}]", 1))
    file = SourceFile(path)
    with pytest.raises(
        UnreadableTrace, match=r"holds more than [\d.]+ MB when unpacked, \d+ times its packed size; raise"
    ):
        deque(file, maxlen=0)
    assert file.unpacked_bytes <= 100 * path.stat().st_size + files.BLOCK_BYTES
    assert len(load(path, limit_bytes=1 << 30).gpu_ops) > 1


@pytest.mark.parametrize(
    ("empty", "tail"), in_turn([b"{},", b"null,", b"[],", b'{"ph":"M"},', b'{"ph":"X","cat":"x"},'], [b"", b"{}]"])
)
def test_a_file_without_an_event_is_not_read_to_its_end(
    tmp_path: Path, empty: bytes, tail: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path, (b"[", 1), (empty, 3_000_000), (tail, 1))
    taken: list[int] = []

    def counted(file: SourceFile) -> Iterator[bytes | memoryview]:
        for block in blocks(file):
            taken.append(len(block))
            yield block

    blocks = SourceFile.__iter__
    monkeypatch.setattr(SourceFile, "__iter__", counted)
    with pytest.raises(UnreadableTrace, match=r"none of its events|has no event of a kind|an event is longer"):
        kineto.read(path, limit_bytes=1 << 30)
    assert sum(taken) < (2 << 20) + 2 * files.BLOCK_BYTES + 1_000_000 * len(empty)


def test_a_trace_too_large_for_the_memory_that_is_left_is_refused_before_its_analysis() -> None:
    trace = make_trace([Op(Kind.COMPUTE, 0, 10)])
    columns = {name: np.broadcast_to(getattr(trace.gpu_ops, name), 1 << 40) for name in ("start_ns", "end_ns")}
    with pytest.raises(
        UnreadableTrace, match=r"has at least 1,099,511,627,776 events, whose analysis needs about 440 TB .* are free"
    ):
        analyze_trace(replace(trace, gpu_ops=replace(trace.gpu_ops, **columns)))


def test_a_plain_file_too_large_for_the_memory_that_is_left_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.json", [kernel(number, 1) for number in range(40_000)])
    asked: list[int] = []

    def check(source: str, rows: int) -> None:
        asked.append(rows)
        memory.check_room(source, rows)

    monkeypatch.setattr(_columns, "check_room", check)
    monkeypatch.setattr(memory, "_UNSUSPICIOUS_BYTES", 0)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_000_000)
    with pytest.raises(UnreadableTrace, match=r"t.json: has at least .* about .* of memory, but only 1 MB are free"):
        load(path)
    assert 2_500 < max(asked) < 30_000


@pytest.mark.parametrize(
    ("filler", "body"),
    in_turn(
        [b" ", b'{"traceEvents": [', b'{"traceEvents": [{"ph": "', b'{"a": "', b"[[[[", b'{"traceEvents": [ '],
        [b" ", b"x", b"[", b"{", b'{"a":'],
    ),
)
def test_endless_filler_is_refused_without_holding_it(
    tmp_path: Path, filler: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream, "MAX_PENDING_BYTES", 2 << 20)
    pack = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [pack.compress(filler)] + [pack.compress(body * ((1 << 20) // len(body))) for _ in range(32)]
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(b"".join((*parts, pack.flush())))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTrace):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
