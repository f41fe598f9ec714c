"""A file read by several threads is the same Trace, to the last column, as one read by one."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.reading import kineto
from overlapscope.trace.model import Damage
from tests.support.parallel_reading import (
    DIALECTS,
    RECORDINGS,
    complete,
    dialect,
    events_of_all_kinds,
    read_both,
    write,
)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_every_recording_is_the_same(tmp_path: Path, path: Path) -> None:
    threads = 2 + 2 * (RECORDINGS.index(path) % 2)
    plain = write(tmp_path, gzip.decompress(path.read_bytes()))
    trace, counted = read_both(plain, max(plain.stat().st_size // 40, 3000), threads)
    assert counted > 3
    assert trace.damage == kineto.read(path).damage


@pytest.mark.parametrize("how", DIALECTS)
@pytest.mark.parametrize("block", [700, 4096, 10_000])
def test_every_dialect_is_the_same(tmp_path: Path, how: str, block: int) -> None:
    path = write(tmp_path, dialect(events_of_all_kinds(400), how))
    trace, _ = read_both(path, block, threads=3)
    assert trace.damage.lost_events == 0
    assert trace.damage.repaired_events > 0
    assert len(np.unique(trace.gpu_ops.stream)) > 10


HOSTILE = st.sampled_from(['"}, {"', "},\n{", '}, {"ph": "X"}, {', '\\"}],', "]}", "\\", "é\U0001f600", "{" * 40, ""])


@given(
    names=st.lists(st.one_of(HOSTILE, st.text(max_size=30)), min_size=30, max_size=60),
    how=st.sampled_from(DIALECTS),
    block=st.integers(60, 1500),
)
def test_hostile_names_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], how: str, block: int
) -> None:
    events = [complete(number, name=name, note=name) for number, name in enumerate(names)]
    path = write(tmp_path_factory.mktemp("hostile"), dialect(events, how))
    read_both(path, block)


def test_arguments_that_look_like_events_are_guessed_wrong_and_found_out(tmp_path: Path) -> None:
    """Events inside arguments, among which a block seems to end."""
    nested = [complete(number, name="never happened") for number in range(4)]
    events = [complete(number) | {"args": {"stream": 7, "list": nested}} for number in range(100)]
    path = write(tmp_path, dialect(events, "one line"))
    trace, counted = read_both(path, 3000)
    assert trace.names == ("gemm",)
    assert len(trace.gpu_ops) == 100
    assert counted < path.stat().st_size // 3000


def test_an_event_longer_than_a_block_is_the_same(tmp_path: Path) -> None:
    events = events_of_all_kinds(200)
    events[100]["args"]["note"] = "x" * 20_000
    read_both(write(tmp_path, dialect(events, "indented")), 1000)


def test_a_clean_file_has_no_damage_with_threads(tmp_path: Path) -> None:
    events = [complete(number) for number in range(500)]
    trace, counted = read_both(write(tmp_path, dialect(events, "indented")), 1500, threads=4)
    assert counted > 10
    assert trace.damage == Damage()
    assert len(trace.gpu_ops) == 500
