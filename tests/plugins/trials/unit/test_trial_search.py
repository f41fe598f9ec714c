"""Tests of a trial's runs and conclusions, with made-up programs whose steps are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.plugins.trials import measure, search
from overlapscope.plugins.trials.conduct import TrialFindings, summarize
from overlapscope.plugins.trials.measure import Timing, change
from overlapscope.plugins.trials.protocol import Facts, Loader, Optimizer, RankOutcome, RankResults, Setting, Sketch
from overlapscope.plugins.trials.result import Edit
from overlapscope.plugins.trials.sameness import sameness
from overlapscope.plugins.trials.search import AS_IS, Candidate, Planned, Run, Runs, Settings
from overlapscope.recorder.program_lines import CodeLine

SITE = CodeLine("/train.py", 3)
SAME = RankResults(digest="a", sketches=(Sketch("w", 1.0, (1.0, 0.0)),), loss=1.0)


# -- measuring ------------------------------------------------------------------------------------


def ran(step_ns: float, source: random.Random, steps: int = 20, scatter: float = 0.05) -> Timing:
    lengths = [round(step_ns * source.lognormvariate(0, scatter)) for _ in range(steps)]
    return measure.timing([RankOutcome(rank=0, ranks=1, all_steps=steps, complete=True, host_ns=tuple(lengths))])


@pytest.mark.parametrize("rounds", [2, 3, 6])
@pytest.mark.parametrize("between_runs", [0.0, 0.02])
def test_an_interval_holds_the_truth_in_about_95_of_100_trials(rounds: int, between_runs: float) -> None:
    source = random.Random(rounds)
    held = 0
    for _ in range(200):
        pairs = []
        for _ in range(rounds):
            slow = source.lognormvariate(0, 0.3)  # The machine in this round.
            step_ns = [1e7 * slow * part * source.lognormvariate(0, between_runs) for part in (1.0, 0.9)]
            pairs.append((ran(step_ns[0], source), ran(step_ns[1], source)))
        low, high = change(pairs).interval
        held += low <= -10 <= high
    # Four standard deviations of 200 throws below 95 %; an interval that is never narrower than either may hold more.
    assert held >= 200 * 0.95 - 4 * math.sqrt(200 * 0.95 * 0.05)


def timed(steps_ns: Sequence[float], compiled: tuple[int, ...] = ()) -> Timing:
    """Return a run with these steps, in some of which torch compiled."""
    count, lengths = len(steps_ns), tuple(map(round, steps_ns))
    ended = RankOutcome(rank=0, ranks=1, all_steps=count, complete=True, host_ns=lengths, compiled=compiled)
    return measure.timing([ended])


def unsteady(source: random.Random, step_ns: float = 1e7) -> Timing:
    """Return a run that is slower or faster by 10 % or so without a reason, whose steps resemble those before them."""
    slow, run = 0.0, source.lognormvariate(0, 0.1)
    lengths = [round(step_ns * run * math.exp(slow := 0.95 * slow + source.gauss(0, 0.02))) for _ in range(100)]
    return measure.timing([RankOutcome(rank=0, ranks=1, all_steps=100, complete=True, host_ns=tuple(lengths))])


@pytest.mark.parametrize("rounds", range(2, 7))
def test_of_100_changes_that_change_nothing_five_seem_to_however_unsteady_runs_are(rounds: int) -> None:
    source = random.Random(rounds)
    changes = [change([(unsteady(source), unsteady(source)) for _ in range(rounds)]) for _ in range(300)]
    claims = sum(match.over_runs is not None and not match.over_runs[0] <= 0 <= match.over_runs[1] for match in changes)
    assert claims <= 300 * 0.05 + 4 * math.sqrt(300 * 0.05 * 0.95)


def test_two_pairs_of_runs_that_are_clearly_apart_are_enough() -> None:
    step_ns = {AS_IS: (7.6e6, 8.0e6), (Setting("workers", "2"),): (4.4e6, 4.2e6)}
    runs = Runs(
        tuple(
            Run(Planned(settings, number), 1.0, Timing((length,)), (SAME,))
            for settings, lengths in step_ns.items()
            for number, length in enumerate(lengths, 1)
        )
    )
    assert texts(search.best(runs)) == ["workers (2)"]
    change = runs.change((Setting("workers", "2"),))
    assert change is not None and change.over_runs is not None
    assert change.over_runs[0] < -44.9 < change.over_runs[1] < 0


@pytest.mark.parametrize("rounds", [2, 3])
def test_many_sets_tell_the_noise_of_runs_sooner(rounds: int) -> None:
    source = random.Random(rounds)
    held, widths, alone = 0, 0.0, 0.0
    for _ in range(150):
        slow = [source.lognormvariate(0, 0.3) for _ in range(rounds)]
        sets = [
            {at: ran(1e7 * part * slow[at] * source.lognormvariate(0, 0.005), source) for at in range(rounds)}
            for part in (1.0, 0.9, 0.9, 0.8, 0.8)
        ]
        pairs = [(sets[0][at], sets[1][at]) for at in range(rounds)]
        low, high = change(pairs, measure.noise(sets)).interval
        held += low <= -10 <= high
        widths += high - low
        low, high = change(pairs).interval
        alone += high - low
    assert held >= 150 * 0.95 - 4 * math.sqrt(150 * 0.95 * 0.05)
    assert widths < alone


def test_one_round_has_no_noise_of_runs() -> None:
    assert measure.noise([{1: Timing((1e7,))}, {1: Timing((2e7,))}]) is None


def test_steps_alone_are_no_interval_over_runs() -> None:
    source = random.Random(0)
    single = change([(ran(1e7, source), ran(9e6, source))])
    assert single.over_runs is None
    assert single.within[0] < single.pct < single.within[1] < 0


def test_steps_that_drift_together_widen_the_interval_of_a_run() -> None:
    even = timed([10_000_000] * 100)
    drifting = change([(even, timed([10_000_000 + 1_000_000 * (number < 50) for number in range(100)]))])
    mixed = change([(even, timed([10_000_000 + 1_000_000 * (number % 2) for number in range(100)]))])
    assert drifting.pct == mixed.pct
    assert drifting.within[1] - drifting.within[0] > 5 * (mixed.within[1] - mixed.within[0])


def test_steps_that_are_long_in_every_run_do_not_widen_the_interval() -> None:
    # As of a program that saves images in each 16th step.
    source = random.Random(0)

    def saving(step_ns: float) -> Timing:
        return timed(
            [(300e6 if number % 16 == 5 else step_ns) * source.lognormvariate(0, 0.03) for number in range(26)]
        )

    compared = change([(saving(24e6), saving(9e6)) for _ in range(2)])
    assert compared.pct == pytest.approx(-30.5, abs=3)
    assert compared.interval[1] < 0


def test_steps_in_which_a_run_compiled_are_left_out_of_both() -> None:
    # At 80 the program evaluates for the first time, for a quarter of a second, and its model is compiled for it.
    before = timed([(270e6 if number == 80 else 20e6) for number in range(173)])
    after = timed([(6.5e9 if number == 80 else 8e6) for number in range(173)], compiled=(80,))
    assert after.step_ns == 8e6
    compared = change([(before, after), (before, after)])
    assert compared.pct == pytest.approx(-60)
    assert compared.interval[1] < 0


def test_a_run_that_compiles_in_most_steps_takes_as_long_as_it_takes() -> None:
    steps = [40e6 if number % 3 else 8e6 for number in range(99)]
    compiled = tuple(number for number in range(99) if number % 3)
    assert timed(steps, compiled=compiled) == timed(steps)


def test_a_job_is_as_slow_as_its_slowest_rank_by_the_clock_of_the_device() -> None:
    fast, slow = ((5_000_000,) * 20, (7_000_000,) * 20)
    ranks = [
        RankOutcome(rank=number, ranks=2, all_steps=40, complete=True, host_ns=(1,) * 20, device_ns=device)
        for number, device in enumerate((fast, slow))
    ]
    assert measure.timing(ranks).step_ns == 7_000_000


@given(st.lists(st.tuples(st.floats(1e3, 1e10), st.floats(1e3, 1e10)), min_size=1, max_size=10))
def test_a_change_and_its_reverse_tell_the_same(steps: list[tuple[float, float]]) -> None:
    pairs = [(Timing((before,)), Timing((after,))) for before, after in steps]
    there, back = change(pairs), change([(after, before) for before, after in pairs])
    assert (1 + there.pct / 100) * (1 + back.pct / 100) == pytest.approx(1, rel=1e-6)
    low, high = there.interval
    assert low <= there.pct <= high


# -- results --------------------------------------------------------------------------------------


def results(value: float, *, loss: float = 1.0, digest: str = "") -> tuple[RankResults, ...]:
    sketches = (Sketch("w", 1.0, (value, 0.0)), Sketch("count", 40.0, (40.0, 0.0)))
    return (RankResults(digest=digest or repr((value, loss)), sketches=sketches, loss=loss),)


UNCHANGED = [results(1.0), results(1.001), results(0.999)]


@pytest.mark.parametrize(
    ("changed", "unchanged", "expected"),
    [
        (results(1.001), UNCHANGED, "same"),
        (results(1.002), UNCHANGED, "within noise"),
        (results(1.1), UNCHANGED, "different"),
        (results(1.002, loss=2.0), UNCHANGED, "different"),
        (results(1.002, loss=math.nan), UNCHANGED, "different"),
        (results(1.002), UNCHANGED[:1], "unknown"),
        (results(1.002), [], "unknown"),
        ((), UNCHANGED, "unknown"),
    ],
)
def test_results_are_judged_by_what_unchanged_runs_differ_by(
    changed: tuple[RankResults, ...], unchanged: Sequence[tuple[RankResults, ...]], expected: str
) -> None:
    assert sameness(changed, unchanged) == expected


@pytest.mark.parametrize(("count", "factor"), [(1, 26), (8, 5), (32, 2), (0, 2)])
def test_few_numbers_may_differ_more_than_unchanged_runs_do(count: int, factor: int) -> None:
    """A tensor of `count` numbers, whose norm is 1, differs by 0.001 between unchanged runs."""

    def tensor(value: float) -> tuple[RankResults, ...]:
        sums = (1.0 + value, *(1.0,) * (count - 1))[:count] + (0.0,) * (32 - count)
        return (RankResults(digest=repr(value), sketches=(Sketch("w", 1.0, sums),), loss=1.0),)

    unchanged = [tensor(0.0), tensor(0.001)]
    assert sameness(tensor(-0.99 * factor * 0.001), unchanged) == "within noise"
    assert sameness(tensor(-1.01 * factor * 0.001), unchanged) == ("different" if count else "within noise")


def test_one_rank_that_differs_makes_a_difference() -> None:
    same, other = results(1.0)[0], results(2.0)[0]
    assert sameness((same, other), [(same, same), (same, same)]) == "different"


# -- which run comes next -------------------------------------------------------------------------

Truth = Mapping[str, float]
"""Factor by which each change shortens a step, by `Setting.text`."""


def pretend(truth: Truth, source: random.Random, failing: str = "", differing: str = "") -> Callable[[Planned], Run]:
    """Return a program whose step is 10 ms times the factors of its changes, and whose runs differ by 0.3 %."""

    def run(planned: Planned) -> Run:
        texts = [setting.text for setting in planned.settings]
        if failing in texts:
            return Run(planned, 1.0, failure="It exited with code 1: no.")
        step_ns = 1e7 * math.prod(truth.get(text, 1.0) for text in texts) * source.lognormvariate(0, 0.003)
        result_rows = results(1.5 if differing in texts else 1.0, digest="b" if planned.rounded else "")
        return Run(planned, 1.0, ran(step_ns, source, scatter=0.01), result_rows)

    return run


def tried(
    candidates: Sequence[Candidate], run: Callable[[Planned], Run], left_s: float = 1000
) -> tuple[Runs, Settings]:
    runs = Runs()
    while (following := search.climb(candidates, runs)[1]) is not None:
        runs = Runs((*runs.all, run(following)))
    kept, _ = search.climb(candidates, runs)
    while planned := search.rounds(runs, kept, left_s - len(runs.all)):
        runs = Runs((*runs.all, *map(run, planned)))
    return runs, kept


def texts(settings: Settings | None) -> list[str] | None:
    return None if settings is None else [setting.text for setting in settings]


ALL = (
    Candidate("workers", ("2", "4", "8"), rising=True),
    Candidate("pin"),
    Candidate("non-blocking"),
    Candidate("fused"),
)


def test_changes_that_pay_are_built_upon_and_recommended() -> None:
    truth = {"workers (2)": 0.8, "workers (4)": 0.7, "workers (8)": 0.7, "pin": 1.0, "non-blocking": 0.9, "fused": 1.0}
    runs, kept = tried(ALL, pretend(truth, random.Random(1)))
    assert texts(kept) == ["workers (4)", "pin", "non-blocking"]
    assert texts(search.best(runs)) == ["workers (4)", "pin", "non-blocking"]
    change = runs.change(kept)
    assert change is not None
    assert change.over_runs is not None
    assert change.over_runs[0] < -37 < change.over_runs[1]


def test_nothing_is_recommended_where_nothing_pays() -> None:
    runs, _ = tried(ALL, pretend({"workers (2)": 1.2}, random.Random(2)))
    assert search.best(runs) is None
    assert all("workers (4)" not in (texts(settings) or ()) for settings in runs.tried())


def test_a_change_that_makes_results_different_is_never_recommended_nor_built_upon() -> None:
    runs, kept = tried(
        ALL, pretend({"workers (2)": 0.1, "non-blocking": 0.8}, random.Random(3), differing="workers (2)")
    )
    assert texts(kept) == ["pin", "non-blocking"]
    assert texts(search.best(runs)) == ["pin", "non-blocking"]
    assert runs.results((Setting("workers", "2"),)) == "different"
    assert len(runs.of((Setting("workers", "2"),))) == 1


def test_a_difference_is_believed_only_beside_two_unchanged_runs_and_a_rounded_one() -> None:
    runs, _ = tried(ALL[:1], pretend({}, random.Random(4), differing="workers (2)"))
    planned = [run.planned for run in runs.all]
    assert planned[:2] == [Planned(AS_IS, 1), Planned((Setting("workers", "2"),), 1)]
    assert planned[2:4] == [Planned(AS_IS, 1, rounded=True), Planned(AS_IS, 0)]


def test_without_a_rounded_run_nobody_knows_what_a_difference_means() -> None:
    run = pretend({}, random.Random(4), differing="fused")
    fused = (Setting("fused"),)
    planned = [Planned(AS_IS, 1), Planned(fused, 1), Planned(fused, 2), Planned(AS_IS, 2)]
    runs = Runs(tuple(map(run, planned)))
    assert runs.results(fused) == "unknown"
    assert Runs((*runs.all, run(Planned(AS_IS, 1, rounded=True)))).results(fused) == "different"


def test_results_that_are_the_same_take_no_rounded_run() -> None:
    runs, _ = tried(ALL, pretend({}, random.Random(4)))
    assert not any(run.planned.rounded for run in runs.all)


def test_a_change_that_fails_is_not_run_again() -> None:
    runs, kept = tried(ALL, pretend({"fused": 0.9}, random.Random(5), failing="pin"))
    assert texts(kept) == ["non-blocking", "fused"]
    assert len(runs.of((Setting("pin"),))) == 1
    assert runs.failed((Setting("pin"),)) == "It exited with code 1: no."


def test_rounds_are_interleaved_and_turn_around() -> None:
    runs, _ = tried((Candidate("fused"),), pretend({"fused": 0.9}, random.Random(6)))
    order = [(run.planned.round, len(run.planned.settings)) for run in runs.all[:6]]
    assert order == [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]


def test_rounds_end_when_intervals_are_narrow_or_time_is_up() -> None:
    runs, _ = tried((Candidate("fused"),), pretend({"fused": 0.9}, random.Random(7)))
    assert len(runs.all) <= 2 * search.MAX_ROUNDS
    short, _ = tried((Candidate("fused"),), pretend({"fused": 0.9}, random.Random(7)), left_s=5)
    assert len(short.all) == 4


def test_with_little_time_the_rounds_are_about_the_answer() -> None:
    truth = {"workers (2)": 0.8, "workers (4)": 0.7, "fused": 0.9}
    runs, kept = tried(ALL, pretend(truth, random.Random(8)), left_s=9)
    assert [run.planned.settings for run in runs.all if run.planned.round == 2] == [kept, AS_IS]


def test_a_fast_set_is_confirmed_although_its_first_run_took_the_time_that_was_left() -> None:
    # A set that compiles takes much longer the first time, so the ladder ends before its results are judged.
    graph = (Setting("graph", "compile"),)
    run = pretend({"graph (compile)": 0.4}, random.Random(9))
    changed = replace(run(Planned(graph, 1)), wall_s=60.0, results=results(1.0, digest="c"))
    runs = Runs((run(Planned(AS_IS, 1)), changed))
    planned = search.rounds(runs, AS_IS, 10.0)
    assert planned == search.rounds(runs, AS_IS, 1000.0)
    assert planned == (Planned(AS_IS, 1, rounded=True), Planned(graph, 2), Planned(AS_IS, 2))
    again = replace(run(planned[1]), results=results(1.0, digest="c"))
    runs = Runs((*runs.all, run(planned[0]), again, run(planned[2])))
    assert search.best(runs) == graph


def test_a_slow_set_is_not_run_again_without_time_for_it() -> None:
    graph = (Setting("graph", "compile"),)
    run = pretend({"graph (compile)": 1.1}, random.Random(9))
    assert search.rounds(Runs((run(Planned(AS_IS, 1)), run(Planned(graph, 1)))), AS_IS, 0.5) == ()


def test_the_fewest_changes_are_recommended_of_those_that_are_as_fast() -> None:
    settings = [(Setting("fused"),), (Setting("fused"), Setting("graph", "compile"))]
    steps = {AS_IS: (100, 101, 99), settings[0]: (90, 91, 89), settings[1]: (90, 90.9, 89)}
    runs = Runs(
        tuple(
            Run(Planned(changes, number + 1), 1.0, Timing((step * 1e5,)), (SAME,))
            for changes, lengths in steps.items()
            for number, step in enumerate(lengths)
        )
    )
    assert search.best(runs) == settings[0]
    assert search.best(runs, racing=[settings[0]]) == settings[1]


# -- how many steps, and which changes fit ----------------------------------------------------------


def test_a_run_times_about_three_seconds() -> None:
    assert measure.plan(30e6, None) == measure.StepPlan(20, 100)
    assert measure.plan(1e6, None) == measure.StepPlan(20, 300)
    assert measure.plan(3e9, None) == measure.StepPlan(20, 20)
    assert measure.plan(3e9, 50) == measure.StepPlan(20, 50)


def test_batches_that_workers_have_made_while_a_step_was_compiled_are_used_up_before_steps_are_timed() -> None:
    assert measure.plan(30e6, None, workers=4) == measure.StepPlan(20, 100)
    assert measure.plan(30e6, None, workers=16) == measure.StepPlan(37, 100)


def test_a_step_is_told_beside_the_one_as_it_is_though_the_machine_slows_down() -> None:
    fused = (Setting("fused"),)
    steps = {AS_IS: (100.0, 100.1, 200.0), fused: (90.0, 90.1)}
    runs = tuple(
        Run(Planned(changes, number + 1), 1.0, Timing((step * 1e5,)), (SAME,))
        for changes, lengths in steps.items()
        for number, step in enumerate(lengths)
    )
    facts = Facts(cuda=False, cpus=1)
    findings = TrialFindings(facts, 1, measure.SURVEY, [Candidate("fused")], [], Runs(runs))
    edit = Edit(diff="", advice=())
    trial = summarize(findings, "", predicted={}, edited=lambda _: edit, keep=False, interrupted=False, wall_s=1)
    assert trial.changes[0].step_ns is not None
    assert trial.changes[0].step_ns / trial.baseline_step_ns == pytest.approx(0.9, rel=1e-3)


def test_a_program_without_results_is_not_repeatable() -> None:
    runs = Runs((Run(Planned(AS_IS, 1), 1.0, Timing((1e6,))),))
    findings = TrialFindings(Facts(cuda=False, cpus=1), 1, measure.SURVEY, [], [], runs)
    edit = Edit(diff="", advice=())
    trial = summarize(findings, "", predicted={}, edited=lambda _: edit, keep=False, interrupted=False, wall_s=1)
    assert trial.repeatable is False


@pytest.mark.parametrize(("steps", "warmup", "timed"), [(16, 5, 10), (30, 10, 19), (200, 20, 100)])
def test_a_short_program_warms_up_less(steps: int, warmup: int, timed: int) -> None:
    assert measure.shortened(measure.StepPlan(20, 100), steps) == measure.StepPlan(warmup, timed)


def test_too_few_steps_are_counted() -> None:
    with pytest.raises(UsageError, match=r"made 15 steps, and at least 16 are needed"):
        measure.shortened(measure.StepPlan(20, 100), 15)


def loader(**fields: object) -> Loader:
    facts = {"iterable": False, "num_workers": 0, "pin_memory": False, "on_gpu": False, **fields}
    return Loader(site=SITE, loop=SITE, **facts)  # type: ignore[arg-type]


def test_a_program_on_a_cpu_is_offered_workers_and_a_fused_optimizer() -> None:
    facts = Facts(
        cuda=False,
        cpus=6,
        loaders=(loader(),),
        optimizers=(Optimizer(site=SITE, name="AdamW", takes_fused=True, fused=False),),
    )
    fitting, left_out = search.candidates(facts, 1, ())
    assert fitting == [Candidate("workers", ("2", "4", "6"), rising=True), Candidate("fused")]
    assert {omitted.change: omitted.reason for omitted in left_out}["pin"] == "The program uses no GPU."


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(cuda=True, cpus=8), "Its steps take no batches from a DataLoader."),
        (
            Facts(cuda=True, cpus=8, loaders=(loader(num_workers=8),)),
            "Its DataLoader has 8 workers, for 8 CPUs.",
        ),
        (Facts(cuda=True, cpus=1, loaders=(loader(),)), "Each process has only one CPU."),
        (Facts(cuda=True, cpus=8, loaders=(loader(iterable=True),)), "IterableDataset"),
        (Facts(cuda=True, cpus=8, loaders=(loader(on_gpu=True),)), "makes batches on the GPU"),
    ],
)
def test_workers_are_left_out_with_a_reason(facts: Facts, reason: str) -> None:
    fitting, left_out = search.candidates(facts, 1, ("workers",))
    assert fitting == []
    assert reason in left_out[0].reason


def test_a_rank_without_a_cpu_of_its_own_is_not_said_to_have_none() -> None:
    _, [workers] = search.candidates(Facts(cuda=True, cpus=2, loaders=(loader(num_workers=1),)), 4, ("workers",))
    assert workers.reason == "Its DataLoader has 1 worker, for 1 CPU."


def test_changes_of_the_host_are_tried_only_where_they_can_gain() -> None:
    changes = ("gc", "threads")

    def fit(**facts: Any) -> dict[str, str]:
        fitting, left_out = search.candidates(Facts(**{"cuda": False, "cpus": 4, **facts}), 2, changes)
        return {item.change: item.values[0] for item in fitting} | {item.change: item.reason for item in left_out}

    assert fit(gc_pct=0.2, threads=2) == {
        "gc": "Python's garbage collector takes 0.2% of its steps.",
        "threads": "Torch uses 2 threads, for 2 CPUs.",
    }
    assert fit(gc_pct=12.0, threads=64) == {"gc": "", "threads": "2"}


def test_only_what_is_asked_for_is_tried() -> None:
    facts = Facts(cuda=False, cpus=4, loaders=(loader(),))
    fitting, left_out = search.candidates(facts, 1, ("pin", "workers"))
    assert [item.change for item in fitting] == ["workers"] and [omitted.change for omitted in left_out] == ["pin"]
