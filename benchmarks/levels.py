"""Write `docs/evaluation/levels.md`: which changes of level a history reports, and how often it is wrong.

    python -m benchmarks.levels docs/evaluation/levels.md      # two minutes

The recordings are those of `benchmarks.repeats`: `tests/repeats.tar.xz` holds two sets of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.data_files import csv_text
from benchmarks.noise import WORDS, By, table, wrapped
from benchmarks.noise_measured import KINDS, PROGRAMS, RepeatedRecording, clean, read, unpack
from overlapscope.catalog.measures import METRICS
from overlapscope.compare.noise import CONFIDENCE, F64
from overlapscope.plugins.history.course import DEFAULT
from overlapscope.plugins.history.entry import HistoryFigure, figures
from overlapscope.plugins.history.levels import MIN_LEVEL_POINTS, MIN_SERIES_POINTS, Group, LevelChange, levels, newest

ORDERS, ALARM_ORDERS = 10, 50
COMMITS, PLACES = 20, (4, 10, 16)
"""Recordings in a series, and the number, from 0, of the first that is slower."""
SIMULATED = 1000
COUNTS = (8, 20, 60)


# -- the recordings in many orders --------------------------------------------------------------------


@cache
def measured(path: Path, recording: RepeatedRecording) -> Mapping[str, HistoryFigure]:
    """Return the figures of a recording, by metric; causes are left out."""
    return {figure.metric: figure for figure in figures(recording.report) if figure.metric in METRICS}


def of(recording: RepeatedRecording) -> Mapping[str, HistoryFigure]:
    return measured(recording.path, recording)


def group(number: int, figure: HistoryFigure, more: float = 0.0, floor: float = 0.0) -> Group:
    return Group(
        ids=(str(number),),
        at_ns=number,
        commit=str(number),
        value=figure.value + more,
        error=(figure.spread or 0.0) / figure.samples**0.5,
        floor=(figure.floor or 0.0) + floor,
    )


class Alarms(Struct, frozen=True):
    """False alarms in a program that never changed."""

    program: str
    recordings: int
    metrics: int
    orders: int
    changes: int
    """Number of series, one for each order and metric, with a reported change."""
    newest: int
    """Number of series whose last recording differs from the level."""


def alarms(program: str, recordings: Iterable[RepeatedRecording]) -> Alarms:
    """Every metric of the clean recordings, in many orders."""
    mine, random = clean(recordings), np.random.default_rng(1)
    metrics = [metric for metric in METRICS if all(metric in of(row) for row in mine)]
    changes = last = 0
    for _ in range(ALARM_ORDERS):
        order = random.permutation(len(mine))
        for metric in metrics:
            series = [group(number, of(mine[place])[metric]) for number, place in enumerate(order)]
            better = bool(METRICS[metric].more_is_better)
            changes += bool(levels(series, more_is_better=better).changes)
            last += newest(series, more_is_better=better, of=len(DEFAULT)).status != "same"
    return Alarms(program, len(mine), len(metrics), ALARM_ORDERS, changes, last)


class SlowdownDetection(Struct, frozen=True):
    """Result for one planted slowdown."""

    planted: RepeatedRecording
    right: Mapping[int, int]
    """By place: series in which a default metric changes at the very recording."""
    elsewhere: int
    """Series in which one changes somewhere else."""
    metrics: tuple[str, ...]
    """Metrics that change at the right recording in every series."""


def detection(planted: RepeatedRecording, recordings: Iterable[RepeatedRecording]) -> SlowdownDetection:
    """One slowdown, planted from each of the places on, in some orders."""
    random = np.random.default_rng(2)
    mine, right, metrics = clean(recordings), Counter(dict.fromkeys(PLACES, 0)), Counter[str]()
    elsewhere = 0
    for place in PLACES:
        for _ in range(ORDERS):
            order = [*random.permutation(len(mine)), *random.integers(0, len(mine), COMMITS - len(mine))]
            found_places = {
                metric: [change.first for change in _changes(metric, planted, mine, order, place)]
                for metric in of(planted)
                # A metric that only the slowdown has gives no series.
                if all(metric in of(row) for row in mine)
            }
            right[place] += any(place in found_places.get(metric, ()) for metric in DEFAULT)
            elsewhere += any(set(found_places.get(metric, ())) - {place} for metric in DEFAULT)
            metrics.update(metric for metric, places in found_places.items() if place in places)
    every = tuple(metric for metric in METRICS if metrics[metric] == ORDERS * len(PLACES))
    return SlowdownDetection(planted, dict(right), elsewhere, every)


def _changes(
    metric: str, planted: RepeatedRecording, mine: Sequence[RepeatedRecording], order: Sequence[int], place: int
) -> tuple[LevelChange, ...]:
    usual = [of(recording)[metric] for recording in clean(mine, planted.set_name)]
    slow = of(planted)[metric]
    more = slow.value - statistics.median(value.value for value in usual)
    floor = (slow.floor or 0.0) - statistics.median(value.floor or 0.0 for value in usual)
    series = [
        group(number, slow)
        if number == place
        else group(number, of(mine[row])[metric], *((more, floor) if number > place else ()))
        for number, row in enumerate(order)
    ]
    return levels(series, more_is_better=bool(METRICS[metric].more_is_better)).changes


# -- simulated noise ----------------------------------------------------------------------------------


def _following(random: np.random.Generator, count: int, share: float) -> F64:
    values = random.normal(size=count + 50)
    for number in range(1, len(values)):
        values[number] += share * values[number - 1]
    return np.asarray(values[50:], np.float64)


def _with_outliers(random: np.random.Generator, count: int) -> F64:
    return np.asarray(random.normal(size=count) + 50 * (random.random(count) < 1 / 32), np.float64)


NOISES: dict[str, Callable[[np.random.Generator, int], F64]] = {
    "normal": lambda random, count: random.normal(size=count),
    "Student's t, 3 degrees of freedom": lambda random, count: random.standard_t(3, count),
    "log-normal": lambda random, count: random.lognormal(size=count),
    "normal, one of 32 an outlier": _with_outliers,
    "following the one before by 0.5": lambda random, count: _following(random, count, 0.5),
    "following the one before by 0.8": lambda random, count: _following(random, count, 0.8),
}


def simulated(name: str, count: int) -> tuple[float, float, float]:
    """Return percentages of series: noise reported as a change, the newest value reported as different, and a change
    of six standard deviations in the middle reported at most one place off."""
    random = np.random.default_rng(count)
    wrong = last = right = 0
    for _ in range(SIMULATED):
        values = np.asarray(NOISES[name](random, count), np.float64)
        wrong += bool(levels(_series(values), more_is_better=False).changes)
        last += newest(_series(values), more_is_better=False).status != "same"
        values[count // 2 :] += 6 * (np.quantile(values, 0.84) - np.quantile(values, 0.16)) / 2
        firsts = [change.first for change in levels(_series(values), more_is_better=False).changes]
        right += len(firsts) == 1 and abs(firsts[0] - count // 2) <= 1
    return 100 * wrong / SIMULATED, 100 * last / SIMULATED, 100 * right / SIMULATED


def _series(values: F64) -> list[Group]:
    return [
        Group(ids=(str(at),), at_ns=at, commit=None, value=float(value), error=0.0, floor=0.0)
        for at, value in enumerate(values)
    ]


# -- the page -----------------------------------------------------------------------------------------


def alarm_text(alarms: Sequence[Alarms]) -> str:
    """Return the number of false alarms in all series, in a sentence."""
    series = sum(match.orders * match.metrics for match in alarms)
    return (
        f"A change was reported in {sum(match.changes for match in alarms)} of {series:,} series, and the newest "
        f"recording differed from its level in {sum(match.newest for match in alarms)}."
    )


def found_row(slowdown: SlowdownDetection) -> list[str]:
    size = "" if slowdown.planted.asked_pct is None else f"{slowdown.planted.asked_pct:g}%"
    cells = [f"{slowdown.right[place]} of {ORDERS}" for place in PLACES]
    metrics = ", ".join(slowdown.metrics)
    return [slowdown.planted.program, WORDS[slowdown.planted.kind], size, *cells, str(slowdown.elsewhere), metrics]


def found_rows(recordings: By, *kinds: str) -> list[list[str]]:
    """Every slowdown that was planted, or those of some kinds."""
    rows = []
    for mine in recordings.values():
        planted = [row for row in mine if row.kind in kinds]
        planted.sort(key=lambda item: (KINDS.index(item.kind), item.asked_pct or 0.0))
        rows += [found_row(detection(slowdown, mine)) for slowdown in planted]
    return rows


def least_rows(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return a row for each kind: by program, the smallest slowdown found at the right recording in every order."""
    by_kind: dict[str, dict[str, list[Sequence[str]]]] = {}
    for row in rows:
        by_kind.setdefault(row[1], {}).setdefault(row[0], []).append(row)
    return [[kind, *(_least(some.get(program, ())) for program in PROGRAMS)] for kind, some in by_kind.items()]


