"""Tests of which steps are called unusual."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.average import find_outliers
from overlapscope.analysis.figures import Period
from overlapscope.base import columns
from overlapscope.trace.model import Kind
from tests.support.helpers import Host, Op, make_trace


def periods(*spans: int) -> tuple[Period, ...]:
    """Return steps of these lengths, each filled by one kernel."""
    ops, notes, at = [], [], 0
    for number, span in enumerate(spans):
        ops.append(Op(Kind.COMPUTE, at, at + span, launch=(10 * number + 1, 10 * number + 2)))
        notes.append(Host(f"ProfilerStep#{number}", 10 * number, 10 * number + 10))
        at += span
    steps = analyze_trace(make_trace(ops, annotations=notes)).result.devices[0].steps
    assert [step.span_ns for step in steps] == list(spans)
    return steps


@pytest.mark.parametrize(
    ("spans", "unusual"),
    [
        ((1000, 1000, 1000, 1000), []),
        ((1000, 1000, 1000, 9000), []),
        ((1000, 1010, 990, 1005, 1500), [4]),
        ((1000, 1010, 990, 1005, 400), [4]),
        ((1000, 1000, 1000, 1000, 1040), []),
        ((1000, 1000, 1000, 1000, 1050), [4]),
        ((1000, 1300, 700, 1100, 900, 1400), []),
        ((5000, 1000, 1010, 990, 1005, 5000), [0, 5]),
    ],
    ids=[
        "all alike",
        "too few to say",
        "one long",
        "one short",
        "within 5%",
        "just 5%, of steps that are all alike",
        "all of them vary",
        "several",
    ],
)
def test_what_is_unusual(spans: tuple[int, ...], unusual: list[int]) -> None:
    assert find_outliers(periods(*spans)).nonzero()[0].tolist() == unusual


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12))
def test_the_rule_is_the_one_in_the_docstring(spans: list[int]) -> None:
    middle = median(spans)
    away = [abs(span - middle) for span in spans]
    limit = 3 * 1.4826 * median(away)
    expected = [len(spans) >= 5 and a > limit and a >= 0.05 * middle for a in away]
    assert find_outliers(periods(*spans)).tolist() == expected


@given(st.lists(st.floats(-1e15, 1e15) | st.integers(-(1 << 50), 1 << 50), min_size=1, max_size=9))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_quantiles_are_those_of_numpy(share: float, values: list[float]) -> None:
    assert columns.quantile(np.array(values), share) == pytest.approx(np.quantile(np.array(values), share), abs=1)
