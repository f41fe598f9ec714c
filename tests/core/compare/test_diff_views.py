"""Tests of the views of a diff: shown and omitted rows, and harmless text from traces."""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.base.words import unit_for
from overlapscope.commands import main
from overlapscope.compare import document as tables
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import DeviceDiff, Diff
from overlapscope.compare.document import COMMENT_CHARACTERS, document
from overlapscope.compare.words import finding_standing, interval, mark, pair, relative, side_name, signed, standing
from overlapscope.documents.model import Room, brief
from overlapscope.documents.table import Table
from overlapscope.inputs import read_report
from overlapscope.reading.samples import SAMPLES
from overlapscope.render import html, markdown, terminal
from tests.support.diff_samples import HOSTILE, MS, change, device, figures, kernel, sample, side

LABORATORY = Path("traces/laboratory")
PAIRS = [
    ("offload_pipeline/one_stream.trace.json.gz", "offload_pipeline/two_streams.trace.json.gz"),
    ("copy_matrix/streamed0_pinned0.trace.json.gz", "copy_matrix/streamed1_pinned1.trace.json.gz"),
    ("dataloader/pinned0_nonblocking0_workers0.trace.json.gz", "dataloader/prefetcher.trace.json.gz"),
    ("ddp_training/no_overlap.traces", "ddp_training/ddp.traces"),
]
NAIVE, PREFETCHED = (SAMPLES / f"training_{name}.json.gz" for name in ("naive", "prefetched"))
"""A pair with several judged steps."""
MS_UNIT = unit_for(50 * MS)


@cache
def real(before: str, after: str) -> Diff:
    return diff(read_report([LABORATORY / before]), read_report([LABORATORY / after]))


def of_device(device: DeviceDiff, *, verbose: bool) -> list[Table]:
    return [tables.buckets(device), *tables.causes(device, verbose=verbose), *tables.details(device, verbose=verbose)]


def of_table(result: Diff, title: str, *, verbose: bool = False) -> list[list[str]]:
    shown = of_device(result.devices[0], verbose=verbose)
    return [row for table in shown if table.title == title for row in table.texts()]


def as_text(
    result: Diff, *, width: int, verbose: bool = False, encoding: str = "utf-8", color: str | None = None
) -> str:
    return terminal.render(document(result, verbose=verbose), width=width, encoding=encoding, color=color)


def as_comment(result: Diff, *, verbose: bool = False) -> str:
    whole = document(result, verbose=verbose, room=Room(markdown.lines, COMMENT_CHARACTERS))
    return markdown.render(whole if verbose else brief(whole))


def as_page(result: Diff, *, verbose: bool = False) -> str:
    return html.render(document(result, verbose=verbose))


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [(0, 0, "0"), (5 * MS, 7 * MS, "+2.00"), (7 * MS, 5 * MS, "-2.00"), (0, 10, "< +0.01"), (10, 0, "> -0.01")],
)
def test_a_change_has_a_sign_and_is_never_rounded_to_nothing(before: int, after: int, message: str) -> None:
    assert signed("ns", change(before, after).change, MS_UNIT) == message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [(4 * MS, 3 * MS, "-25.0"), (0, MS, ""), (MS, MS, ""), (MS, MS + 1, "< +0.1"), (10, 5 * MS, "> +1,000")],
)
def test_a_share_of_nothing_is_left_empty(before: int, after: int, message: str) -> None:
    assert relative(change(before, after)) == message


def test_points_have_no_share_of_their_own() -> None:
    assert relative(change(20.0, 40.0, unit="pct")) == ""


