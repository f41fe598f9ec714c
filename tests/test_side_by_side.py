"""Two traces compared: what adds up, what is gone or new, and when they are not comparable."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.spans import median_step
from overlapscope.report import build
from overlapscope.sources import load
from overlapscope.trace import Kind, Trace
from overlapscope.views.page import Page, Section
from overlapscope.views.side_by_side import SideBySide, sentence, side_by_side
from tests.helpers import MS, Host, Op, make_trace

TRACES = Path(__file__).parents[1] / "traces"
NAMES = [
    "gpt2_train.json.gz",
    "pipeline_1stream.json.gz",
    "pipeline_3stream.json.gz",
    "streamed0_pinned0.json.gz",
    "ddp/rank0.json.gz",
    "known_causes/pageable_memory.json.gz",
]


@cache
def section(name: str) -> Section:
    return section_of(load(TRACES / name))


def section_of(trace: Trace) -> Section:
    return next(Page(build([analyze_trace(trace)])).sections())


def compare(before: str, after: str) -> SideBySide:
    compared = side_by_side(section(before), section(after))
    assert compared is not None
    return compared


def train(steps: int, *, copy: int = 0, compute: int = MS) -> Trace:
    """Steps of a kernel with a copy before it, on one stream."""
    ops, annotations = [], []
    for step in range(steps):
        at = MS + step * (copy + compute)
        annotations.append(Host(f"ProfilerStep#{step}", at - 900, at - 100 + copy + compute))
        if copy:
            ops.append(Op(Kind.H2D, at, at + copy, launch=(at - 800, at - 790), call="cudaMemcpyAsync"))
        ops.append(Op(Kind.COMPUTE, at + copy, at + copy + compute, launch=(at - 700, at - 690)))
    return make_trace(ops, annotations=annotations)


@pytest.mark.parametrize("before", NAMES)
@pytest.mark.parametrize("after", NAMES)
def test_buckets_add_up_on_both_sides(before: str, after: str) -> None:
    compared = compare(before, after)
    assert sum(part.before_ns for part in compared.parts) == compared.spans.before_ns
    assert sum(part.after_ns for part in compared.parts) == compared.spans.after_ns
    assert sum(part.change_ns for part in compared.parts) == compared.spans.change_ns
    assert compared.shown_ns == max(compared.spans.before_ns, compared.spans.after_ns)
    assert sentence(compared).endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_no_different_from_itself(name: str) -> None:
    compared = compare(name, name)
    assert all(part.change_ns == 0 for part in compared.parts)
    assert all(figure.before_pct == figure.after_pct for figure in compared.figures)
    assert {change.standing for change in compared.findings} <= {"in both"}
    assert sentence(compared).endswith("is as long as before.")


@pytest.mark.parametrize("before", NAMES[:3])
@pytest.mark.parametrize("after", NAMES[2:5])
def test_the_other_way_round_everything_is_mirrored(before: str, after: str) -> None:
    one, other = compare(before, after), compare(after, before)
    mirrored = {"gone": "new", "new": "gone", "in both": "in both"}
    assert [part.change_ns for part in one.parts] == [-part.change_ns for part in other.parts]
    assert sorted((c.rule, mirrored[c.standing]) for c in one.findings) == sorted(
        (c.rule, c.standing) for c in other.findings
    )
    assert one.starts_ns == other.starts_ns[::-1]


def test_every_finding_of_either_side_is_there_once() -> None:
    before, after = section("pipeline_1stream.json.gz"), section("pipeline_3stream.json.gz")
    compared = compare("pipeline_1stream.json.gz", "pipeline_3stream.json.gz")
    assert [c.before for c in compared.findings if c.before] == sorted(
        before.findings, key=lambda finding: (-finding.cost_ns, finding.rule)
    )
    assert {c.after.rule for c in compared.findings if c.after} == {finding.rule for finding in after.findings}
    assert {c.rule: c.standing for c in compared.findings}["one-way-copies"] == "gone"


def test_the_median_step_stands_for_each() -> None:
    compared = side_by_side(section_of(train(5, copy=MS)), section_of(train(5, compute=2 * MS)))
    assert compared is not None and compared.basis == "step"
    assert compared.spans.before_ns == compared.spans.after_ns == 2 * MS
    copy = next(part for part in compared.parts if part.name == "exposed copy")
    assert (copy.before_ns, copy.after_ns, copy.change_pct) == (MS, 0, -100.0)
    assert compared.doubts == ()


def test_steps_of_equal_length_are_told_by_the_earliest_middle_one() -> None:
    device = section_of(train(4)).device
    assert device is not None and median_step(device) == device.steps[1]


def test_without_steps_whole_windows_are_compared_and_that_is_said() -> None:
    compared = side_by_side(section_of(train(5)), section_of(make_trace([Op(Kind.COMPUTE, 0, MS, launch=(-9, -8))])))
    assert compared is not None and compared.basis == "window"
    assert "whole windows are compared" in " ".join(compared.doubts)


def test_another_number_of_steps_is_a_reason_to_be_careful() -> None:
    compared = side_by_side(section_of(train(5)), section_of(train(6)))
    assert compared is not None and compared.doubts == (
        "They have 5 steps and 6 steps: the costs of findings, which are of whole windows, cannot be compared.",
    )


def test_another_gpu_is_a_reason_to_be_careful() -> None:
    one = section("gpt2_train.json.gz")
    trace = load(TRACES / "gpt2_train.json.gz")
    other = section_of(replace(trace, device_names=dict.fromkeys(trace.device_names, "NVIDIA A100 <b>")))
    compared = side_by_side(one, other)
    assert compared is not None
    assert "different GPUs (NVIDIA H200 and NVIDIA A100 <b>)" in compared.doubts[0]


def test_an_unusable_trace_is_not_compared() -> None:
    assert side_by_side(section("gpt2_train.json.gz"), section_of(make_trace())) is None


def test_what_changed_most_is_named_only_where_it_is_most_of_the_change() -> None:
    assert sentence(compare("pipeline_1stream.json.gz", "pipeline_3stream.json.gz")) == (
        "The median step is 50.9 % shorter; most of that is exposed copy."
    )
    compared = side_by_side(section_of(train(5)), section_of(train(5, copy=MS // 2, compute=MS + MS // 2)))
    assert compared is not None
    assert sentence(compared) == "The median step is 100 % longer."