def _least(rows: Sequence[Sequence[str]]) -> str:
    sizes = [row[2] or "yes" for row in rows if set(row[3 : 3 + len(PLACES)]) == {f"{ORDERS} of {ORDERS}"}]
    return sizes[0] if sizes else "no" if rows else ""


PLANTED = ("program", "planted", "asked", *(f"from {place}" for place in PLACES), "elsewhere", "in every series")


def page(recordings: By) -> tuple[str, str]:
    """Return the page, and the CSV file of planted slowdowns."""
    alarmed = [alarms(program, recordings[program]) for program in PROGRAMS]
    rows = [[name, *(_cell(name, count) for count in COUNTS)] for name in NOISES]
    slowdowns = found_rows(recordings, *KINDS)
    elsewhere = sum(int(row[3 + len(PLACES)]) for row in slowdowns)
    heads = ["noise", *(f"{count} values" for count in COUNTS)]
    intro = f"""# Changes in level

**Question:** Does `overlapscope history` find since which recording a program is slower, and does it report changes
that didn't happen?

## The rule

1. Values more than three standard deviations from the median of their neighbors are replaced by it (Hampel's filter,
   with a standard deviation that allows for autocorrelation: Chakar et al., Bernoulli 23, 2017).
2. PELT (Killick, Fearnhead and Eckley, JASA 107, 2012; package `ruptures`) proposes candidates. A level has at least
   {MIN_LEVEL_POINTS} values.
3. A candidate counts if the medians of both levels differ by more than the [noise floor](noise.md#noise-floor) of
   `check`, and by more than chance explains: Student's t with an error of {100 * (1 - CONFIDENCE):.0f}%, shared among
   all places where a change could be. The weakest candidate is dropped until all count.

Nothing is reported for fewer than {MIN_SERIES_POINTS} values. `history check` compares the newest value with the last \
level by the
same floor and test, with the error shared among the metrics."""
    parts = [
        _plain(intro),
        wrapped(f"""## False alarms

The [recordings of the unchanged programs](noise.md#the-recordings) were put into {ALARM_ORDERS} random orders.
{alarm_text(alarmed)}
"""),
        wrapped(f"""## Planted slowdowns

A slowdown begins at a recording of a series of {COMMITS}. The smallest one, as a share of the step, that a default
metric always shows there (in {ORDERS} orders, from each of {len(PLACES)} places). A change at another recording was
reported in {elsewhere} of {len(slowdowns) * ORDERS * len(PLACES):,} series.

{table(["planted", *PROGRAMS], least_rows(slowdowns), words=5)}

Most slowdowns that are missed lie below the noise floor ([why](noise.md#what-is-not-found)). Slower kernels show in
`compute_time`, which isn't a default metric. Data: [every slowdown](levels.csv).
"""),
        wrapped(f"""## Simulated noise

Percentages of {SIMULATED:,} series, without a noise floor, in which noise is reported as a change / the newest value of
noise is reported as different / a change of six standard deviations in the middle is reported once, at most one place
off.

{table(heads, rows, words=1)}

The error of 1% holds for normal and heavy-tailed noise. Strong autocorrelation looks like a change, and with outliers
or skewed noise a single value is reported more often. The noise floor prevents both in the recordings above.

`python -m benchmarks.levels docs/evaluation/levels.md` writes this page from `tests/repeats.tar.xz`.
"""),
    ]
    return "".join(parts).rstrip() + "\n", csv_text(PLANTED, slowdowns)


def _plain(text: str) -> str:
    return text.strip("\n") + "\n\n"


def _cell(name: str, count: int) -> str:
    return " / ".join(f"{series:.1f}" for series in simulated(name, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        text, rows = page(read(Path(folder)))
    args.page.write_text(text)
    args.page.with_suffix(".csv").write_text(rows)


if __name__ == "__main__":
    main()