def test_what_a_change_is_worth_is_reported_in_a_word() -> None:
    more = change(MS, 2 * MS)
    assert (mark(more, "less"), mark(more, "more"), mark(more, None)) == ("worse", "better", "more")
    assert mark(change(MS, MS + 5), "less") == "~"
    assert mark(change(MS, 2 * MS, noise=None), "less") == "?"
    assert mark(replace(change(MS, 2 * MS, noise=None), noise_floor=2 * MS), "less") == "~"
    assert mark(change(MS, MS), "less") == "same"
    assert (mark(change(None, 5.0), "more"), mark(change(5.0, None), "more")) == ("new", "gone")
    assert mark(change(None, None), "more") == ""


def test_both_sides_share_a_cell_where_they_are_equal() -> None:
    assert pair(change(4, 4, unit="count"), MS_UNIT) == "4"
    assert pair(change(4, 12.5, unit="count"), MS_UNIT) == "4 → 12.5"


def test_an_unknown_interval_is_left_empty() -> None:
    assert interval(change(MS, 2 * MS, noise=None), MS_UNIT) == ""
    assert interval(change(MS, 2 * MS), MS_UNIT) == "+0.99 to +1.01"


def test_files_of_the_same_name_are_distinguished_by_their_paths() -> None:
    assert side_name(side("a/run.json"), side("b/run.json")) == "a/run.json"
    assert side_name(side("a/run.json"), side("b/other.json")) == "run.json"


def test_the_outcome_over_several_devices_is_one_word() -> None:
    faster, slower = figures(), figures(after=(9 * MS, 0, 4 * MS, 0, MS))
    unknown = figures(noise=None)

    def outcome(*shown: object) -> str:
        return standing(sample(devices=tuple(device(shown=part) for part in shown)))[0]  # type: ignore[arg-type]

    assert outcome(faster) == "faster"
    assert outcome(slower, slower) == "slower"
    assert outcome(faster, slower) == "mixed"
    assert outcome(faster, unknown) == "unclear"
    assert outcome(figures(after=(5 * MS, 0, 4 * MS, 0, MS))) == "unchanged"
    assert outcome(figures(after=(5 * MS, 0, 4 * MS, 0, MS + 5))) == "within noise"
    assert outcome() == "not comparable"


def test_good_news_that_is_new_is_not_a_loss() -> None:
    gone, news = device().findings
    assert finding_standing(gone) == "gone"
    assert finding_standing(news) == "new (good)"


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_row_has_a_cell_for_every_column(before: str, after: str, verbose: bool) -> None:
    difference = real(before, after)
    shown = [table for device in difference.devices for table in of_device(device, verbose=verbose)]
    assert shown
    for table in (tables.sides(difference), tables.summary(difference), *shown):
        assert {len(row.cells) for row in table.rows} == {len(table.columns)}, table.title


def test_causes_are_shown_with_what_they_add_up_to() -> None:
    difference = real(*PAIRS[0])
    rows = of_table(difference, "Causes of the change in exposed copy")
    *causes, together = rows
    assert together[0] == "total"
    for number in (1, 2, 3):
        shown = [float(row[number].replace("< ", "").replace("> ", "")) for row in causes]
        assert sum(shown) == pytest.approx(float(together[number]), abs=0.02 * len(causes))
    assert {row[0] for row in causes} >= {"no-compute", "same-stream"}


def test_the_buckets_end_with_the_span() -> None:
    assert [row[0] for row in of_table(real(*PAIRS[0]), "Where the time goes")][-1] == "step"


def test_time_in_which_the_gpu_may_have_worked_is_not_called_idle() -> None:
    known = figures()
    added = change(0, MS, name="unrecorded")
    unknown = replace(known, idle_by_cause=(*(each for each in known.idle_by_cause if each.name != added.name), added))
    for some, name in ((known, "idle"), (unknown, "idle and unrecorded")):
        assert tables.buckets(device(shown=some)).rows[-2].cells[0].text == name


def test_what_is_on_neither_side_is_left_out() -> None:
    rows = of_table(sample(), "Where the time goes")
    assert [row[0] for row in rows] == ["compute", "exposed copy", "idle", "step"]
    assert [row[0] for row in of_table(sample(), "Causes of the change in idle")] == []
    assert [row[0] for row in of_table(sample(), "Causes of the change in idle", verbose=True)] == [
        "host-sync",
        "total",
    ]


