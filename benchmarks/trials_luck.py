"""False claims of `overlapscope try` in trials of made-up programs.

    python -m benchmarks.trials_luck docs/evaluation/try-intervals.md

Runs differ from each other for no reason, and steps are like those before them. The simulation calls the command's
functions: `measure.change` for two sets of runs, `search` for whole trials.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping
from pathlib import Path

from overlapscope.plugins.trials import measure, search
from overlapscope.plugins.trials.measure import Timing, change
from overlapscope.plugins.trials.protocol import RankOutcome, RankResults
from overlapscope.plugins.trials.search import AS_IS, Candidate, Planned, Run, Runs

PAIRS, TRIALS = 1000, 200
STEPS, LIKE_THE_LAST, STEP_SCATTER = 100, 0.95, 0.02
DRIFTS = (0.003, 0.02, 0.1)
BUDGETS = (8, 24, 60)
SAME = (RankResults(digest="same", sketches=(), loss=1.0),)
CANDIDATES = (
    Candidate("workers", ("2", "4", "8", "16"), rising=True),
    Candidate("pin"),
    Candidate("non-blocking"),
    Candidate("prefetch"),
    Candidate("graph", ("compile", "capture")),
    Candidate("fused"),
)
PAGE = """# How often a trial claims what is not true

`overlapscope try` times a program with and without changes in a few runs, and runs differ for no reason. This page
counts how often it claims that a useless change helps or harms. The programs are made up, so that the truth is known:
runs differ by a given standard deviation (of the logarithm of the step), and each of a run's {steps} steps is like the
one before (correlation {like:g}). Written by `python -m benchmarks.trials_luck docs/evaluation/try-intervals.md`.

## Two sets of runs

The share of {pairs:,} useless changes whose interval excludes 0. Wanted: at most 5%.

| runs differ by | {heads} |
| --- | {lines} |
{pair_rows}

## Whole trials

Six kinds of changes are tried as the command tries them, in {budgets} runs. The columns are the shares of
{trials} trials that recommend something: if nothing helps (wanted: at most 5%), and if `workers=2` saves 44%.

| runs differ by | nothing helps | `workers=2` saves 44% |
| --- | --- | --- |
{trial_rows}
"""


def run(source: random.Random, drift: float, step_ns: float) -> Timing:
    """One run of a made-up program."""
    slow, of_run = 0.0, source.lognormvariate(0, drift)
    lengths = []
    for _ in range(STEPS):
        slow = LIKE_THE_LAST * slow + source.gauss(0, STEP_SCATTER)
        lengths.append(round(step_ns * of_run * math.exp(slow)))
    return measure.timing([RankOutcome(rank=0, ranks=1, all_steps=STEPS, complete=True, host_ns=tuple(lengths))])


def false_claims(source: random.Random, drift: float, runs: int) -> float:
    """Return the percentage of useless changes whose interval excludes 0."""
    claims = 0
    for _ in range(PAIRS):
        interval = change([(run(source, drift, 1e7), run(source, drift, 1e7)) for _ in range(runs)]).over_runs
        claims += interval is not None and not interval[0] <= 0 <= interval[1]
    return 100 * claims / PAIRS


def recommends(source: random.Random, drift: float, truth: Mapping[str, float], budget: int) -> bool:
    """Return whether a trial of `budget` runs recommends something."""
    runs, kept = Runs(), AS_IS

    def make(planned: Planned) -> Run:
        part = math.prod(truth.get(setting.text, 1.0) for setting in planned.settings)
        return Run(planned, 1.0, run(source, drift, 1e7 * part), SAME)

    while (following := search.climb(CANDIDATES, runs)[1]) is not None:
        kept, _ = search.climb(CANDIDATES, runs)
        if 1 + len(search.worth_more(runs, kept)) > budget - len(runs.all):
            break
        runs = Runs((*runs.all, make(following)))
    while planned := search.rounds(runs, kept, budget - len(runs.all)):
        runs = Runs((*runs.all, *map(make, planned)))
    return search.best(runs) is not None


def main() -> None:
    source, counts = random.Random(1), range(2, 7)
    pair_rows = [
        f"| {drift:.1%} | {' | '.join(f'{false_claims(source, drift, count):.1f}%' for count in counts)} |"
        for drift in DRIFTS
    ]
    trial_rows = []
    for drift in DRIFTS:
        shares = [
            [
                sum(recommends(source, drift, truth, budget) for _ in range(TRIALS)) / TRIALS
                for truth in ({}, {"workers (2)": 0.56})
            ]
            for budget in BUDGETS
        ]
        useless = ", ".join(f"{share:.1%}" for share, _ in shares)
        useful = ", ".join(f"{share:.0%}" for _, share in shares)
        trial_rows.append(f"| {drift:.1%} | {useless} | {useful} |")
    text = PAGE.format(
        steps=STEPS,
        like=LIKE_THE_LAST,
        pairs=PAIRS,
        trials=TRIALS,
        budgets=f"{BUDGETS[0]}, {BUDGETS[1]} and {BUDGETS[2]}",
        heads=" | ".join(f"{count} runs each" for count in counts),
        lines=" | ".join("---:" for _ in counts),
        pair_rows="\n".join(pair_rows),
        trial_rows="\n".join(trial_rows),
    )
    Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
