"""Quantities, metrics and aggregates: what budgets are made of."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlapscope.analysis.results import Device
from overlapscope.budgets.places import Series, aggregated, of_steps, of_window, series
from overlapscope.budgets.quantity import distinct, exact, parse, show
from overlapscope.budgets.settings import DEFAULT_FORBID, DEFAULT_RELATIVE, Budget, Narrowed
from overlapscope.budgets.verdicts import Subject, Unit
from overlapscope.catalog.measures import METRICS, Measure
from overlapscope.errors import ConfigError
from overlapscope.inputs import read_report
from overlapscope.rules import RULES

UNITS: tuple[Unit, ...] = ("ns", "pct", "gb_per_s")
NUMBERS = st.floats(min_value=0, max_value=1e15, allow_nan=False)
VALUES = st.lists(NUMBERS, min_size=1, max_size=30)
DDP = "traces/ddp"
OFFLOAD = "traces/laboratory/offload_pipeline/two_streams.trace.json.gz"
_SCALE = {"s": 9, "ms": 6, "us": 3, "ns": 0, "%": 0, "GB/s": 0}


def number(text: str) -> Decimal:
    """Return the number in a text, in the unit's smallest scale."""
    amount, _, unit = text.replace("%", " %").partition(" ")
    return Decimal(amount.replace(",", "")).scaleb(_SCALE[unit])


@given(value=NUMBERS, limit=NUMBERS, unit=st.sampled_from(UNITS))
@example(value=79.96, limit=80.0, unit="pct")
@example(value=79.99999999999999, limit=80.0, unit="pct")
@example(value=2_999_999.5, limit=3e6, unit="ns")
@example(value=5e-324, limit=0.0, unit="ns")
@example(value=99.99, limit=80.0, unit="pct")
def test_what_differs_looks_different_and_keeps_its_order(value: float, limit: float, unit: Unit) -> None:
    texts = distinct([value, limit], unit)
    first, second = map(number, texts)
    assert (first < second) == (value < limit)
    assert (first == second) == (value == limit)
    assert (texts[0] == texts[1]) == (value == limit)


@given(values=VALUES, unit=st.sampled_from(UNITS))
def test_what_is_not_nothing_is_not_written_as_nothing(values: list[float], unit: Unit) -> None:
    for value, text in zip(values, distinct(values, unit), strict=True):
        assert (number(text) == 0) == (value == 0)
        if unit == "pct":
            assert (number(text) == 100) == (value == 100)


@given(st.decimals(min_value=0, max_value=10_000, places=3))
def test_a_limit_that_is_written_is_shown_as_it_is_meant(limit: Decimal) -> None:
    assert number(show(parse(f"{limit}%", "pct"), "pct")) == limit
    assert number(show(parse(f"{limit} ms", "ns"), "ns")) == limit.scaleb(6)


