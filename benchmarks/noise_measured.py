"""Figures for `benchmarks.noise`: the recordings of `tests/repeats.tar.xz`, and the results of diff and check on them.

A recording is analyzed when something is first asked of it, and once.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.results import Device
from overlapscope.budgets import baseline
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import check
from overlapscope.budgets.config import from_mapping
from overlapscope.budgets.places import Spent, of_steps, series, spent
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.catalog.measures import METRICS, Direction
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import DeviceDiff, FigureChange
from overlapscope.compare.noise import Pair, PairRow, noise_floor
from overlapscope.reading import load
from overlapscope.report.model import Report, build

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "tests" / "repeats.tar.xz"
SETS = ("first", "second")
PROGRAMS = ("prefetch", "offload", "decode", "training")
KINDS = ("compute", "copy", "host", "pageable", "default_stream", "synchronize")
"""Planted slowdowns, in the order of the page."""

LOWER = """[budgets]
step_time = { max_increase = "1%" }
compute_time = { max_increase = "1%" }
exposed_copy_time = { max_increase = "10%" }
idle_time = { max_increase = "10%" }
"""
FIXED = """[budgets]
step_time = { max_increase = "5%", noise_floor = "1%" }
compute_time = { max_increase = "3%", noise_floor = "1%" }
exposed_copy_time = { max_increase = "10%", noise_floor = "1%" }
idle_time = { max_increase = "10%", noise_floor = "1%" }
"""
SETTINGS = {"default": "", "lower percentages": LOWER, "fixed noise floor": FIXED}
"""Settings to try, as TOML."""


# -- recordings ---------------------------------------------------------------------------------------


class RepeatedRecording(msgspec.Struct, frozen=True, dict=True):
    """One recording, as `index.json` names it."""

    set_name: str
    program: str
    variant: str
    kind: str
    number: int
    asked_pct: float | None
    planted_ms: float | None
    path: Path

    @cached_property
    def report(self) -> Report:
        return build([analyze_trace(load(self.path, progress=False))])

    @cached_property
    def baseline(self) -> Baseline:
        return baseline.of(self.report)

    @cached_property
    def spent(self) -> Spent:
        return spent(of_steps(self.device), None)

    @cached_property
    def spans_ns(self) -> list[int]:
        """The steps that a diff takes means of."""
        return [self.device.steps[number].span_ns for number in judged_steps(self.device)]

    @property
    def device(self) -> Device:
        (device,) = self.report.devices
        return device

    @property
    def mean_ms(self) -> float:
        """Median of the steps that a diff compares."""
        return statistics.fmean(self.spans_ns) / 1e6

    @property
    def step_ms(self) -> float:
        """The median step."""
        return self.median("step_time") / 1e6

    def median(self, metric: str, direction: Direction | None = None) -> float:
        """Median of the steps that a check judges, in the metric's unit."""
        return statistics.median(series(of_steps(self.device), METRICS[metric], direction).numbers)

    @property
    def host_ms(self) -> float:
        """Median idle time of the GPU in a step while the host works by itself."""
        facts = of_steps(self.device).facts
        return float(np.median(facts["idle:python"] + facts["idle:cpu-ops"])) / 1e6


def unpack(folder: Path) -> None:
    """Put the recordings into a folder, where `read` finds them."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def read(folder: Path) -> dict[str, list[RepeatedRecording]]:
    """All recordings of an unpacked archive, by program."""
    by_program: dict[str, list[RepeatedRecording]] = {program: [] for program in PROGRAMS}
    for name in SETS:
        for entry in index(folder, name)["recordings"]:
            # They were compressed each by itself when they were made.
            path = folder / "repeats" / name / entry["file"].removesuffix(".gz")
            same = {key: entry[key] for key in ("program", "variant", "kind", "number", "asked_pct", "planted_ms")}
            by_program[entry["program"]].append(RepeatedRecording(set_name=name, path=path, **same))
    return by_program


def index(folder: Path, name: str) -> dict[str, Any]:
    """Index of one set, as `benchmarks.repeats` wrote it."""
    content: dict[str, Any] = json.loads((folder / "repeats" / name / "index.json").read_text())
    return content


def clean(recordings: Iterable[RepeatedRecording], *names: str) -> list[RepeatedRecording]:
    """Those with nothing planted, of all sets or of those named."""
    return [
        recording for recording in recordings if recording.kind == "clean" and recording.set_name in (names or SETS)
    ]


# -- two recordings -----------------------------------------------------------------------------------


def settings(name: str) -> Settings | None:
    """One of `SETTINGS`; None for the default."""
    return from_mapping(tomllib.loads(SETTINGS[name]), name) if SETTINGS[name] else None


def checked(before: RepeatedRecording, after: RepeatedRecording, name: str = "default") -> CheckResult:
    """Check a recording against another. Raises ValueError where it comes to no result."""
    result = check(after.report, settings(name), baseline=before.baseline)
    if result.outcome == "inconclusive":
        raise ValueError(f"{after.path}: {result.summary}")
    return result


def compared(before: RepeatedRecording, after: RepeatedRecording) -> DeviceDiff:
    """Return the diff of two recordings."""
    (device,) = diff(before.report, after.report).devices
    return device


def told_apart(before: RepeatedRecording, after: RepeatedRecording) -> bool:
    """Return whether the interval of the mean step's change excludes zero."""
    spans = [np.array(item.spans_ns, np.float64) for item in (before, after)]
    (change,) = Pair(before.spans_ns, after.spans_ns).changes([PairRow("span", "ns", spans[0], spans[1], floor=0.0)])
    return bool(change.beyond_noise)


