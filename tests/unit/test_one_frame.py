"""Every output says the same of an average step: verdict, cards, tables, findings, `whatif`, `check` and `diff`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapscope.analysis.results import Device, efficiency_shown, hidden_copy_shown, missing_ns, partition
from overlapscope.base.words import bare_shares, duration
from overlapscope.budgets.check import check
from overlapscope.budgets.settings import Budget, Settings
from overlapscope.compare.diff import diff
from overlapscope.prediction.predict import predict
from overlapscope.reading import load
from overlapscope.report import tables
from overlapscope.report.document import head
from overlapscope.report.headline import headlines
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.verdict import judge
from tests.support.helpers import TRACES, various
from tests.support.recordings import report_of

ROUNDED_NS = 2
_TIMES = re.compile(r"(?:(\d[\d,.]*) to )?(\d[\d,.]*) (ns|us|ms|s)\b")

each_recording = pytest.mark.parametrize("recording", various(), ids=lambda path: str(path.relative_to(TRACES)))


def sections(recording: Path, *, recorded: bool = False) -> Iterator[tuple[DeviceReport, Device]]:
    page = Page(report_of(recording), recorded=recorded)
    yield from ((section, section.device) for section in page.sections() if section.device and section.usable)


def known_times(section: DeviceReport, device: Device) -> set[str]:
    """Return the texts of all times that a verdict may state."""
    lengths = [device.span_ns, device.overlap.copy_ns, *partition(device).values()]
    lengths += [*device.exposed_copy_by_cause.values(), *device.idle_by_cause.values()]
    lengths += [section.per_step(finding.cost_ns) for finding in section.findings]
    plain = device.plain
    if plain is not None:
        lengths += [plain.step_ns, plain.low_ns, plain.high_ns, plain.recorded_step_ns]
    return set(map(duration, lengths))


@each_recording
def test_the_figures_of_a_step_add_up(recording: Path) -> None:
    for _, device in sections(recording):
        assert sum(partition(device).values()) == device.span_ns
        assert sum(device.exposed_copy_by_cause.values()) == device.buckets.exposed_copy_ns
        assert sum(device.idle_by_cause.values()) == device.buckets.idle_ns


@each_recording
def test_the_verdict_states_figures_of_the_tables(recording: Path) -> None:
    for section, device in sections(recording):
        verdict = judge(section)
        known = known_times(section, device)
        for low, high, unit in _TIMES.findall(f"{verdict.answer} {verdict.plain}"):
            assert f"{high} {unit}" in known
            assert not low or device.plain is not None


@each_recording
def test_cards_bar_and_table_have_the_same_figures(recording: Path) -> None:
    for section, device in sections(recording):
        parts = partition(device)
        shares = dict(zip(parts, bare_shares(list(parts.values()), device.span_ns), strict=True))
        table = {row[0]: row[1:] for row in tables.buckets(section, device).texts()}
        cards = {card.name: card for card in headlines(section, device)}
        for name, ns in parts.items():
            if ns:
                assert table[name] == [section.unit.number(ns), shares[name]]
            if name in cards and ns:
                assert cards[name].value == section.unit.text(ns)
                assert cards[name].beside.startswith(f"{shares[name]}%")
        assert table["step" if section.steps else "all"][0] == section.unit.number(device.span_ns)
        first = headlines(section, device)[0]
        assert first.value.removeprefix("about ") == section.unit.text(device.span_ns)
        assert head(section, titled=False).blocks


@each_recording
def test_a_finding_saves_what_the_command_below_it_says(recording: Path) -> None:
    for section, device in sections(recording):
        finding = next((each for each in section.findings if each.fix and each.cost_ns), None)
        if finding is None:
            continue
        result = predict(load(recording, cache=False), finding.fix, device=device.device).result
        assert result.gain_ns is not None
        assert abs(result.unchanged_step_ns - device.span_ns) <= ROUNDED_NS or not section.steps
        for end, ns in (("value", finding.cost_ns), ("low", finding.low_ns), ("high", finding.high_ns)):
            saved = max(0, getattr(result.gain_ns, end))
            assert abs(saved / result.unchanged_step_ns - section.per_step(ns) / device.span_ns) < 1e-4


@each_recording
def test_check_and_diff_judge_the_recorded_step(recording: Path) -> None:
    report = report_of(recording)
    if any(plain.origin != "estimated" for device in report.devices if (plain := device.plain)):
        pytest.skip("the step is known, so that check judges the plain program")
    metrics = ("step_time", "efficiency_pct", "hidden_copy_pct", "exposed_copy_time", "idle_time", "compute_time")
    budgets = tuple(Budget(metric=metric, max=1e18, ranks="each") for metric in metrics)
    judged = check(report, Settings(budgets=budgets))
    compared = {each.device: each for each in diff(report, report).devices} if len(report.traces) == 1 else {}
    for section, device in sections(recording, recorded=True):
        if not section.steps:
            continue
        expected = {
            "step_time": device.span_ns,
            "efficiency_pct": efficiency_shown(device),
            "hidden_copy_pct": hidden_copy_shown(device),
            "exposed_copy_time": device.buckets.exposed_copy_ns,
            "idle_time": device.buckets.idle_ns - missing_ns(device),
            "compute_time": device.buckets.compute_ns,
        }
        for verdict in judged.verdicts:
            for part in verdict.parts:
                if (part.rank, part.device) == (section.trace.rank, device.device):
                    value = expected[verdict.metric]
                    assert part.value is None or value is None or abs(part.value - value) <= ROUNDED_NS
        if device.device in compared:
            assert compared[device.device].figures.span.before == device.span_ns
