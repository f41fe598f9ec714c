"""Ranges of the program that are open between two sessions of the profiler."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="looks for ranges of torch")

from torch.profiler import record_function

from overlapscope.recorder.session import OpenRanges


def test_a_range_that_another_thread_is_making_is_not_open() -> None:
    half_made = record_function.__new__(record_function)
    ranges = OpenRanges()
    with record_function("open"):
        ranges.look()
        left = [ranges.are_left]
    ranges.look()
    left.append(ranges.are_left)
    assert half_made is not None
    assert left == [False, True]
