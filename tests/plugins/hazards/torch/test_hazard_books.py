"""The hazard checker's books against brute force and against torch's own sanitizer."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.plugins.hazards.bookkeeping import Region, covers, interval, overlap, strided
from overlapscope.plugins.hazards.operators import touch
from tests.plugins.hazards.books import (
    COPIES,
    DEVICE,
    EVENTS,
    FREES,
    HOST_KINDS,
    SLOTS,
    STREAMS,
    Books,
    HappensBeforeGraph,
    Step,
)

_FEW = st.integers(1, 4)


def bytes_of(start: int, sizes: list[int], strides: list[int], item: int) -> set[int]:
    """Every byte that a strided tensor's elements lie in."""
    indices = itertools.product(*map(range, sizes))
    offsets = [sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in indices]
    return {start + offset * item + byte for offset in offsets for byte in range(item)}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    dims = draw(st.integers(0, 3))
    sizes = draw(st.lists(_FEW, min_size=dims, max_size=dims))
    strides = draw(st.lists(st.integers(0, 12), min_size=dims, max_size=dims))
    return draw(st.integers(0, 30)), sizes, strides, draw(st.sampled_from([1, 2, 4]))


@given(layouts(), st.integers(0, 60), st.integers(1, 40))
def test_a_strided_tensor_meets_an_interval_just_where_they_share_a_byte(
    layout: tuple[int, list[int], list[int], int], start: int, size: int
) -> None:
    shares = not bytes_of(*layout).isdisjoint(range(start, start + size))
    assert overlap(strided(*layout), interval(start, size)) == shares
    assert overlap(interval(start, size), strided(*layout)) == shares


@given(layouts(), layouts())
def test_two_strided_tensors_are_said_to_meet_only_where_they_do(
    a: tuple[int, list[int], list[int], int], b: tuple[int, list[int], list[int], int]
) -> None:
    if overlap(strided(*a), strided(*b)):
        assert bytes_of(*a) & bytes_of(*b)


@given(layouts(), st.integers(0, 60), st.integers(1, 200))
def test_an_interval_covers_a_tensor_just_where_it_holds_all_its_bytes(
    layout: tuple[int, list[int], list[int], int], start: int, size: int
) -> None:
    assert covers(interval(start, size), strided(*layout)) == (bytes_of(*layout) <= set(range(start, start + size)))


def test_a_transposed_matrix_is_one_interval_and_a_column_is_not() -> None:
    matrix = torch.zeros(3, 5)
    whole, transposed, column = touch(matrix), touch(matrix.t()), touch(matrix[:, 1])
    assert whole is not None and transposed is not None and column is not None
    assert whole.region == transposed.region == interval(matrix.data_ptr(), 60)
    assert column.region == Region(matrix.data_ptr() + 4, matrix.data_ptr() + 48, 4, ((3, 20),))
    assert column.base == whole.base
    assert touch(matrix[:0]) is None


_WHAT = ("use", "use", "use", *COPIES, "host", "host", *FREES, "record", "wait", "event_sync", "stream_sync", "sync")
_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(_WHAT),
        st.sampled_from(STREAMS),
        st.sampled_from(EVENTS),
        st.sampled_from(SLOTS),
        st.sampled_from([4, 6]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(_STEPS)
def test_host_races_are_those_of_a_graph_of_what_happens_before_what(program: list[Step]) -> None:
    assert Books().run(program).races(*HOST_KINDS) == HappensBeforeGraph(program).host_races()


@settings(max_examples=100, deadline=None)
@given(_STEPS)
def test_the_first_race_between_streams_is_that_of_the_graph(program: list[Step]) -> None:
    races = Books().run(program).races("stream-without-wait")
    assert min((late for _, late in races), default=None) == HappensBeforeGraph(program).first_race_on_device()


@settings(max_examples=100, deadline=None)
@given(_STEPS)
def test_launches_race_with_the_streams_that_torchs_sanitizer_names(program: list[Step]) -> None:
    """Only whole tensors are compared, because the sanitizer cannot tell whether views overlap."""
    # Imported here, because it makes a sanitizer that observes every later GPU program of this process.
    from torch.cuda import _sanitizer

    theirs = _sanitizer.EventHandler()
    ours = Books(theirs.syncs)
    for number, step in enumerate(replace(step, size=4) for step in program):
        if step.what in ("host", *COPIES, *FREES):
            continue
        errors: list[Any] = []
        if step.what == "use":
            slot = {step.start}
            reads, writes = (set(), slot) if step.write else (slot, set())
            errors = theirs._handle_kernel_launch(step.stream, reads, writes, set(), "", {step.start: []})
        before = ours.races("stream-without-wait")
        ours.do(step, number)
        named = {program[early].stream for early, _ in ours.races("stream-without-wait") - before}
        assert named == {error.previous_access.stream for error in errors}


def test_thousands_of_copies_without_a_wait_are_all_remembered_and_finished_ones_are_not() -> None:
    books = Books()
    for number in range(3000):
        books.do(Step("d2h", 7, start=8 * number), number)
    books.do(Step("host", start=8 * 1234), 5000)
    assert books.races(*HOST_KINDS) == {(1234, 5000)}
    books.do(Step("sync"), 0)
    for number in range(5000):
        books.do(Step("d2h", 7, start=8 * number), number)
        books.do(Step("stream_sync", 7), 0)
    assert len(books.books.copies) < 200


def test_a_use_of_one_chunk_does_not_race_with_another_chunks_but_with_the_whole() -> None:
    program = [Step("use", 7, start=0, write=True), Step("use", 8, start=4, write=True), Step("use", 0, size=8)]
    assert Books().run(program).races("stream-without-wait") == {(0, 2), (1, 2)}


def test_what_a_write_leaves_of_an_earlier_one_is_still_watched() -> None:
    program = [
        Step("use", 7, start=0, size=6, write=True),
        Step("record", 7),
        Step("wait", 8),
        Step("use", 8, start=4, write=True),
        Step("use", 0, start=0),
    ]
    assert Books().run(program).races("stream-without-wait") == {(0, 4)}


def test_memory_that_was_freed_has_no_past() -> None:
    books = Books().run([Step("use", 7, write=True)])
    books.books.uses.forget(DEVICE)
    books.do(Step("use", 8, write=True), 1)
    assert books.books.hazards == ()
