"""Tests of whether the recorded steps are the program's usual ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Check
from overlapscope.trace.model import Kind, PlainSteps, TimedSteps
from tests.support.helpers import MS, Host, Op, make_trace, various
from tests.support.recordings import analysis_of

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
US = 1_000


def check(
    steps_ms: Sequence[float],
    before: Sequence[float] = (),
    after: Sequence[float] = (),
    loader_ms: Sequence[float] | None = None,
    **more: Any,
) -> Check:
    """Return the check on a trace with steps of these lengths; `loader_ms` is how long each waits for its batch."""
    ops, notes, at = [], [], 0
    for number, length in enumerate(steps_ms):
        end = at + round(length * MS)
        ops.append(Op(Kind.COMPUTE, at + 50 * US, end, launch=(at + 10 * US, at + 20 * US)))
        notes.append(Host(f"ProfilerStep#{number}", at, end))
        if loader_ms is not None:
            notes.append(Host(LOADER, at, at + round(loader_ms[number] * MS)))
        at = end
    sides = [TimedSteps(device_ns=tuple(round(ms * MS) for ms in side)) for side in (before, after)]
    plain = PlainSteps(before=sides[0], after=sides[1])
    trace = make_trace(ops, annotations=notes, plain_steps=plain, **more)
    (checks,) = (check for check in analyze_trace(trace).result.trust.checks if check.id == "steady-state")
    return checks


EVEN = [10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0]


def test_even_steps_as_long_as_plain_ones_pass() -> None:
    assert check(EVEN).status == "ok"
    assert check(EVEN, EVEN, EVEN).status == "ok"


def test_recording_makes_a_program_slower_and_that_is_not_a_reason_to_warn() -> None:
    assert check([1.6 * ms for ms in EVEN], EVEN, EVEN).status == "ok"


def test_a_loaders_queue_that_was_drained_while_it_was_recorded() -> None:
    result = check([61.9] * 6, [93.9, 93.0, 95.0] * 4, [94.0, 93.5, 94.1] * 4, loader_ms=[0.05] * 6)
    assert result.status == "warn" and "61.90 ms" in result.detail and "DataLoader" in result.detail
    assert "--active" in result.detail


def test_recorded_steps_shorter_than_plain_ones_without_a_loader() -> None:
    assert "clock" in check(EVEN, [11.0] * 10, [11.0] * 10).detail


def test_plain_steps_on_one_side_are_enough() -> None:
    assert check(EVEN, after=[12.0, 12.1, 11.9, 12.0]).status == "warn"


def test_a_difference_within_the_plain_steps_spread_is_none() -> None:
    uneven = [9.0, 14.0, 9.5, 13.0, 10.0, 14.5, 12.0, 9.2]
    assert check(EVEN, uneven, uneven).status == "ok"
    assert check(EVEN, [10.2] * 10, [10.2] * 10).status == "ok", "below 3%"


def test_too_few_plain_steps_say_nothing() -> None:
    assert check(EVEN, [20.0, 20.0], [20.0]).status == "ok"


def test_steps_with_a_trend() -> None:
    result = check([10, 11, 12, 13, 14, 15, 16])
    assert result.status == "warn" and "longer" in result.detail
    assert "shorter" in check([16, 15, 14, 13, 12]).detail


@pytest.mark.parametrize(
    "steps_ms",
    [
        [10, 11, 12, 13],  # too few
        [10.0, 10.1, 10.2, 10.3, 10.4, 10.5],  # too little
        [15, 10, 10.1, 9.9, 10, 10.1, 10],  # one step out of line
        [10, 13, 10, 13, 10, 13, 10, 13],  # in turn
    ],
)
def test_steps_without_one(steps_ms: list[float]) -> None:
    assert check(steps_ms).status == "ok"


def test_plain_steps_that_changed_meanwhile() -> None:
    result = check(EVEN, [9.0, 9.1, 9.0, 9.0], [9.5, 9.6, 9.5, 9.5])
    assert result.status == "warn" and "9.03 ms" in result.detail and "9.53 ms" in result.detail
    assert check(EVEN, [9.0, 9.6, 9.1, 9.5], [9.5, 9.1, 9.6, 9.2]).status == "ok"


def test_a_loader_whose_queue_ran_empty() -> None:
    result = check([10] * 8, loader_ms=[0, 0, 0, 0, 0, 3, 3, 3])
    assert result.status == "warn" and "5 steps" in result.detail and "--wait" in result.detail
    assert check([10] * 8, loader_ms=[3] * 8).status == "ok", "it was always waited for"
    assert check([10] * 8, loader_ms=[0, 0, 0, 3, 0, 0, 0, 3]).status == "ok", "every fourth batch takes long"


def test_a_healthy_loader_passes_and_is_told_what_cannot_be_seen() -> None:
    result = check(EVEN, loader_ms=[0] * 7)
    assert result.status == "ok" and "DataLoader" in result.detail
    assert "DataLoader" not in check(EVEN, EVEN, EVEN, loader_ms=[0] * 7).detail
    assert "DataLoader" not in check([10] * 30, loader_ms=[0] * 30).detail


def test_thousands_of_steps_are_compared_in_no_time() -> None:
    assert "longer" in check(list(np.linspace(0.5, 1, 6000))).detail
    assert check([1.0] * 6000).status == "ok"


def test_warm_up_steps_are_not_judged() -> None:
    assert check([30, 25, *EVEN], warm_up_steps=2).status == "ok"


def test_random_steps_hardly_ever_have_a_trend() -> None:
    random = np.random.default_rng(7)
    statuses = [check(list(random.normal(10, 2, 8).clip(1))).status for _ in range(100)]
    assert statuses.count("warn") <= 5


@pytest.mark.parametrize("path", various(), ids=lambda path: path.stem)
def test_no_bundled_recording_trips(path: Any) -> None:
    checks = analysis_of(path).result.trust.checks
    assert all(check.status == "ok" for check in checks if check.id == "steady-state")
