"""Every output says the same of an average step: verdict, cards, tables, findings, `whatif`, `check`, `diff`, the HTML
report, markdown, notebooks, figures, exposition and ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from overlapscope.analysis.figures import efficiency_shown, hidden_copy_shown
from overlapscope.analysis.results import Device, missing_ns, partition
from overlapscope.base.saved import encode
from overlapscope.base.words import bare_shares, duration
from overlapscope.budgets.check import check
from overlapscope.budgets.places import figures
from overlapscope.budgets.settings import Budget, Settings
from overlapscope.compare.diff import diff
from overlapscope.documents.model import Document
from overlapscope.prediction.predict import predict
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import by_steps, rows_of
from overlapscope.render import html, markdown
from overlapscope.render.notebook import screen
from overlapscope.report import tables
from overlapscope.report.document import details, document, head
from overlapscope.report.model import from_json, of_program
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.verdict import cost, judge, plain_sentence
from overlapscope.rules.finding import costliest_first
from tests.support.helpers import TRACES, recordings, tried, various
from tests.support.recordings import report_of, trace_of

ROUNDED_NS = 2
_TIMES = re.compile(r"\d[\d,.]* (?:ns|us|ms|s)\b")


def name_of(recording: Path) -> str:
    return str(recording.relative_to(TRACES))


each_recording = pytest.mark.parametrize("recording", various(), ids=name_of)
every_recording = pytest.mark.parametrize("recording", tried(recordings()), ids=name_of)


def sections(recording: Path, *, recorded: bool = False) -> Iterator[tuple[DeviceReport, Device]]:
    page = Page(report_of(recording), recorded=recorded)
    yield from ((section, section.device) for section in page.sections() if section.device and section.usable)


def known_times(section: DeviceReport, device: Device) -> set[str]:
    """Return the texts of all times that a verdict may state."""
    lengths = [device.span_ns, device.overlap.copy_ns, *partition(device).values()]
    lengths += [*device.exposed_copy_by_cause.values(), *device.idle_by_cause.values()]
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
        assert {*_TIMES.findall(verdict.lead)} <= known_times(section, device)
        costly = [finding for finding in section.findings if finding.cost_ns]
        buckets = (device.exposed_copy_by_cause, device.exposed_comm_by_cause or {}, device.idle_by_cause)
        ns, largest = max((ns, cause) for by_cause in buckets for cause, ns in by_cause.items())
        if costly and 2 * section.per_step(costly[0].cost_ns) >= ns:
            assert costly[0].title in verdict.why
            advice, saves = costly[0].advice.splitlines()[0], f" It {cost(section, costly[0])}."
            assert verdict.remedy == f"Next: {advice.rstrip()}{saves if costly[0].saving else ''}"
        else:
            assert not verdict.why or f" ({largest})." in verdict.why
            assert not {"saves", "costs"} & {*verdict.remedy.split()}


@every_recording
def test_nothing_rests_on_a_step_that_is_not_known(recording: Path) -> None:
    """An interval, between the time in which the GPU works and the recorded step, is all that is said of it."""
    for section, device in sections(recording):
        verdict, alone = judge(section), device.alone
        assert (alone is None) == section.is_plain
        if alone is None:
            continue
        assert device.plain is None
        busy_ns = device.span_ns - device.buckets.idle_ns
        assert busy_ns <= busy_ns + missing_ns(device) <= alone.low_ns <= alone.high_ns == device.span_ns
        for text in (verdict.lead, *(" ".join(row) for row in tables.figures(section, device).texts())):
            assert "about" not in text and "estimate" not in text
        sentence = plain_sentence(section)
        assert sentence in verdict.plain
        assert bool(sentence) == section.may_be_slowed
        if sentence:
            assert (
                sentence.startswith("Recording slows the host. Without the profiler ")
                and duration(alone.high_ns) in sentence
            )
        if verdict.level == "unknown":
            assert re.search("; how much of (that|the idle time) is the profiler's is not known", verdict.lead)


@each_recording
def test_bar_and_table_have_the_same_figures(recording: Path) -> None:
    for section, device in sections(recording):
        parts = partition(device)
        shares = dict(zip(parts, bare_shares(list(parts.values()), device.span_ns), strict=True))
        table = {row[0]: row[1:] for row in tables.buckets(section, device).texts()}
        bar = {part.name: part for part in tables.bar(device, section.unit).parts}
        for name, ns in parts.items():
            if ns:
                assert table[name] == [section.unit.number(ns), shares[name]]
                assert (bar[name].text, bar[name].share) == (section.unit.text(ns), shares[name])
        assert table["step" if section.steps else "all"][0] == section.unit.number(device.span_ns)
        assert head(section, titled=False).blocks


@every_recording
def test_a_finding_saves_the_same_everywhere(recording: Path) -> None:
    """By its own `whatif`, and in the report read from JSON."""
    report = report_of(recording)
    assert from_json(encode(report)).findings == report.findings
    for section, device in sections(recording):
        for finding in section.findings:
            saving = finding.saving
            if saving is None:
                continue
            saved = (saving.saved_ns, saving.saved_low_ns, saving.saved_high_ns)
            means = [section.per_step(ns) for ns in saved]
            assert means[1] <= means[0] <= means[2] <= device.span_ns
            result = predict(trace_of(recording), saving.fix, device=device.device).result
            assert result.gain_ns is not None
            gains = (result.gain_ns.value, result.gain_ns.low, result.gain_ns.high)
            assert all(abs(gain - ns) <= ROUNDED_NS for gain, ns in zip(gains, means, strict=True))


@each_recording
def test_check_and_diff_judge_the_recorded_step(recording: Path) -> None:
    report = report_of(recording)
    if any(device.plain for device in report.devices):
        pytest.skip("the step is known, so that check judges the plain program")
    metrics = ("step_time", "efficiency_pct", "hidden_copy_pct", "exposed_copy_time", "idle_time", "compute_time")
    budgets = tuple(Budget(metric=metric, bound=1e18, ranks="each") for metric in metrics)
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


@every_recording
def test_what_costs_most_leads_and_a_fix_that_saves_nothing_does_not(recording: Path) -> None:
    for section, _ in sections(recording):
        findings = section.findings
        assert list(findings) == sorted(findings, key=costliest_first)
        useless = [finding for finding in findings if cost(section, finding) == "saves nothing by itself"]
        assert all(finding.severity == "info" for finding in useless)
        costs = [section.per_step(finding.cost_ns) for finding in findings if finding.severity != "info"]
        assert costs == sorted(costs, reverse=True)
        assert not any(finding in useless for finding in findings[: len(costs)])


# -- Files, notebooks, figures and ranks -------------------------------------------------------------


@each_recording
def test_files_and_notebooks_show_the_figures_of_the_tables(recording: Path) -> None:
    page = Page(report_of(recording))
    text = markdown.render(document(page))
    for section, device in sections(recording):
        table = tables.buckets(section, device).texts()
        assert all(f"| {' | '.join(map(markdown.escape, row))} |" in text for row in table)
        shown = html.render(Document("", tuple(details(section, None, titled=False))))
        rows = [_cells(row) for row in re.findall("<tr.*?>(.*?)</tr>", shown, re.DOTALL)]
        assert all(list(row) in rows for row in table)
        bar = html.render(Document("", (head(section, titled=False),)))
        assert all(part.text in unescape(bar) for part in tables.bar(device, section.unit).parts)
        if len(list(page.sections())) == 1:
            assert judge(section).lead in unescape(re.sub(r"\s+", " ", screen(page.report)))


def _cells(row: str) -> list[str]:
    return [unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<t[dh].*?>(.*?)</t[dh]>", row, re.DOTALL)]


@each_recording
def test_judged_figures_have_the_recorded_step(recording: Path) -> None:
    report = report_of(recording)
    if of_program(report) is not report:
        pytest.skip("the step is known, so that figures are of the plain program")
    by_place = {
        (each.metric.metric, each.place.subject.rank, each.place.subject.device): each.value for each in figures(report)
    }
    shown = [(section, device) for section, device in sections(recording, recorded=True) if section.steps]
    for section, device in shown:
        for metric, value in (
            ("step_time", device.span_ns),
            ("compute_time", device.buckets.compute_ns),
            ("exposed_copy_time", device.buckets.exposed_copy_ns),
            ("idle_time", device.buckets.idle_ns - missing_ns(device)),
        ):
            kept = by_place.get((metric, section.trace.rank, device.device))
            if kept is not None:
                assert abs(kept - value) <= ROUNDED_NS


@each_recording
def test_ranks_have_the_recorded_step(recording: Path) -> None:
    report = report_of(recording)
    usable = [section for section in Page(report, recorded=True).sections() if section.usable]
    if not usable:
        pytest.skip("no rank can be compared")
    result = report_on(reduce(trace_of(recording)))
    stepped = {bool(row.judged and row.judged.steps) for row in result.ranks}
    for row in rows_of(result) if len(stepped) == 1 else ():
        [device] = (each.device for each in usable if each.device and each.device.device == row.device)
        assert (row.span_ns, row.buckets) == (device.span_ns, device.buckets)
        assert (row.efficiency_pct, row.hidden_copy_pct) == (efficiency_shown(device), hidden_copy_shown(device))
    assert by_steps(result.ranks) == (stepped == {True})
