"""Numbers, foreign text, strips and verdicts as a person sees them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace, average
from overlapscope.analysis.results import Device
from overlapscope.analysis.strip import Strip, measure
from overlapscope.base import words
from overlapscope.base.median import median_ns
from overlapscope.commands import main
from overlapscope.documents.model import ASCII, brief
from overlapscope.documents.table import Table
from overlapscope.render import markdown, terminal
from overlapscope.report import lists
from overlapscope.report.document import document, draw_strip, strip_title
from overlapscope.report.model import Report, build
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind
from tests.support import kineto_files
from tests.support.helpers import TRACES, Host, Op, make_trace

HOSTILE = "a\x1b[31mRED\x1b]0;t\x07[bold]b[/bold]|p|`t`<script>x</script>\n# h\r\u202e@you http://x.y"


def page_of(path: str, *, verbose: bool = False) -> Page:
    analysis = analyze_trace(ov.load(path, progress=False))
    device = analysis.devices[0]
    measured = measure(device.timeline, device.result, slices=60)
    return Page(build([analysis]), verbose=verbose, strips={(0, device.result.device): measured})


def test_the_figures_of_a_device_are_made_once_for_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    page, counted = page_of("traces/pipeline_1stream.json.gz"), Counter[str]()

    def in_frame(device: Device) -> Device:
        counted["made"] += 1
        return average.in_frame(device)

    monkeypatch.setattr("overlapscope.report.page.in_frame", in_frame)
    made = []
    for count in (1, 3):
        counted.clear()
        document(replace(page, report=replace(page.report, findings=page.report.findings[:1] * count)))
        made.append(counted["made"])
    assert made == [1, 1]


def verdict_of(path: str) -> str:
    return judge(next(page_of(path).sections())).text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0%"),
        (0.01, "< 0.1%"),
        (12.34, "12.3%"),
        (99.94, "99.9%"),
        (99.97, "> 99.9%"),
        (100, "100%"),
    ],
)
def test_percent_is_0_or_100_only_where_that_is_exact(value: float | None, text: str) -> None:
    assert words.percent(value) == text


@pytest.mark.parametrize(
    ("ranks", "shown"), [((2, 0, 1), (0, 1, 2)), ((2, 0, None), (2, 0, None)), ((1, 0, 1), (1, 0, 1))]
)
def test_ranks_are_shown_in_their_order_if_no_two_are_alike(
    ranks: tuple[int | None, ...], shown: tuple[int | None, ...]
) -> None:
    kernel = Op(Kind.COMPUTE, 0, 9)
    traces = [make_trace([kernel], rank=rank, source=f"{place}.json") for place, rank in enumerate(ranks)]
    sections = Page(build([analyze_trace(trace) for trace in traces], replayed=False)).sections()
    assert tuple(section.trace.rank for section in sections) == shown


@pytest.mark.parametrize("rank", [None, 0])
def test_traces_of_the_same_name_and_rank_are_told_apart(rank: int | None) -> None:
    trace = replace(ov.load("traces/streamed0_pinned0.json.gz", progress=False), rank=rank)
    analyses = [analyze_trace(replace(trace, source=f"{folder}/same.json.gz")) for folder in ("a", "b")]
    page = Page(build(analyses, replayed=False))
    assert [section.label for section in page.sections()] == ["a/same.json.gz", "b/same.json.gz"]
    assert [section.title.split(",")[0] for section in page.sections()] == ["a/same.json.gz", "b/same.json.gz"]
    assert "on a/same.json.gz, also on b/same.json.gz" in terminal.render(document(page), width=200)


def test_a_share_of_nothing_is_not_a_number() -> None:
    assert words.share(0, 0) == words.share(None, 5) == "n/a"


def test_shares_add_up_to_100() -> None:
    assert words.bare_shares([1, 1, 1], 3) == ["33.4", "33.3", "33.3"]
    assert words.bare_shares([99_999, 1, 0], 100_000) == ["> 99.9", "< 0.1", "0"]


def test_two_times_that_differ_are_shown_differently() -> None:
    assert words.part_of(89_757_787, 89_757_787) == "all 89.8 ms"
    assert words.part_of(89_757_787, 89_799_999) == "nearly all 89.8 ms"
    assert words.part_of(24_300_000, 89_799_999) == "24.3 of 89.8 ms"
    assert words.part_of(11_000, 1_226_500_000) == "11.0 us of 1.23 s"
    assert words.part_of(0, 89_799_999) == "0 of 89.8 ms"


def test_a_time_that_is_not_nothing_is_not_shown_as_nothing() -> None:
    unit = words.unit_for(117_000_000)
    assert (unit.text(0), unit.text(1), unit.text(None)) == ("0 ms", "< 0.1 ms", "n/a")


@pytest.mark.parametrize(
    ("low_ns", "high_ns", "text"),
    [
        (-3, 4, "> -0.01 to < 0.01"),
        (-4, -3, "> -0.01"),
        (3, 4, "< 0.01"),
        (0, 20_000, "0 to 0.02"),
        (20_000, 20_001, "0.02"),
    ],
)
def test_ends_that_look_the_same_are_one(low_ns: int, high_ns: int, text: str) -> None:
    unit = words.unit_for(17_000_000)
    assert words.ends(unit.number(low_ns), unit.number(high_ns)) == text


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [(900_000, "900.0 us"), (7_600_000, "7.600 ms"), (45_000_000, "45.00 ms"), (40_000_000_000, "40.00 s")],
)
def test_unit_follows_the_length_of_the_window(span_ns: int, text: str) -> None:
    assert words.unit_for(span_ns).text(span_ns) == text


def test_sizes_are_decimal() -> None:
    assert [words.size(n) for n in (None, 12, 98_304, 999_999, 2_477_260_800)] == [
        "unknown",
        "12 B",
        "98.3 kB",
        "1 MB",
        "2.48 GB",
    ]


def test_clean_spells_out_whatever_a_terminal_acts_upon() -> None:
    safe = words.clean(HOSTILE)
    assert safe.isprintable()
    assert "\\x1b[31mRED" in safe
    assert words.clean("\udcff") == "\\udcff"


def test_shorten_keeps_both_ends() -> None:
    short = words.shorten("abcdefghijklmnop", 10)
    assert len(short) == 10
    assert (short[0], short[-1]) == ("a", "p")


def test_markdown_escape_leaves_nothing_to_interpret() -> None:
    safe = markdown.escape(HOSTILE)
    assert not re.search(r"(?<!\\)[|`<>*_\[\]@]", safe)
    assert "\n" not in safe
    assert "http://" not in safe


def test_the_strip_accounts_for_every_nanosecond_of_its_window() -> None:
    device = analyze_trace(ov.load("traces/pipeline_1stream.json.gz", progress=False)).devices[0]
    whole = device.result
    name = whole.steps[1].name
    measured = measure(device.timeline, whole, scope=name, slices=77)
    assert (measured.extent.label, measured.extent.of) == (name, 1)
    assert int(measured.slice_ns.sum()) == whole.steps[1].span_ns
    assert int(measured.idle_ns.sum()) == whole.steps[1].buckets.idle_ns
    assert int(measured.exposed_copy_ns.sum()) == whole.steps[1].buckets.exposed_copy_ns
    [lane] = measured.lanes
    assert int(lane.busy_ns[Kind.COMPUTE].sum()) == whole.steps[1].buckets.compute_ns


def test_the_strip_keeps_the_busiest_streams_and_says_how_many_it_left_out() -> None:
    device = analyze_trace(ov.load("traces/pipeline_3stream.json.gz", progress=False)).devices[0]
    measured = measure(device.timeline, device.result, slices=10, lanes=2)
    assert len(measured.lanes) == 2
    assert measured.left_out == 1


def test_a_slice_shows_its_longest_kind_and_how_full_it_was() -> None:
    device = analyze_trace(ov.load("traces/pipeline_3stream.json.gz", progress=False)).devices[0]
    measured = measure(device.timeline, device.result, slices=60)
    drawing = draw_strip(measured, words.unit_for(1_000_000_000), ASCII)
    for line, lane in zip(drawing.lanes, measured.lanes, strict=True):
        assert len(line.text) == 60
        for slice, kind in enumerate(line.kinds):
            busy = lane.busy_ns[:, slice]
            assert kind == (Kind(int(np.argmax(busy))) if busy.any() else None)
    assert all(line.isascii() for line in drawing.plain())


def test_the_whole_window_is_shown_where_the_median_step_would_hide_the_loss() -> None:
    assert _strip_of([100, 100, 100, 100, 100, 100]).extent.label == "ProfilerStep#2"
    whole = _strip_of([100, 100, 900, 100, 100, 100]).extent
    assert whole.label == "" and strip_title(whole) == "Timeline of all that was recorded"
    assert strip_title(replace(whole, is_all=False)) == "Timeline of all after the lead-in"
    # Every step loses time to communication, so the median one shows it.
    assert _strip_of([290, 290, 900, 290, 290, 290], comm_ns=190).extent.label == "ProfilerStep#3"


def _strip_of(lengths: list[int], comm_ns: int = 0) -> Strip:
    """The strip of steps of these lengths, in which the GPU computes for 100 ns and then communicates."""
    begins = [10 + sum(lengths[:number]) for number in range(len(lengths))]
    kinds = ((Kind.COMPUTE, 0, 100), (Kind.COMM, 100, 100 + comm_ns))[: 2 if comm_ns else 1]
    ops = [Op(kind, at + start, at + end, launch=(at - 9, at - 8)) for at in begins for kind, start, end in kinds]
    notes = [Host(f"ProfilerStep#{number}", begin - 10, begin + 80) for number, begin in enumerate(begins)]
    device = analyze_trace(make_trace(ops, annotations=notes)).devices[0]
    return measure(device.timeline, device.result, slices=10)


def test_verdict_names_the_overlap_the_exposed_copies_and_what_to_fix() -> None:
    text = verdict_of("traces/pipeline_1stream.json.gz")
    assert text.startswith(
        "pipeline_1stream.json.gz, NVIDIA H200: Copy-bound: in each step of 29.5 ms, copies run alone for "
        "22.4 ms (76.2%; 16.4 ms because they outlast compute)"
    )
    why, remedy = text.splitlines()[1:]
    assert why.startswith("Why: Uploads and downloads take turns")
    assert re.fullmatch(r"Next: .*\. It saves about \d.* a step \(5\d\.\d%\), \d.*\.", remedy)


def test_verdict_says_that_a_healthy_trace_is_good() -> None:
    page = page_of("traces/known_causes/healthy_prefetch.json.gz")
    verdict = judge(next(page.sections()))
    assert verdict.level == "good"
    assert ": No overlap problems found: " in verdict.text


def test_verdict_does_not_call_a_gpu_good_that_only_waits_for_copies() -> None:
    verdict = judge(next(page_of("traces/known_causes/no_compute.json.gz").sections()))
    assert verdict.level != "good"
    assert "because they outlast compute" in verdict.text


@pytest.mark.parametrize("name", ["ddp/rank0", "mixed_workloads/model_on_two_devices"])
def test_verdict_begins_with_the_largest_loss(name: str) -> None:
    """More than a quarter of the window is idle, next to 3% of exposed communication or copies."""
    assert re.search(r": [^:]*[Ii]n each step of [^,]*, the GPU is idle for ", verdict_of(f"traces/{name}.json.gz"))


def test_verdict_does_not_call_a_gpu_good_whose_idle_time_nobody_can_explain(tmp_path: Path) -> None:
    events = [kineto_files.kernel(10 * number, 5, correlation=number + 1) for number in range(20)]
    verdict = judge(next(page_of(str(kineto_files.write(tmp_path / "gpu_only.json", events))).sections()))
    assert verdict.level == "unknown"
    assert "mostly unknown); how much of that is the profiler's is not known" in verdict.text
    assert "No overlap problems" not in verdict.text


def test_verdict_says_when_trust_is_degraded() -> None:
    page = page_of("traces/known_causes/event_wait_no_sync_events.json.gz")
    assert (
        judge(next(page.sections())).doubt
        == "Some figures may be wrong: sync-events warned (overlapscope explain sync-events says what to do)."
    )
    assert "enable_cuda_sync_events" in terminal.render(document(page), width=80)
    short = terminal.render(brief(document(page)), width=80)
    assert "Some figures may be wrong: sync-events warned" in short
    assert "enable_cuda_sync_events" not in short


@pytest.mark.parametrize("width", [40, 80, 120, 300])
@pytest.mark.parametrize("name", ["pipeline_3stream", "ddp/rank0", "known_causes/host_sync_stacks"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    page = page_of(f"traces/{name}.json.gz", verbose=True)
    lines = terminal.render(document(page), width=max(width, 74), color=None).splitlines()
    assert max(len(line) for line in lines) <= max(width, 74)


def test_without_colour_there_are_no_control_codes() -> None:
    page = page_of("traces/pipeline_1stream.json.gz")
    assert "\x1b" not in terminal.render(document(page), width=80)
    assert "\x1b" in terminal.render(document(page), width=80, color="standard")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_characters_that_the_encoding_lacks_are_replaced(encoding: str) -> None:
    page = page_of("traces/pipeline_1stream.json.gz")
    terminal.render(document(page), width=80, encoding=encoding).encode(encoding)


def test_markdown_is_deterministic_and_its_tables_are_rectangular() -> None:
    page = page_of("traces/ddp/rank0.json.gz", verbose=True)
    text = markdown.render(document(page))
    assert text == markdown.render(document(page))
    columns = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not columns or cells == columns
        columns = cells


def test_a_report_without_timelines_has_no_strip() -> None:
    report: Report = page_of("traces/pipeline_1stream.json.gz").report
    assert "Timeline" not in terminal.render(document(Page(report)), width=80)
    assert "Timeline" not in markdown.render(document(Page(report)))


@pytest.mark.parametrize("parts", [(3356, 95, 6549), (1136, 8665, 199), (1492, 8205, 303), (0, 4996, 5004), (1, 2, 3)])
def test_a_share_is_the_same_in_tables_and_texts_and_the_first_makes_up_the_difference(parts: tuple[int, ...]) -> None:
    first, *others = words.bare_shares(parts, sum(parts))
    assert others == [words.bare_share(part, sum(parts)) for part in parts[1:]]
    assert sum(map(float, (first, *others))) == pytest.approx(100)


def test_a_median_of_an_even_number_of_lengths_is_between_the_middle_two() -> None:
    assert [median_ns(lengths) for lengths in ([1, 4], [7], [9, 1, 3, 5])] == [2, 7, 4]


def test_a_cause_has_one_share_in_the_table_and_in_the_finding_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "traces/pipeline_1stream.json.gz"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    [in_finding] = re.findall(r"run alone for 6.09 ms a step \(([\d.]+)%\)", output)
    assert re.findall(r"copy: same-stream 6.09 ([\d.]+)", output) == [in_finding]


def test_ops_have_the_time_of_their_kernels() -> None:
    section = next(page_of(str(TRACES / "ddp" / "rank1.json.gz"), verbose=True).sections())
    assert section.device is not None
    tables = lists.kernels(section, section.device), lists.ops(section, section.device)
    for name in ("calls", "time", "exposed"):
        sums = [sum(table_numbers(table, name)) for table in tables]
        assert sums[0] == pytest.approx(sums[1]) and sums[0] > 0


def table_numbers(table: Table, id: str) -> list[float]:
    (place,) = (number for number, column in enumerate(table.columns) if column.id == id)
    return [float(row.cells[place].value or 0) for row in table.rows]