def floor_ms(recordings: Iterable[RepeatedRecording], metric: str) -> float:
    """Return the noise floor of a metric that is a time, the median over all pairs."""
    pairs = itertools.combinations([recording.spent for recording in recordings], 2)
    return statistics.median(noise_floor(METRICS[metric], pair) for pair in pairs) / 1e6


def changes(node: object) -> Iterator[FigureChange]:
    """Every change that is anywhere in (a part of) a diff."""
    if isinstance(node, FigureChange):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from changes(part)
    elif isinstance(node, msgspec.Struct):
        for name in node.__struct_fields__:
            yield from changes(getattr(node, name))


# -- one program --------------------------------------------------------------------------------------


class Repeated(msgspec.Struct, frozen=True):
    """The clean recordings of a program, compared with each other."""

    pairs: tuple[int, int]
    """Ordered pairs: within a set, and across sets."""
    failed: Mapping[str, tuple[int, int]]
    """By settings: those of them that a check fails."""
    diffs: int
    in_steps: tuple[int, int]
    """Figures of whole steps, or of the window, in all diffs together: beyond noise, and all."""
    in_ranges: tuple[int, int]


def repeated(recordings: Iterable[RepeatedRecording]) -> Repeated:
    """Every clean recording of a program checked against every other, and compared with it."""
    mine = clean(recordings)
    pairs = list(itertools.permutations(mine, 2))
    failed = {name: [(a, b) for a, b in pairs if checked(a, b, name).outcome == "fail"] for name in SETTINGS}
    devices = [compared(a, b) for a, b in itertools.combinations(mine, 2)]
    ranges = [change for device in devices for change in changes(device.ranges)]
    every = [change for device in devices for change in changes(device)]
    beyond = sum(bool(named_range.beyond_noise) for named_range in ranges)
    return Repeated(
        pairs=_split(pairs),
        failed={name: _split(wrong) for name, wrong in failed.items()},
        diffs=len(devices),
        in_steps=(sum(bool(row.beyond_noise) for row in every) - beyond, len(every) - len(ranges)),
        in_ranges=(beyond, len(ranges)),
    )


def _split(pairs: Sequence[tuple[RepeatedRecording, RepeatedRecording]]) -> tuple[int, int]:
    """Return the number of pairs within a set and across sets."""
    same = sum(first.set_name == other.set_name for first, other in pairs)
    return same, len(pairs) - same


class PlantedSlowdown(msgspec.Struct, frozen=True):
    """A planted slowdown, compared with the clean recordings of its set."""

    program: str
    kind: str
    asked_pct: float | None
    planted_ms: float | None
    planted_pct: float | None
    """Percentage of the clean recordings' step."""
    grown_pct: float
    """By how much the mean step is longer than theirs."""
    comparisons: int
    failed: Mapping[str, int]
    """By settings."""
    budgets: Mapping[str, int]
    """Number of failures of each metric's budget at default settings."""
    step_beyond_noise: int
    others_beyond_noise: tuple[str, ...]
    """Other figures that a diff reports beyond noise in every comparison."""


def planted(recordings: Sequence[RepeatedRecording], *kinds: str) -> list[PlantedSlowdown]:
    """Return all slowdowns planted in a program, or those of some kinds."""
    before = clean(recordings, "first")
    chosen = [recording for recording in recordings if recording.kind in (kinds or KINDS)]
    chosen.sort(key=lambda item: (KINDS.index(item.kind), item.asked_pct or 0.0))
    return [_became(row, before) for row in chosen]


def _became(recording: RepeatedRecording, before: Sequence[RepeatedRecording]) -> PlantedSlowdown:
    step_ms = statistics.median(other.mean_ms for other in before)
    results = {name: [checked(other, recording, name) for other in before] for name in SETTINGS}
    verdicts = [verdict for result in results["default"] for verdict in result.verdicts]
    devices = [compared(other, recording) for other in before]
    beyond = [_beyond_noise(device) for device in devices]
    return PlantedSlowdown(
        program=recording.program,
        kind=recording.kind,
        asked_pct=recording.asked_pct,
        planted_ms=recording.planted_ms,
        planted_pct=None if recording.planted_ms is None else 100 * recording.planted_ms / step_ms,
        grown_pct=100 * (recording.mean_ms / step_ms - 1),
        comparisons=len(before),
        failed={name: sum(result.outcome == "fail" for result in mine) for name, mine in results.items()},
        budgets=Counter(verdict.metric for verdict in verdicts if verdict.status == "fail"),
        step_beyond_noise=sum(bool(device.figures.span.beyond_noise) for device in devices),
        others_beyond_noise=tuple(name for name in beyond[0] if all(name in other for other in beyond)),
    )


def _beyond_noise(device: DeviceDiff) -> list[str]:
    """Return the buckets that changed by more than noise, and the tables in which something did."""
    parts: dict[str, object] = {bucket.name: bucket for bucket in device.figures.buckets}
    parts |= {"kernels": device.kernels, "copies": device.copies, "host stalls": device.host_stalls}
    return [name for name, part in parts.items() if any(change.beyond_noise for change in changes(part))]


def least_found(rows: Iterable[PlantedSlowdown], name: str) -> PlantedSlowdown | None:
    """Return the smallest size that is found in every comparison, as all larger ones are."""
    smallest = None
    for row in sorted(rows, key=lambda row: -(row.asked_pct or 0.0)):
        if row.failed[name] < row.comparisons:
            break
        smallest = row
    return smallest