def test_what_changed_no_more_than_noise_is_counted_instead() -> None:
    [table] = [item for item in of_device(sample().devices[0], verbose=False) if item.title == "Overlap"]
    assert "2 more figures changed less or not at all" in table.note
    assert "SM busy, ms" not in {row[0] for row in table.texts()}
    [table] = [item for item in of_device(sample().devices[0], verbose=True) if item.title == "Overlap"]
    assert "SM busy, ms" in {row[0] for row in table.texts()} and not table.note


def test_a_figure_that_only_one_side_has_is_shown() -> None:
    [row] = [row for row in of_table(sample(), "Overlap") if row[0].startswith("hidden copy share")]
    assert row[1:3] == ["n/a", "75.0"] and row[-1] == "new"


def test_copies_that_are_new_are_neither_better_nor_worse() -> None:
    rows = of_table(sample(), "Copies")
    assert {row[-1] for row in rows} == {"gone", "new"}
    assert [row[0] for row in rows if row[0]] == ["h2d pageable to device (main)", "h2d pinned to device (side)"]


def test_ten_kernels_are_shown_and_the_rest_counted() -> None:
    many = tuple(kernel(f"kernel_{number}", MS, 2 * MS) for number in range(25))
    result = sample(devices=(device(kernels=many),))
    assert len(of_table(result, "Kernels that changed")) == 10
    assert len(of_table(result, "Kernels that changed", verbose=True)) == 25
    assert "15 more kernels" in as_text(result, width=100)


def test_a_renamed_kernel_says_what_it_was() -> None:
    assert of_table(sample("k"), "Kernels that changed")[0][0] == "k (was k once)"


def test_without_steps_noise_is_reported_as_unknown() -> None:
    result = sample(devices=(device(shown=figures(noise=None), basis="window"),))
    [table] = [item for item in of_device(result.devices[0], verbose=False) if item.title == "Where the time goes"]
    assert "all that was recorded" in table.note
    assert "interval" not in {column.title for column in table.columns}
    assert table.texts()[-1][-1] == "?"


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_text_fits_its_width_and_begins_with_the_verdict(before: str, after: str, width: int, verbose: bool) -> None:
    difference = real(before, after)
    shown = as_text(difference, width=width, verbose=verbose)
    assert max(map(len, shown.splitlines())) <= width
    assert " ".join(shown.split()).startswith(difference.verdict)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_answer_and_its_evidence_are_one_screen(before: str, after: str) -> None:
    lines = terminal.render(brief(document(real(before, after))), width=80).splitlines()
    assert len(lines) <= 45
    assert any(line.startswith("Add -v for ") for line in lines[-2:])


def test_the_interval_gives_way_first() -> None:
    difference = diff(read_report([NAIVE]), read_report([PREFETCHED]))
    assert "interval" in as_text(difference, width=120)
    narrow = as_text(difference, width=80)
    assert re.search(r"^where the time goes  before ms  after +change  change %  noise up to$", narrow, re.MULTILINE)


def test_colour_is_never_alone_and_absent_where_it_is_not_wanted() -> None:
    plain = as_text(sample(), width=100)
    assert "\x1b" not in plain
    colored = as_text(sample(), width=100, color="standard")
    assert "\x1b" in colored
    text = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in text.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_characters_that_the_encoding_lacks_are_replaced(encoding: str) -> None:
    as_text(sample(), width=100, encoding=encoding).encode(encoding)


def test_doubts_say_what_still_holds() -> None:
    for shown in (as_text(sample(), width=120), as_comment(sample())):
        assert "Warnings" in shown and "Still valid: Counts hold" in shown


