"""Tests that repeated recordings of a program never fail each other, and that planted slowdowns are detected.

`docs/evaluation/noise.md` describes these recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import levels, noise
from benchmarks.data_files import csv_line
from benchmarks.noise_measured import PROGRAMS, RepeatedRecording, checked, clean, compared, planted, read, unpack
from overlapscope.budgets.settings import DEFAULT_RELATIVE
from overlapscope.contracts.compare import compare
from overlapscope.contracts.observe import observe
from overlapscope.reading import load

PAGE = Path("docs/evaluation/noise.md")
COPYING = ("prefetch", "offload", "training")
EXTREMES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive, unpacked."""
    folder = tmp_path_factory.mktemp("repeats")
    unpack(folder)
    return folder


@pytest.fixture(scope="module")
def recordings(folder: Path) -> dict[str, list[RepeatedRecording]]:
    return read(folder)


def shortest_and_longest(mine: list[RepeatedRecording]) -> tuple[RepeatedRecording, RepeatedRecording]:
    ordered = sorted(clean(mine), key=lambda item: item.step_ms)
    return ordered[0], ordered[-1]


def variant(mine: list[RepeatedRecording], name: str) -> RepeatedRecording:
    (recording,) = (row for row in mine if row.variant == name)
    return recording


def apart(mine: list[RepeatedRecording]) -> Iterator[tuple[RepeatedRecording, RepeatedRecording]]:
    """Yield the pairs that differ most in some metric: those with the least of it before those with the most."""
    pairs = {}
    for budget in DEFAULT_RELATIVE:
        ordered = sorted(clean(mine), key=lambda item: (item.median(budget.metric), item.set_name, item.number))
        for before in ordered[:EXTREMES]:
            for after in ordered[-EXTREMES:]:
                pairs[before.path, after.path] = before, after
    yield from pairs.values()


@pytest.mark.parametrize("program", PROGRAMS)
def test_recordings_of_one_program_never_fail_each_other(
    recordings: dict[str, list[RepeatedRecording]], program: str
) -> None:
    # `benchmarks.noise` tries all pairs, which takes a while.
    pairs = list(apart(recordings[program]))
    assert len(pairs) >= 2 * EXTREMES**2
    failed = {
        (before.path.name, after.path.name): result.summary
        for before, after in pairs
        if (result := checked(before, after)).outcome != "pass"
    }
    assert failed == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_diff_of_one_program_calls_no_step_another(
    recordings: dict[str, list[RepeatedRecording]], program: str
) -> None:
    device = compared(*shortest_and_longest(recordings[program]))
    assert device.figures.span.beyond_noise is False
    assert [bucket.name for bucket in device.figures.buckets if bucket.beyond_noise] == []
    assert (device.kernels, device.ops) == ((), ())
    assert "unchanged within noise" in device.verdict or "which may be noise" in device.verdict


@pytest.mark.parametrize("program", COPYING)
@pytest.mark.parametrize(
    ("name", "cause", "rule"),
    [
        ("pageable", "pageable-memory", "pageable-memory"),
        ("default_stream", "same-stream", "same-stream"),
    ],
)
def test_copies_gone_wrong_fail_and_the_cause_is_named(
    recordings: dict[str, list[RepeatedRecording]], program: str, name: str, cause: str, rule: str
) -> None:
    after = variant(recordings[program], name)
    for before in shortest_and_longest(recordings[program]):
        result = checked(before, after)
        assert result.outcome == "fail"
        (verdict,) = (verdict for verdict in result.verdicts if verdict.metric == "exposed_copy_time")
        assert verdict.status == "fail"
        assert cause in [reason.cause for reason in verdict.reasons]
        standing = {
            finding.rule: (finding.standing, finding.cost.beyond_noise) for finding in compared(before, after).findings
        }
        assert standing[rule] == ("new", True)


def test_mending_what_went_wrong_is_not_a_failure_and_the_finding_is_gone(
    recordings: dict[str, list[RepeatedRecording]],
) -> None:
    before, after = variant(recordings["prefetch"], "pageable"), clean(recordings["prefetch"])[0]
    assert checked(before, after).outcome == "pass"
    assert "pageable-memory gone" in compared(before, after).verdict


@pytest.mark.parametrize("program", ["prefetch", "offload"])
def test_a_synchronize_in_a_program_that_had_none_is_found(
    recordings: dict[str, list[RepeatedRecording]], program: str
) -> None:
    for before in shortest_and_longest(recordings[program]):
        result = checked(before, variant(recordings[program], "synchronize"))
        (verdict,) = (verdict for verdict in result.verdicts if verdict.metric == "idle_time")
        assert (verdict.status, verdict.reasons[0].cause) == ("fail", "host-sync")


@pytest.mark.parametrize("program", PROGRAMS)
def test_compute_longer_by_three_hundredths_of_the_step_is_found(
    recordings: dict[str, list[RepeatedRecording]], program: str
) -> None:
    after, before = variant(recordings[program], "compute_3pct"), clean(recordings[program], "first")
    failed = []
    for row in before:
        result = checked(row, after)
        failed += [verdict.budget for verdict in result.verdicts if verdict.status == "fail"]
    # In `prefetch`, which does nothing but compute, 2.9% to 3.2% was planted, and over 3% is found.
    assert len(failed) >= len(before) - 2
    assert {name.split()[0] for name in failed} == {"compute_time"}


def test_the_page_on_noise_is_up_to_date(folder: Path, recordings: dict[str, list[RepeatedRecording]]) -> None:
    """Only the parts that take little time are compared."""
    page, stale = PAGE.read_text(), "stale: run python -m benchmarks.noise docs/evaluation/noise.md"
    assert noise.how(folder) in page, stale
    assert noise.repeats(recordings) in page, stale
    assert noise.floors(recordings) in page, stale
    rows = planted(recordings["training"], "copy", "synchronize")
    data = PAGE.with_suffix(".csv").read_text().splitlines()
    assert [cells for cells in noise.everything(rows) if csv_line(cells) not in data] == [], stale


def test_recordings_of_one_program_are_one_level_and_the_page_on_levels_says_so(
    recordings: dict[str, list[RepeatedRecording]],
) -> None:
    """Return the parts of the page that are quick to compute."""
    page, stale = Path("docs/evaluation/levels.md").read_text(), "stale: run python -m benchmarks.levels"
    alarms = [levels.alarms(program, recordings[program]) for program in PROGRAMS]
    assert {(match.changes, match.newest) for match in alarms} == {(0, 0)}
    assert levels.alarm_text(alarms) in " ".join(page.split()), stale
    data = Path("docs/evaluation/levels.csv").read_text().splitlines()
    rows = levels.found_rows({"training": recordings["training"]}, "pageable", "default_stream")
    assert [cells for cells in rows if csv_line(cells) not in data] == [], stale


KEPT = ("clean", "compute", "host")
"""Beginnings of the names of recordings whose program keeps its order, even if it takes longer."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_contracts_are_lost_by_what_changes_order_or_copies_and_by_nothing_else(program: str, folder: Path) -> None:
    recorded = sorted(folder.glob(f"repeats/*/{program}/*.json"))
    contract = observe(load(folder / f"repeats/first/{program}/clean.1.trace.json", progress=False))
    lost = {
        path.name
        for path in recorded
        if any(each.result in ("lost", "unknown") for each in compare(contract, observe(load(path, progress=False))))
    }
    assert lost == {path.name for path in recorded if not path.name.startswith(KEPT)}
