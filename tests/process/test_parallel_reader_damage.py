"""A damaged file read by several threads is the same Trace as one read by one."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import kineto
from overlapscope.reading.files import zstd_module
from tests.support.parallel_reading import DIALECTS, dialect, events_of_all_kinds, read_both, write


def test_a_file_cut_anywhere_is_the_same(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(120), "indented")
    chance = random.Random(5)
    for _ in range(40):
        trace, *_ = read_both(write(tmp_path, content[: chance.randrange(4000, len(content) - 80)]), 1000)
        assert trace.damage.truncated


@given(seed=st.integers(0, 10**9), flips=st.integers(1, 8), block=st.sampled_from([256, 1000, 3000]))
def test_a_damaged_file_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int, block: int
) -> None:
    chance = random.Random(seed)
    content = bytearray(dialect(events_of_all_kinds(150), chance.choice(DIALECTS)))
    for _ in range(flips):
        content[chance.randrange(2000, len(content))] = chance.choice(b'{}[]",:x\\\x00\xff 9')
    read_both(write(tmp_path_factory.mktemp("damaged"), bytes(content)), block)


def test_events_after_damage_are_kept_with_those_before(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(400), "indented")
    middle = content.index(b'"ph"', len(content) // 2)
    trace, _ = read_both(write(tmp_path, content[:middle] + b'"x": nonsense, ' + content[middle:]), 1000)
    assert trace.damage.examples


def test_an_array_that_ends_early_is_the_same(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(400), "one line")
    middle = content.index(b', {"ph"') if b', {"ph"' in content else content.index(b',{"ph"', len(content) // 2)
    read_both(write(tmp_path, content[:middle] + b'], "displayTimeUnit": "ms"}'), 700)
    # Metadata after the events that is longer than several stretches.
    ended = content[:middle] + b'], "notes": ' + json.dumps(["y" * 300] * 50).encode() + b"}"
    trace, *_ = read_both(write(tmp_path, ended), 700)
    assert not trace.damage.truncated


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("harm", ["none", "cut", "cut at its end", "garbled", "cut at once"])
def test_damaged_packed_files_are_the_same(tmp_path: Path, how: str, harm: str) -> None:
    content = dialect(events_of_all_kinds(6000), "indented")
    data: bytes = gzip.compress(content) if how == "gz" else zstd_module().compress(content)
    middle = len(data) // 2
    path = tmp_path / f"trace.json.{how}"
    path.write_bytes(
        {
            "none": data,
            "cut": data[:-1000],
            "cut at its end": data[:-4],
            "garbled": data[:middle] + b"\xff" * 400 + data[middle + 400 :],
            "cut at once": data[:40],
        }[harm]
    )
    if harm == "cut at once":
        messages = set()
        for threads in (1, 3):
            with pytest.raises(UnreadableTrace) as refused:
                kineto.read(path, threads=threads)
            messages.add(str(refused.value))
        assert len(messages) == 1
        return
    trace, _ = read_both(path, 1 << 18, threads=3)
    assert trace.damage.truncated == (harm != "none")