# -- markdown -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_markdown_tables_are_rectangular_and_fit_a_comment(before: str, after: str) -> None:
    shown = as_comment(real(before, after))
    assert len(shown) < 65_536
    columns = 0
    for line in shown.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not columns or cells == columns
        columns = cells
    assert shown.count("<details>") == shown.count("</details>")


def test_devices_that_do_not_fit_a_comment_are_named() -> None:
    result = sample(devices=tuple(device(rank=rank, names="x" * 150) for rank in range(250)))
    shown = as_comment(result)
    assert len(shown) < 65_536
    assert re.search(r"Left out for lack of space: rank \d+, .* and \d+ more\.", shown)
    assert len(as_comment(result, verbose=True)) > 65_536


# -- html -----------------------------------------------------------------------------------------


def test_html_is_small_and_loads_nothing() -> None:
    page = as_page(real(*PAIRS[3]))
    assert len(page) < 500_000
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page)
    assert "rank 1" in page and "Kernels that changed" in page


# -- names that mean harm -------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [False, True])
def test_hostile_names_do_nothing_in_a_terminal(verbose: bool) -> None:
    shown = as_text(sample(HOSTILE), width=120, color="standard", verbose=verbose)
    assert "\x1b]" not in shown and "\x1b[31mRED" not in shown and "\x07" not in shown and "\u202e" not in shown
    assert all(line.isprintable() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines())


@pytest.mark.parametrize("verbose", [False, True])
def test_hostile_names_do_nothing_in_markdown(verbose: bool) -> None:
    shown = as_comment(sample(HOSTILE), verbose=verbose)
    ours = re.sub(r"</?details>|</?summary>", "", shown)
    assert "<script" not in ours.replace("\\<", "")
    assert not re.search(r"(?<!\\)[`@]", ours)
    assert "http://x" not in ours
    assert all(line.isprintable() for line in shown.splitlines())
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert not any(line.startswith("# h") for line in shown.splitlines())
    assert all(re.search(r" \|$", row) for row in rows)


@pytest.mark.parametrize("verbose", [False, True])
def test_hostile_names_do_nothing_in_html(verbose: bool) -> None:
    page = as_page(sample(HOSTILE), verbose=verbose)
    assert "<script>x</script>" not in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "\x1b" not in page and "\u202e" not in page
    assert "<script>x</script>" in unescape(page)


# -- the command ----------------------------------------------------------------------------------

ONE, OTHER = (str(LABORATORY / name) for name in PAIRS[0])


def test_the_command_prints_the_verdict_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ONE, OTHER]) == 0
    out = capsys.readouterr().out
    assert re.match(r"Step 4\d\.\d% faster", out)
    assert "one-way-copies" in out


def test_json_is_the_diff(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(NAIVE), str(PREFETCHED), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["devices"][0]["figures"]["span"]["beyond_noise"] is True


def test_reports_are_compared_as_traces_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = str(tmp_path / "before.json")
    assert main(["analyze", ONE, "--format", "json", "-o", report]) == 0
    assert main(["diff", report, OTHER, "--format", "json"]) == 0
    from_report = json.loads(capsys.readouterr().out)
    assert main(["diff", ONE, OTHER, "--format", "json"]) == 0
    assert from_report == json.loads(capsys.readouterr().out)


def test_a_file_is_not_overwritten_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "diff.md"
    assert main(["diff", ONE, OTHER, "--format", "markdown", "-o", str(file)]) == 0
    assert file.read_text().startswith("# overlapscope diff: ")
    assert main(["diff", ONE, OTHER, "-o", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["diff", ONE, OTHER, "-o", str(file), "-f", "-v"]) == 0
    assert "\x1b" not in file.read_text()


@pytest.mark.parametrize("arguments", [["nowhere.json", ONE], [ONE], [ONE, OTHER, "--format", "xml"]])
def test_wrong_input_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *arguments]) == 2
    assert capsys.readouterr().err