@given(value=NUMBERS, unit=st.sampled_from(UNITS))
def test_an_exact_figure_can_be_read_back(value: float, unit: Unit) -> None:
    assert parse(exact(value, unit), unit) == value


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (38_806_710.0, "ns", "38.80671 ms"),
        (1e9, "ns", "1 s"),
        (999_999.0, "ns", "999.999 us"),
        (0.0, "ns", "0 ns"),
        (99.9951, "pct", "99.9951%"),
        (100, "pct", "100%"),
        (0.5, "gb_per_s", "0.5 GB/s"),
    ],
)
def test_a_limit_is_named_with_all_its_digits(value: float, unit: Unit, text: str) -> None:
    assert exact(value, unit) == text


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ((79.96, 80.0), "pct", ("79.96%", "80%")),
        ((12.34, 80.0), "pct", ("12.34%", "80%")),
        ((3_400_000.0, 3_000_000.0), "ns", ("3.4 ms", "3 ms")),
        ((912.5, 1_000_000.0), "ns", ("0.001 ms", "1 ms")),
        ((12.0, 7.0), "ns", ("12 ns", "7 ns")),
        ((41.26789, 40.0), "gb_per_s", ("41.3 GB/s", "40 GB/s")),
        ((12_345_678_901.0, 12e9), "ns", ("12.3 s", "12 s")),
    ],
)
def test_figures_read_well(values: tuple[float, float], unit: Unit, texts: tuple[str, str]) -> None:
    assert distinct(values, unit) == texts


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3 ms", "ns", 3e6),
        ("3ms", "ns", 3e6),
        ("2.5 us", "ns", 2500),
        ("2.5 µs", "ns", 2500),
        ("7 ns", "ns", 7),
        ("1 s", "ns", 1e9),
        ("80 %", "pct", 80),
        ("80%", "pct", 80),
        (80, "pct", 80),
        (79.5, "pct", 79.5),
        ("40 GB/s", "gb_per_s", 40),
        ("500 MB/s", "gb_per_s", 0.5),
    ],
)
def test_quantities_are_read(text: str | float, unit: Unit, value: float) -> None:
    assert parse(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("3", "ns", "'3' has no unit, and a time is needed; write it like \"3 ms\""),
        (3, "ns", '3 has no unit, and a time is needed; write it like "3 ms"'),
        ("3 min", "ns", "'3 min' has the unit 'min', and a time is needed; write it like \"3 ms\""),
        ("3 ms", "pct", "'3 ms' has the unit 'ms', and a percentage is needed; write it like \"80%\""),
        (
            "40 GiB/s",
            "gb_per_s",
            "'40 GiB/s' has the unit 'GiB/s', and a bandwidth is needed; write it like \"40 GB/s\"",
        ),
        ("fast", "ns", "'fast' is not a time; write it like \"3 ms\""),
        ("1e3 ms", "ns", "'1e3 ms' is not a time; write it like \"3 ms\""),
        ("-3 ms", "ns", "'-3 ms' is below zero, but a time cannot be negative"),
        (f"{'9' * 20} s", "ns", f"'{'9' * 20} s' is larger than a time can be; write it like \"3 ms\""),
        ("nan %", "pct", "'nan %' is not a percentage; write it like \"80%\""),
    ],
)
def test_what_is_not_a_quantity_is_reported(text: str | float, unit: Unit, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, unit)
    assert str(raised.value) == message


def evenly(values: list[float]) -> Series:
    return Series(tuple(values), (1,) * len(values), (1.0,) * len(values))


@given(values=VALUES, metric=st.sampled_from(sorted(METRICS)))
def test_aggregates_lie_between_the_best_and_the_worst(values: list[float], metric: str) -> None:
    for aggregate in ("median", "mean", "worst", "p0", "p25", "p90", "p100"):
        value = aggregated(Budget(metric=metric, aggregate=aggregate), evenly(values))
        assert min(values) <= value * (1 + 1e-12) and value * (1 - 1e-12) <= max(values)
    worst = min(values) if METRICS[metric].more_is_better else max(values)
    assert aggregated(Budget(metric=metric, aggregate="worst"), evenly(values)) == worst
    assert aggregated(Budget(metric=metric, aggregate="p100"), evenly(values)) == worst


def test_a_mean_leaves_out_what_is_unknown_and_weighs_the_rest() -> None:
    values = Series((None, 50.0, 100.0), (1, 1, 1), (0.0, 10.0, 30.0))
    assert aggregated(Budget(metric="hidden_copy_pct"), values) == 87.5


@given(values=VALUES, percent=st.integers(1, 100))
def test_a_percentile_is_what_so_many_steps_keep(values: list[float], percent: int) -> None:
    less, more = (
        aggregated(Budget(metric=metric, aggregate=f"p{percent}"), evenly(values))
        for metric in ("step_time", "efficiency_pct")
    )
    needed = percent * len(values) / 100
    assert sum(value <= less for value in values) >= needed
    assert sum(value >= more for value in values) >= needed
    assert {less, more} <= set(values)


