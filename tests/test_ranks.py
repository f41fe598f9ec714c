"""Ranks of one job: who waits for whom, and how that is said."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.ranks import LEAST_SHARE, find_waits
from overlapscope.analysis.results import Device
from overlapscope.report import build
from overlapscope.sources import expand, load
from overlapscope.trace import Kind, Trace
from overlapscope.views import ranks
from overlapscope.views.page import Page, Section
from tests.helpers import US, Host, Op, make_trace

TRACES = Path(__file__).parents[1] / "traces"
STEP = 100 * US


def rank(number: int, work: list[int], together: list[int]) -> Trace:
    """A rank that works so many us in each step and then waits in a collective until all have arrived."""
    ops, annotations = [], []
    for step, (mine, longest) in enumerate(zip(work, together, strict=True)):
        at = 1000 + step * STEP
        annotations.append(Host(f"ProfilerStep#{step}", at - 500, at - 100))
        ops.append(Op(Kind.COMPUTE, at, at + mine * US, launch=(at - 400, at - 390)))
        ops.append(Op(Kind.COMM, at + mine * US, at + longest * US + 2 * US, stream=20, launch=(at - 300, at - 290)))
    return make_trace(ops, annotations=annotations, rank=number)


def job(*work: list[int]) -> list[Section]:
    together = [max(step) for step in zip(*work, strict=True)]
    traces = [rank(number, mine, together) for number, mine in enumerate(work)]
    return [next(Page(build([analyze_trace(trace)])).sections()) for trace in traces]


def devices(sections: list[Section]) -> list[Device]:
    return [section.device for section in sections if section.device]


def real(name: str) -> list[Section]:
    found = [analyze_trace(load(path)) for path in expand([TRACES / name])]
    return [next(Page(build([one])).sections()) for one in found]


def named(sections: list[Section]) -> tuple[ranks.Rank, ...]:
    return ranks.named([(f"folder/{number}", section) for number, section in enumerate(sections)])


steps = st.lists(st.integers(1, 80), min_size=3, max_size=3)


@given(st.lists(steps, min_size=2, max_size=4))
def test_waiting_is_what_the_slowest_took_longer(work: list[list[int]]) -> None:
    waits = find_waits(devices(job(*work)))
    assert waits is not None and len(waits.steps) == 3
    longest = [max(step) for step in zip(*work, strict=True)]
    for mine, found in zip(work, waits.ranks, strict=True):
        assert found.waited_ns == sum(most - one for most, one in zip(longest, mine, strict=True)) * US
    assert sum(found.last_in for found in waits.ranks) == 3
    if waits.straggler is not None:
        slow = work[waits.straggler]
        came_last = sum(one == most for one, most in zip(slow, longest, strict=True))
        assert came_last >= 2
        others = [one.waited_ns for place, one in enumerate(waits.ranks) if place != waits.straggler]
        assert waits.lost_ns == sum(others) // len(others) >= LEAST_SHARE * waits.ranks[waits.straggler].span_ns


def test_the_rank_that_always_comes_last_is_the_straggler() -> None:
    sections = job([40, 40, 40], [70, 70, 70], [41, 40, 42])
    waits = find_waits(devices(sections))
    assert waits is not None and waits.straggler == 1
    said = ranks.who_waits(named(sections), waits)
    assert said.startswith("Rank 1 seems to be the straggler: it came last in 3 of 3 steps")
    assert "each of the others, on average, waited " in said and waits.lost_ns == (90 + 87) * US // 2


def test_ranks_that_take_turns_at_being_late_are_even() -> None:
    sections = job([40, 70, 40, 70], [70, 40, 70, 40])
    waits = find_waits(devices(sections))
    assert waits is not None and waits.straggler is None and waits.lost_ns == 0
    assert ranks.who_waits(named(sections), waits).startswith("The ranks are even in the 4 steps that all have")


def test_what_does_not_communicate_waits_for_nobody() -> None:
    sections = real("known_causes")[:3]
    assert find_waits(devices(sections)) is None
    assert "nothing can be said" in ranks.who_waits(named(sections), None)


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert find_waits(devices(job([40, 40, 40]))) is None


def test_the_straggler_of_the_recorded_job() -> None:
    sections = real("ddp")
    waits = find_waits(devices(sections))
    assert waits is not None and waits.straggler == 0
    assert 5_000_000 < waits.ranks[1].waited_ns < 6_000_000
    assert ranks.who_waits(named(sections), waits) == (
        "Rank 0 seems to be the straggler: it came last in 2 of 3 steps, and the other rank waited 5.7 ms (5.1 %) for "
        "it in the 3 steps that all have."
    )


def test_ranks_stand_in_their_order_with_one_unit_for_all() -> None:
    sections = real("ddp")[::-1]
    shown = named(sections)
    assert [one.name for one in shown] == ["rank 0", "rank 1"]
    table = ranks.table(shown, find_waits([one.device for one in shown]))
    assert [row.cells[0].value for row in table.rows] == [0, 1]
    titles = [field.title for field in table.fields]
    assert {"span, ms", "median step, ms", "exposed comm, ms", "trust"} <= set(titles)
    assert all(len(row.cells) == len(table.fields) for row in table.rows)


def test_traces_that_do_not_say_their_rank_go_by_their_names() -> None:
    shown = named(real("known_causes")[:2])
    assert [one.name for one in shown] == ["0", "1"]
