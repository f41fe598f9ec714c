"""Periods of sequences, and the steps of recordings that mark none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.results import Outside
from overlapscope.base.recurrence import Recurrence, find_recurrence
from overlapscope.commands import main
from overlapscope.reading.own_period import periodic_steps
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import TRACES, Host, Op, make_trace
from tests.support.recordings import trace_of
from tests.support.stepped_traces import write_steps

LAYER = [1, 2, 3, 4, 5]
STEP = [10, *LAYER * 6, 11, 12, *[6, 7, 8, 9, 9] * 6, 13, 13, 14]
"""A training step with six layers, whose symbols outside layers occur once or twice."""


def find(symbols: list[int], marks: tuple[list[int], ...] = ()) -> Recurrence | None:
    pause = np.zeros(len(symbols), np.int64)
    return find_recurrence(np.array(symbols, np.int64), pause, [np.array(places) for places in marks])


def shortest_period(symbols: list[int]) -> int:
    """Return the least distance at which a sequence repeats from start to end, by trying all."""
    return next(n for n in range(1, len(symbols) + 1) if symbols[n:] == symbols[: len(symbols) - n])


@given(
    unit=st.lists(st.integers(0, 5), min_size=2, max_size=12),
    repeats=st.integers(6, 12),
    start_up=st.lists(st.integers(6, 9), max_size=10),
)
def test_the_period_is_that_of_brute_force(unit: list[int], repeats: int, start_up: list[int]) -> None:
    period = shortest_period(unit * 3)
    result = find([*start_up, *unit * repeats])
    if period == 1:
        assert result is None
        return
    assert result is not None and result.length % period == 0
    assert {*np.diff(result.bounds).tolist()} == {result.length}
    assert result.starts[0] >= len(start_up)
    assert result.regular == pytest.approx(1)


@given(symbols=st.lists(st.integers(0, 40), max_size=200))
def test_units_lie_within_any_sequence_one_after_another(symbols: list[int]) -> None:
    period = find(symbols)
    if period is not None:
        assert (np.diff(period.bounds) > 0).all()
        assert period.starts[0] >= 0 and period.end <= len(symbols)
        assert 2 * (period.end - period.starts[0]) >= len(symbols)
        assert 0.7 <= period.regular <= 1


@pytest.mark.parametrize("repeats", [3, 4, 20, 200])
def test_a_step_is_the_unit_and_not_a_layer(repeats: int) -> None:
    period = find([20, 21, 22, *STEP * repeats])
    assert period is not None
    assert (period.length, len(period.starts), period.starts[0]) == (len(STEP), repeats, 3)


def test_a_token_is_the_unit_though_nearly_all_of_it_are_layers() -> None:
    token = [10, *LAYER * 32, 11, 12, 13]
    period = find(token * 30)
    assert period is not None and (period.length, len(period.starts)) == (len(token), 30)


def test_a_log_every_tenth_step_does_not_make_a_longer_unit_if_steps_are_marked() -> None:
    logged = [*STEP * 10, 30] * 6
    marks = [at for at, symbol in enumerate(logged) if symbol == 14]
    period = find(logged, (marks, []))
    assert period is not None and period.length == len(STEP) and len(period.starts) >= 59


def test_a_model_of_many_layers_is_the_unit_though_its_head_is_nearly_nothing() -> None:
    request = [*STEP * 10, 30]
    period = find(request * 6)
    assert period is not None and period.length == len(request)


def test_an_evaluation_between_steps_does_not_hide_them() -> None:
    evaluation = [*[10, *LAYER * 6, 15] * 4]
    period = find([*STEP * 20, *evaluation, *STEP * 23])
    assert period is not None and period.length == len(STEP) and len(period.starts) >= 41
    assert period.regular < 1


def test_the_outer_of_nested_periods_is_the_unit() -> None:
    iteration = [*STEP * 5, 40, 41, 42, 43, 44, 45]
    period = find(iteration * 8)
    assert period is not None and period.length == len(iteration) and len(period.starts) >= 7


def test_a_unit_holds_no_more_than_one_iteration_by_its_marks() -> None:
    epoch = [*STEP * 5, 40, 41, 42, 43, 44, 45]
    begins = [at for at in range(len(epoch) * 8) if at % len(epoch) in range(0, 5 * len(STEP), len(STEP))]
    period = find(epoch * 8, (begins, begins))
    assert period is not None and period.length == len(STEP)


def test_a_unit_begins_after_the_longest_pause() -> None:
    symbols = np.array(STEP * 19)
    pause = np.where(np.arange(len(symbols)) % len(STEP) == 32, 100, 1)
    recurrence = find_recurrence(symbols, pause)
    assert recurrence is not None and (recurrence.starts % len(STEP) == 32).all() and len(recurrence.starts) == 18


@pytest.mark.parametrize("symbols", [[], [1], [7] * 500, list(range(400)), STEP, STEP * 2])
def test_what_does_not_repeat_has_no_period(symbols: list[int]) -> None:
    assert find(symbols) is None


# -- recordings -----------------------------------------------------------------------------------


def unmarked(trace: Trace) -> Trace:
    return replace(trace, annotations=trace.annotations.take(~is_step(trace.annotations)), warm_up_steps=0)


@dataclass(frozen=True)
class Same:
    """A recording whose period is its step."""

    file: str
    launches: int


SAME = [
    Same("gpt2_train.json.gz", 1284),
    Same("ddp/rank0.json.gz", 1066),
    Same("further/kv_decode/on_demand.json.gz", 115),
    Same("further/training/naive.json.gz", 80),
    Same("further/loss_item/item.json.gz", 88),
    Same("mixed_workloads/model_on_two_devices.json.gz", 41),
    Same("second/generate/graph.json.gz", 2),
    Same("second/lstm/eager.json.gz", 73),
    Same("jax/late.xplane.pb", 2),
]


@pytest.mark.parametrize("recording", SAME, ids=lambda same: same.file)
def test_steps_without_their_marks_are_found_again(recording: Same) -> None:
    marked = trace_of(TRACES / recording.file)
    result = periodic_steps(unmarked(marked))
    assert result.period is not None and result.period.length == recording.launches
    notes = result.annotations
    steps = notes.take(is_step(notes))
    true = marked.annotations.take(is_step(marked.annotations))
    assert len(true) - 1 <= len(steps) <= len(true)
    # Steps begin at the same place within each true step: that is the phase.
    calls = np.unique(marked.gpu_ops.launch[marked.gpu_ops.launch >= 0])
    launched = marked.runtime_calls.start_ns[calls]
    step = np.searchsorted(true.start_ns, steps.start_ns, side="right") - 1
    place = np.searchsorted(launched, steps.start_ns) - np.searchsorted(launched, true.start_ns[np.maximum(step, 0)])
    assert len({*place.tolist()}) == 1


def test_marked_steps_are_kept() -> None:
    trace = trace_of(TRACES / "gpt2_train.json.gz")
    assert periodic_steps(trace) is trace


def kernel(name: str, start: int, length: int) -> Op:
    return Op(Kind.COMPUTE, start, start + length, launch=(start, start + 1), name=name)


def test_start_up_lies_outside_the_steps() -> None:
    busy = [kernel("init", 10 * n, 9) for n in range(5)]
    steps = [kernel(name, 100 * n + 50 + 20 * k, 15) for n in range(8) for k, name in enumerate("abcd")]
    trace = periodic_steps(make_trace([*busy, *steps]))
    assert trace.period is not None and (trace.period.length, trace.period.repeats) == (4, 8)
    device = analyze_trace(trace).devices[0].result
    assert device.lead_in_ns == 0 and device.outside == Outside(
        unmeasured_ns=0, before_ns=50, after_ns=0, h2d_bytes=0, d2h_bytes=0
    )
    assert [step.span_ns for step in device.steps[:-1]] == [100] * 7


def test_cpu_ops_that_repeat_are_steps_without_a_gpu() -> None:
    ops = [Host(name, 100 * n + 20 * k, 100 * n + 20 * k + 15) for n in range(9) for k, name in enumerate("abcd")]
    host = analyze_trace(periodic_steps(make_trace(cpu_ops=ops))).result.host
    assert host is not None and host.by_steps
    assert [step.span_ns for step in host.steps] == [100] * 8 + [75]


def test_the_report_says_what_its_steps_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_steps(tmp_path / "a.json", marked=False)
    assert main(["analyze", path]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Steps were found by what repeats: every 2 kernel launches repeat, 8 times; 100% regular." in out
    assert "They cover 99% of the GPU's recording." in out and "ProfilerStep" not in out


def test_the_report_says_how_much_steps_differ_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_steps(tmp_path / "a.json", slow={2: 3000.0})
    assert main(["analyze", path]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "in each step of 1.33 ms, " in out
    assert "All figures are averages of 7 steps, which take 0.90 to 3.90 ms (900 us in the median)." in out
    assert "1 of them takes over 1.5 times the median, mostly because of compute (3.00 ms more)." in out