@cache
def every_device() -> list[Device]:
    return [device for source in (DDP, OFFLOAD) for device in read_report([source]).devices]


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.metric)
def test_metrics_are_what_the_report_says(metric: Measure) -> None:
    """Each metric equals the corresponding sums in the report."""
    for device in every_device():
        whole = device.judged
        assert whole is not None
        [read] = series(of_window(device), metric, None).values
        expected = {
            "efficiency_pct": whole.overlap.efficiency_pct,
            "hidden_copy_pct": whole.overlap.hidden_copy_pct,
            "exposed_copy_time": whole.buckets.exposed_copy_ns,
            "exposed_comm_time": whole.buckets.exposed_comm_ns,
            "idle_time": whole.buckets.idle_ns,
            "step_time": whole.span_ns,
            "compute_time": whole.engines.compute_ns,
            "copy_time": whole.overlap.copy_ns,
        }
        if metric.metric in expected:
            assert read == expected[metric.metric]
        if metric.unit == "pct" and read is not None:
            assert 0 <= read <= 100


def test_shares_and_times_of_copies_belong_together() -> None:
    for device in every_device():
        steps = of_steps(device)
        each = {name: series(steps, metric, None).values for name, metric in METRICS.items()}
        for number, row in enumerate(steps.rows):
            values = {name: found[number] for name, found in each.items()}
            if device.steps[row].overlap.copy_ns:
                hidden, exposed = values["hidden_copy_pct"], values["exposed_copy_pct"]
                assert hidden is not None and exposed is not None
                assert hidden + exposed == pytest.approx(100)
            else:
                assert values["hidden_copy_pct"] is None
                assert values["exposed_copy_pct"] is None
            assert (values["host_stall_time"] or 0) <= (values["idle_time"] or 0)


def test_a_direction_has_its_own_copies() -> None:
    [device] = read_report([OFFLOAD]).devices
    samples = of_steps(device)
    whole, up, down = (series(samples, METRICS["copy_time"], way).numbers for way in (None, "h2d", "d2h"))
    for together, upload, other in zip(whole, up, down, strict=True):
        assert max(upload, other) <= together <= upload + other
        assert upload > 0 and other > 0


def test_bandwidth_of_steps_and_of_the_window_agree() -> None:
    [device] = read_report([OFFLOAD]).devices
    for direction in (None, "h2d", "d2h"):
        of_each = series(of_steps(device), METRICS["copy_bandwidth"], direction).numbers
        [whole] = series(of_window(device), METRICS["copy_bandwidth"], direction).numbers
        assert min(of_each) <= whole * 1.01 and whole * 0.99 <= max(of_each)


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        (Narrowed(), Subject(), True),
        (Narrowed(rank="0"), Subject(rank=0), True),
        (Narrowed(rank="[0-3]"), Subject(rank=3), True),
        (Narrowed(rank="[0-3]"), Subject(rank=13), False),
        (Narrowed(rank="0"), Subject(), False),
        (Narrowed(trace="rank0*"), Subject(source="a/b/rank0.json.gz"), True),
        (Narrowed(trace="rank0*"), Subject(source="a/rank01/x.json"), False),
        (Narrowed(range="for*"), Subject(scope="forward"), True),
        (Narrowed(range="*"), Subject(scope="steps"), False),
        (Narrowed(direction="h2d"), Subject(direction="d2h"), False),
        (Narrowed(device="1"), Subject(device=1), True),
    ],
)
def test_patterns(pattern: Narrowed, subject: Subject, fits: bool) -> None:
    assert pattern.matches(subject) is fits


def test_defaults_speak_of_what_there_is() -> None:
    assert list(DEFAULT_FORBID) == sorted(DEFAULT_FORBID)
    assert all(RULES[rule].severity == "warning" for rule in DEFAULT_FORBID)
    assert all(not METRICS[budget.metric].more_is_better for budget in DEFAULT_RELATIVE)


def test_meanings_are_sentences_to_be_continued() -> None:
    for metric in METRICS.values():
        assert not metric.meaning.endswith(".")
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.metric)
        assert metric.unit != "pct" or (metric.metric.endswith("_pct") and metric.divided_by is not None)
        assert metric.unit != "ns" or metric.metric.endswith(("_time", "_ms_per_step"))
