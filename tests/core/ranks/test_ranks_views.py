"""A report of ranks as a person sees it: the answer first, few rows however many ranks, and nothing foreign harms."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.base.saved import encode
from overlapscope.documents.model import brief
from overlapscope.documents.table import Table
from overlapscope.ranks import charts
from overlapscope.ranks import document as ranks_document
from overlapscope.ranks import verdict as words
from overlapscope.ranks.charts import (
    MAX_BARS,
    MAX_STEPS,
    columns_for,
    drawn_steps,
    has_rank_buckets,
    rank_buckets,
    rank_map,
    slot_at,
    slots,
    step_map,
)
from overlapscope.ranks.comm_words import group_ranks, meeting_name
from overlapscope.ranks.document import MARKDOWN, PAGE, TERMINAL, document, look_sentences, look_title
from overlapscope.ranks.join import report_on
from overlapscope.ranks.parts import from_json
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import Clocks, Duplicate, Matching, RankRow, RanksReport, Unreadable, framed
from overlapscope.reading import expand, load
from overlapscope.render import html, markdown, terminal
from overlapscope.trace.host import Where
from tests.support.ranks_samples import HOSTILE, counting_all_waits, job, multiplied, recorded

STATES = ("missing", "unreadable")
MISSING, BROKEN = (*range(40, 48), 700), (7,)
BOTH = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def real() -> RanksReport:
    return joined(*counting_all_waits())


def joined(*ranks: Any) -> RanksReport:
    return report_on(ranks)


def large() -> RanksReport:
    return job(1024, missing=MISSING, broken=BROKEN)


def of_no_job() -> RanksReport:
    """Traces that do not say their rank."""
    return joined(*(rank for path in expand(["traces/streamed*.json.gz"])[:2] for rank in reduce(load(path))))


def shown(report: RanksReport, width: int = 120) -> str:
    return terminal.render(document(report, TERMINAL), width=width)


def all_tables(report: RanksReport) -> list[Table]:
    return [*ranks_document.main_tables(report), *(table for _, table in ranks_document.other_tables(report))]


def in_markdown(report: RanksReport) -> str:
    return markdown.render(document(report, MARKDOWN))


def page(report: RanksReport) -> str:
    return html.render(document(report, PAGE))


# -- the answer -----------------------------------------------------------------------------------


def test_the_answer_on_the_recorded_job_comes_first() -> None:
    first, second, third, *_ = shown(real(), 200).splitlines()
    assert first.startswith("Rank 0 delays the other rank by up to 1.86 ms a step (5.0%); it comes last in 8 of 18")
    assert first.endswith(", mostly in allreduce.")
    assert second == "Rank 0's GPU is idle 1.49 ms a step longer than the other rank, by dispatch."
    causes = "unknown 50.2% and straggler 49.8%"
    assert third == f"Exposed communication takes 2.8% to 8.7% of the time. Its causes: {causes}."
    assert words.judge(real()).level == "poor"


def test_why_a_rank_is_late_has_the_line_of_most_of_that_time() -> None:
    report = real()
    first, *others = report.worst
    where = Where(op=None, call=None, line="train.py:12 in \x1b[2Jbatch")
    found = (replace(first.findings[0], rule="python", where=where), replace(first.findings[0], rule="dispatch"))
    for findings, ending in ((found, "by dispatch."), (found[:1], "by dispatch.")):
        late = replace(report, worst=(replace(first, findings=findings), *others))
        assert ending in words.judge(late).text
    at_line = replace(first.findings[0], rule="dispatch", where=where)
    late = replace(report, worst=(replace(first, findings=(at_line,)), *others))
    assert "by dispatch, mostly at train.py:12 in \\x1b[2Jbatch." in words.judge(late).text


def test_a_rank_delays_no_other_whose_compute_was_not_launched() -> None:
    """Rank 1 waits 1.98 ms a step in collectives, while its host launches compute that needs nothing of them."""
    first, second, *_ = shown(joined(*recorded()), 200).splitlines()
    assert first.startswith("The 2 ranks are balanced")
    assert "Its causes: late-compute 53.2%, no-compute 28.9%" in second


def test_the_planted_straggler_is_named_among_a_thousand() -> None:
    verdict = words.judge(large())
    assert verdict.lead.startswith("Rank 5 delays each other rank by up to ")
    assert verdict.rest[-1] == "Incomplete: 9 ranks missing and 1 trace unreadable."


def test_several_stragglers_are_all_named() -> None:
    report = real()
    straggler = replace(report.stragglers[0], lost_pct=7.5, others=7)
    several = replace(report, stragglers=tuple(replace(straggler, rank=rank) for rank in range(6)))
    verdict = words.judge(several)
    assert verdict.level == "poor"
    assert verdict.rest[1] == "Rank 1 (7.5%), rank 2 (7.5%), rank 3 (7.5%) and 2 more also delay the others."


def test_a_delay_that_the_profiler_may_have_caused_is_not_called_poor() -> None:
    report = real()
    late = replace(report.stragglers[0], lost_pct=7.5, lost_per_step_ns=1_600_000)

    def judged(plain_ns: int) -> words.RanksVerdict:
        rows = tuple(
            replace(row, judged=replace(row.judged, span_ns=35_000_000), plain_step_ns=plain_ns)
            for row in report.ranks
            if row.judged is not None
        )
        return words.judge(replace(report, ranks=rows, stragglers=(late,)))

    assert (judged(33_000_000).level, judged(33_400_000).level, judged(34_000_000).level) == ("fair", "fair", "poor")
    assert (
        "Without the profiler a step takes 33.00 ms, in the recording 35.00 ms, so all of this delay may be the "
        "profiler's." in judged(33_000_000).rest
    )
    assert not any("profiler" in sentence for sentence in judged(34_000_000).rest)


def test_ranks_that_cost_each_other_next_to_nothing_are_even() -> None:
    report = real()
    even = replace(report, stragglers=(replace(report.stragglers[0], lost_pct=0.4, sure_pct=0.3),), unseen_pct=0.9)
    verdict = words.judge(even)
    assert verdict.level == "good"
    assert verdict.lead.startswith("The 2 ranks are balanced: no rank delays the others by 1% of their time; rank 0 ")
    assert verdict.lead.endswith("(0.4%).")
    assert words.judge(replace(even, missing=(2,))).level == "fair"


def test_ranks_whose_communication_was_not_compared_are_not_called_balanced() -> None:
    report = real()
    busy, idle = report.ranks
    unmatched = replace(busy, unjudged_comm_ns=busy.span_ns // 2)
    verdict = words.judge(replace(report, stragglers=(), ranks=(unmatched, idle)))
    assert verdict.level == "unknown"
    assert verdict.lead == (
        "The balance of the 2 ranks is not judged: exposed communication that could not be compared between ranks "
        "takes up to 50.0% of the time (rank 0)."
    )


def test_a_rank_that_idles_while_the_others_communicate_is_named_though_nothing_was_compared() -> None:
    report = real()
    busy, idle = report.ranks
    unmatched = replace(busy, unjudged_comm_ns=busy.span_ns // 2)
    idling = replace(idle, buckets=replace(idle.buckets, idle_ns=9 * idle.span_ns // 10), device_name="Ascend NPU")
    rows = replace(report, stragglers=(), ranks=(unmatched, idling))
    said = words.judge(rows).rest[0]
    assert said.startswith("Rank 1's NPU is idle for 90.0% of the time (others: ") and said.endswith(
        "while the others spend 50.0% in communication that could not be compared: they probably wait for it."
    )
    nothing = Matching(kernels=9, matched=0, unmatched=9, not_collective=0, meetings=0, judged=0, by="none")
    assert words.judge(replace(rows, matching=nothing)).rest[0] == said
    # Without collectives they wait for messages, as stages of a pipeline do.
    assert "probably" not in words.judge(replace(rows, matching=replace(nothing, not_collective=9))).text


def test_a_straggler_is_not_the_whole_truth_if_much_communication_was_not_compared() -> None:
    report = real()
    assert report.straggler is not None
    first, second = report.ranks
    rows = (replace(first, unjudged_comm_ns=first.span_ns // 4), second)
    assert "There may be more delays" not in words.judge(report).text
    assert (
        "There may be more delays: exposed communication that could not be compared between ranks takes up to 25.0% "
        "of the time (rank 0)."
    ) in words.judge(replace(report, ranks=rows)).rest


def test_where_nothing_can_be_compared_it_is_said_why() -> None:
    nothing = Matching(kernels=9, matched=0, unmatched=9, not_collective=0, meetings=0, judged=0, by="none")
    clocks = Clocks(
        status="unknown", reference_rank=None, largest_offset_ns=None, largest_error_ns=None, reason="Nothing matches."
    )
    report = replace(real(), stragglers=(), matching=nothing, clocks=clocks)
    verdict = words.judge(report)
    assert (verdict.level, verdict.lead) == ("unknown", "Delays between ranks cannot be measured: nothing matches.")
    assert "unknown, so arrival times cannot be compared" in words.clocks(report)[0]
    known = replace(report, clocks=replace(clocks, status="estimated"))
    assert words.judge(known).lead.endswith("no collective of theirs could be compared.")
    messages = replace(known, matching=replace(nothing, not_collective=9))
    assert words.judge(messages).lead.endswith("there are no collectives.")
    assert words.judge(joined(recorded()[0])).lead.startswith("There is only one rank")
    assert words.judge(of_no_job()).lead.startswith("No trace states its rank")
    assert words.judge(joined(Unreadable(source="a", reason="b"))).level == "unusable"


def test_what_is_not_there_is_reported_in_few_words() -> None:
    doubts = words.doubts(large())
    assert doubts[0] == "Missing: 9 ranks of 1,024 expected: 40 to 47, 700."
    assert doubts[1] == "Unreadable: rank 7, job/rank7.json.gz: is damaged; copy it again."
    twice = Duplicate(rank=3, sources=("a.json", "b.json"))
    report = replace(real(), duplicated=(twice,) * 8, missing=tuple(range(0, 60, 2)))
    doubts = words.doubts(report)
    assert doubts[0].endswith("20, 22 and more.")
    assert doubts[1] == "Recorded more than once: rank 3 in a.json and b.json; a.json is compared."
    assert doubts[6] == "3 more ranks recorded more than once; the JSON names all."


@pytest.mark.parametrize(
    ("ranks", "message"),
    [((3,), "3"), ((3, 4), "3, 4"), ((3, 4, 5), "3 to 5"), ((1, 3, 4, 5, 9), "1, 3 to 5, 9")],
)
def test_ranks_that_follow_one_another_are_named_as_one(ranks: tuple[int, ...], message: str) -> None:
    assert words.runs(ranks) == message


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("[0, 1]", "[0, 1]"),
        ("[0, 1, 2, 3, 4, 5, 6, 7]", "[0 to 7]"),
        ("[8, 1, 2, 3]", "[1 to 3, 8]"),
        ("[0, 8, 16, 24, 32, 40, 48]", ""),
        ("[0, 1, ..., 63]", "[0, 1, ..., 63]"),
        (f"[{'1' * 5000}]", ""),
        ("[]", "[]"),
        ("", ""),
    ],
)
def test_ranks_of_a_group_are_named_in_few_words(recorded: str, shown: str) -> None:
    assert group_ranks(recorded) == shown


def test_a_collective_is_named_with_its_group_if_there_are_several() -> None:
    report = real()
    meeting, row = report.meetings[0], report.communication.rows[0]
    assert meeting_name(report, meeting) == f"allreduce, no. {meeting.index}"
    other = replace(row, group="1", group_ranks="[0, 1, 2, 3]")
    several = replace(report, communication=replace(report.communication, rows=(row, other)))
    assert meeting_name(several, meeting) == f"allreduce of [0, 1], no. {meeting.index}"
    same_ranks = replace(report, communication=replace(report.communication, rows=(row, replace(row, group="1"))))
    assert meeting_name(same_ranks, meeting) == f"allreduce of group 0 [0, 1], no. {meeting.index}"
    unrecorded = replace(meeting, group="", group_ranks="")
    assert meeting_name(report, unrecorded) == f"allreduce of an unknown group, no. {meeting.index}"


def test_clocks_are_reported_with_their_error() -> None:
    sentences = " ".join(words.clocks(real()))
    assert sentences.startswith("The clocks agree within 106.2 us.")
    assert "The time between two arrivals is known to 54.5 us (the median collective)." in sentences
    apart = replace(real().clocks, status="estimated", largest_offset_ns=3_000_000)
    estimated = " ".join(words.clocks(replace(real(), clocks=apart)))
    assert estimated.startswith("Clocks differ by up to 3.000 ms and were aligned with rank 0 to within 106.2 us.")


def test_a_rank_that_is_not_named_may_delay_the_others_within_the_error() -> None:
    def judged(unseen_pct: float | None) -> words.RanksVerdict:
        return words.judge(replace(real(), stragglers=(), unseen_pct=unseen_pct))

    known = "Arrivals at collectives are known to 54.5 us"
    assert judged(0.9).lead == "The 2 ranks are balanced: no rank delays the others by 1% of their time."
    assert judged(1.0).lead == f"No rank is seen to delay the others. {known}: unseen delays take 1.0% at most."
    hidden = f"{known}, so delays of up to 5.0% of the time may be hidden: the balance of the 2 ranks is not judged."
    assert judged(5.0).lead == hidden
    torn = "The balance of the 2 ranks is not judged: clocks jumped in all steps that they share."
    assert judged(None).lead == torn
    levels = [judged(pct).level for pct in (0.9, 1.0, 4.9, 5.0, None)]
    assert levels == ["good", "fair", "fair", "unknown", "unknown"]


def test_traces_without_a_rank_are_not_called_one_rank() -> None:
    assert words.clocks(of_no_job())[1] == "No trace states its rank, so nothing can be compared."
    assert "<h1>overlapscope ranks: 2 traces, " in page(of_no_job()) and "<h1>overlapscope ranks: 2 ranks, " in page(
        real()
    )


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [real, large, of_no_job])
def test_every_row_has_a_cell_for_every_column(make: Any) -> None:
    for table in [*all_tables(make()), ranks_document.each_rank(make())]:
        assert table.rows
        assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_a_thousand_ranks_are_a_screenful_or_two() -> None:
    lines = shown(large()).splitlines()
    assert len(lines) < 90
    assert len(terminal.render(brief(document(large(), TERMINAL)), width=80).splitlines()) < 60
    assert len(in_markdown(large())) < 20_000
    assert sum("rank 1000" in line for line in lines) == 0


def test_the_answer_and_its_evidence_are_one_screen() -> None:
    lines = terminal.render(brief(document(real(), TERMINAL)), width=80).splitlines()
    assert len(lines) <= 45
    assert lines[-1].endswith("clocks.") and not any("Clocks" in line for line in lines)


def test_what_several_ranks_need_is_reported_once() -> None:
    report = real()
    worst = report.worst[0]
    others = [
        replace(
            worst, rank=rank, findings=tuple(replace(finding, rank=rank, cost_ns=rank) for finding in worst.findings)
        )
        for rank in (1, 2, 3)
    ]
    lines = shown(replace(report, worst=(worst, *others))).splitlines()
    findings = [line for line in lines if re.match(r"- [a-z-]+ \(rank", line)]
    assert len(findings) == len({finding.rule for finding in worst.findings})
    assert all("(ranks 0 to 3; figures of rank 0): " in line for line in findings)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("make", [real, large])
def test_no_line_is_wider_than_the_terminal(make: Any, width: int) -> None:
    assert max(map(len, shown(make(), width).splitlines())) <= width


def test_in_a_narrow_terminal_columns_are_left_out_and_no_number_is_broken() -> None:
    lines = shown(joined(*recorded()), 60).splitlines()
    (head,) = [line for line in lines if line.startswith("step ") and "median" in line]
    assert head.split()[-1] == "%" and "spread" not in head
    first = lines[lines.index(head) + 1]
    assert len(first.split()) == 7 and len(first) == len(head)


def test_what_makes_one_rank_doubtful_is_not_hidden_by_what_all_have() -> None:
    row = real().ranks[0]
    waits = replace(row, trust="degraded", doubt_ids=("waits",))
    usual = [replace(waits, rank=n, doubts=(f"{n} event waits.",)) for n in range(12)]
    doubts = ("The file is cut off.", "3 event waits.")
    cut = replace(row, rank=12, trust="degraded", doubts=doubts, doubt_ids=("file-complete", "waits"))
    broken = replace(row, rank=13, trust="unusable", doubts=("There is no GPU activity.",), doubt_ids=("gpu",))
    assert [doubt for doubt in words.doubts(replace(real(), ranks=(*usual, cut, broken))) if ": rank" in doubt] == [
        "Some figures may be wrong: rank 12. The file is cut off. (overlapscope explain file-complete)",
        "Unusable: rank 13. There is no GPU activity. (overlapscope explain gpu)",
        "Some figures may be wrong: ranks 0 to 11. Rank 0: 0 event waits. (overlapscope explain waits)",
    ]


def test_a_second_trace_of_a_rank_is_named_with_its_file() -> None:
    report = real()
    again = replace(report.ranks[1], source="again/copy.json", joined=False)
    table = ranks_document.each_rank(replace(report, ranks=(*report.ranks, again)))
    assert [row.cells[0].text for row in table.rows] == ["rank 0", "rank 1", "rank 1 (copy.json)"]


def test_traces_of_no_common_job_have_no_clock_offsets() -> None:
    report = real()
    alone = replace(report, ranks=tuple(replace(row, meetings=0, joined=False) for row in report.ranks))
    ids = [[column.id for column in ranks_document.each_rank(of).columns] for of in (report, alone)]
    assert "offset" in ids[0] and "offset" not in ids[1]


def test_few_ranks_have_a_row_each() -> None:
    by_rank = {table.id: table for table in all_tables(job(8))}
    assert len(by_rank[ranks_document.EACH_RANK].rows) == 8
    assert ranks_document.EACH_RANK not in {table.id for table in all_tables(large())}


def test_of_many_steps_those_that_spread_most_are_shown() -> None:
    report = real()
    step = report.steps[0]
    many = tuple(replace(step, name=f"ProfilerStep#{n}", max_ns=step.median_ns + n) for n in range(200))
    table = ranks_document.steps(replace(report, steps=many), rows=5)
    assert [row.cells[0].text for row in table.rows] == [f"ProfilerStep#{n}" for n in range(195, 200)]
    assert table.note == "The 195 other steps differ less."


def test_who_came_last_is_not_said_where_the_clocks_do_not_tell() -> None:
    meeting = real().meetings[0]
    assert words.late_name(replace(meeting, together=1)) == "rank 0"
    assert words.late_name(replace(meeting, together=3)) == "rank 0 or 2 more"
    assert words.late_name(replace(meeting, together=0)) == "unknown"


def test_a_rank_worth_a_look_comes_with_what_it_has_more_of() -> None:
    rank = real().worst[0]
    assert look_title(rank) == "Rank 0 delays the others"
    more, causes = look_sentences(rank)
    assert "in a step: idle +" in more and " against " in more
    assert causes.startswith("Why its GPU waits: idle by dispatch ")


def test_every_rank_can_be_sorted_by_number() -> None:
    grid = ranks_document.each_rank(large())
    assert len(grid.rows) == 1014
    ranks = [row.cells[0].value for row in grid.rows]
    assert ranks == sorted(ranks, key=lambda rank: int(rank or 0))
    assert all(len(row.cells) == len(grid.columns) for row in grid.rows)


# -- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "columns"), [(1, 8), (64, 8), (65, 16), (512, 32), (1024, 32), (10_000, 128)])
def test_lines_of_a_map_are_a_power_of_two(count: int, columns: int) -> None:
    assert columns_for(count) == columns


def test_every_rank_has_its_place_whether_it_is_here_or_not() -> None:
    places = slots(large())
    assert [place.label for place in places] == [str(rank) for rank in range(1024)]
    absent = {state: [n for n, place in enumerate(places) if place.state == state] for state in STATES}
    assert absent == {"missing": list(MISSING), "unreadable": list(BROKEN)}
    assert all(large().ranks[place.row].rank == n for n, place in enumerate(places) if place.row is not None)


def test_two_traces_of_one_rank_and_two_devices_of_one_are_distinguished() -> None:
    first = multiplied(0, 2)
    copy = replace(first, source="job/rank0-copy.json.gz")
    other = replace(multiplied(1, 2), device=5)
    result = slots(joined(first, copy, multiplied(1, 2), other))
    assert [place.name for place in result] == ["rank 0", "rank 1, device 1", "rank 1, device 5"]


@BOTH
@pytest.mark.parametrize("make", [real, large, of_no_job])
def test_a_map_is_plain_json_and_tells_which_rank_is_where(make: Any, dark: bool) -> None:
    report = make()
    drawn = [rank_map(report, metric, dark) for metric in charts.metrics_shown(report)]
    drawn += [step_map(report, dark)] if drawn_steps(report) else []
    drawn += [rank_buckets(report, dark)]
    assert len(drawn) >= 2
    for figure in drawn:
        assert "NaN" not in json.dumps(figure)
    places = slots(report)
    for figure in drawn[: len(charts.metrics_shown(report))]:
        texts = [item for line in figure["data"][0]["hovertext"] for item in line]
        assert all(text.removeprefix("<b>").startswith(place.name) for text, place in zip(texts, places, strict=False))
        assert not any(texts[len(places) :])


def test_a_click_on_a_map_finds_the_rank() -> None:
    slots_hit = [slot_at(large(), x, y) for x, y in ((0, 0), (31, 0), (0, 1), (31, 31), (0, 32), (1023, 0))]
    assert [place and place.label for place in slots_hit] == ["0", "31", "32", "1023", None, "1023"]


def test_a_map_is_darkest_for_the_rank_that_delays_most_and_dark_for_what_is_much_of_a_step() -> None:
    report, metric = large(), charts.METRICS["delay"]
    heat, absent = rank_map(report, metric, False)["data"]
    values = [value for line in heat["z"] for value in line]
    assert max(range(1024), key=lambda rank: values[rank] or 0) == 5
    assert (heat["zmin"], heat["zmax"]) == (0, pytest.approx(0.05 * 37.6, rel=0.02))
    late = report.stragglers[0]
    assert late.rank == 5 and late.lost_per_step_ns == pytest.approx(values[5] * 1e6, abs=1)
    crosses = [n for n, cross in enumerate(cross for line in absent["text"] for cross in line) if cross]
    assert crosses == sorted((*MISSING, *BROKEN))


def with_step(row: RankRow, **figures: object) -> RankRow:
    """Return the row with other figures of its average step."""
    assert row.judged is not None
    return replace(row, judged=replace(row.judged, **figures))


def test_what_is_even_looks_even() -> None:
    report = real()
    even = replace(report, ranks=tuple(with_step(row, span_ns=40_000_000 + row.device) for row in report.ranks))
    heat = rank_map(even, charts.METRICS["step"], False)["data"][0]
    assert heat["zmax"] - heat["zmin"] == pytest.approx(0.05 * 40, rel=1e-3)


def test_the_map_of_steps_shows_how_much_longer_each_took() -> None:
    report = real()
    figure = step_map(report, False)
    for line, step, number in zip(figure["data"][0]["z"], report.steps, range(len(report.steps)), strict=True):
        spans = [row.step_spans_ns[number] or 0 for row in report.ranks]
        assert line == pytest.approx([100 * (span / step.median_ns - 1) for span in spans])
    many = (report.steps[0],) * 100
    rows = tuple(replace(row, step_spans_ns=row.step_spans_ns[:1] * 100) for row in report.ranks)
    figure = step_map(replace(report, steps=many, ranks=rows), False)
    assert len(figure["data"][0]["z"]) == MAX_STEPS
    crowd = replace(report, steps=many, ranks=tuple(replace(rows[0], rank=rank) for rank in range(8192)))
    assert len(drawn_steps(crowd)) == 4
    assert not drawn_steps(of_no_job())


def test_so_many_ranks_that_bars_would_not_be_seen_have_none() -> None:
    report = real()
    rows = tuple(replace(report.ranks[0], rank=rank) for rank in range(MAX_BARS + 1))
    assert has_rank_buckets(report) and not has_rank_buckets(replace(report, ranks=rows))


# -- files ----------------------------------------------------------------------------------------


def hostile() -> RanksReport:
    """Whatever a trace may have written says something else."""
    data = encode(job(4, broken=(3,))).decode()
    for name in ("allreduce", "job/rank1.json.gz", "job/rank3.json.gz", "ProfilerStep#3", "NVIDIA H200", "is damaged"):
        assert name in data
        data = data.replace(name, json.dumps(HOSTILE)[1:-1])
    return from_json(data.encode())


def test_nothing_foreign_gets_through_as_it_is() -> None:
    report = hostile()
    lines = shown(report)
    assert "\x1b" not in lines and "onerror" in lines
    assert "<img" not in page(report)
    shown_in = in_markdown(report)
    assert "<img" not in shown_in.replace("\\<img", "") and "\x1b" not in shown_in
    figures = [rank_map(report, metric, False) for metric in charts.metrics_shown(report)]
    assert "<img" not in json.dumps([*figures, step_map(report, False), rank_buckets(report, False)])


def test_markdown_has_the_answer_and_whole_tables() -> None:
    lines = in_markdown(large()).splitlines()
    assert lines[2].startswith("**Fair.** Rank 5 delays each other rank")
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")]
    expected = [[len(table.columns) + 1] * (len(table.rows) + 2) for table in all_tables(large())]
    assert bars == [count for table in expected for count in table]


def test_html_is_one_file_with_the_maps_in_it() -> None:
    text = page(large())
    assert "Rank 5 delays each other rank" in unescape(text)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    for id in (*range(len(charts.metrics_shown(large()))), "steps", "buckets"):
        assert f'id="ranks-{id}"' in text
    assert "All 1,014" in text
    assert text.count("<tr>") > 1014
    assert len(text) < 4_000_000


def test_idle_time_leaves_out_time_in_which_the_gpu_may_have_worked() -> None:
    row = job(2).ranks[0]
    assert row.judged is not None
    idle_ns = row.judged.buckets.idle_ns
    lost = replace(row, judged=replace(row.judged, idle_by_cause={"missing-ops": idle_ns - 5, "host-sync": 5}))
    [shown] = framed([lost], 1)
    assert shown.buckets == replace(row.judged.buckets, idle_ns=5)
