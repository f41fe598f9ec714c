"""Tests of the data of the page Ranks: written reports, the traces of a folder reduced in the background, and links."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import flask
import pytest

from overlapscope.base.saved import encode
from overlapscope.dashboard import routes
from overlapscope.dashboard.context import PageContext, UrlState, instant_href, parse
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import RECORDED
from overlapscope.dashboard.pages.ranks import (
    TRACES,
    Ranks,
    chosen,
    job_of,
    layout,
    of_file,
    of_job,
    waiting_for,
    waits,
)
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.join import report_on
from tests.support.helpers import with_plain_steps
from tests.support.ranks_samples import DDP, job, recorded

SAMPLES = DDP.parent
HOST = Path(__file__).parents[2] / "host_samples.trace.json.gz"


def written(path: Path, text: bytes | None = None) -> Path:
    """Return a report of four ranks; the traces of two of them lie beside it if `path` is where they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(job(4)) if text is None else text)
    return path


def all_read(library: Library, id: str) -> Ranks:
    """Return the report of a folder, once the loader is through."""
    wanted, until = job_of(library, id), time.monotonic() + 60
    while waiting_for(library, wanted):
        assert time.monotonic() < until
        time.sleep(0.02)
    opened = of_job(library, wanted)
    assert opened is not None
    return opened


# -- written reports ------------------------------------------------------------------------------


def test_a_report_that_is_named_is_not_a_trace(tmp_path: Path) -> None:
    library = Library([written(tmp_path / "ranks.json"), DDP])
    assert [ranks_file.id for ranks_file in library.ranks_files()] == ["ranks.json"]
    assert library.ranks_files()[0].report == job(4)
    assert [entry.id for entry in library.entries()] == ["ddp/rank0", "ddp/rank1"]


def test_a_report_in_a_folder_is_found(tmp_path: Path) -> None:
    written(tmp_path / "out" / "ranks.json")
    written(tmp_path / "old" / "ranks.json", b'{"kind": "ranks", "schema_version": 2, "world_size": 4}')
    library = Library([tmp_path])
    assert [ranks_file.id for ranks_file in library.ranks_files()] == ["out/ranks.json"]
    assert library.entries() == ()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-500], "not of this version"),
        (lambda text: text.replace(b'"schema_version": 1', b'"schema_version": 99', 1), "schema version 99"),
    ],
    ids=["cut", "later"],
)
def test_a_named_report_that_cannot_be_read_is_an_error(
    tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(UnreadableTrace, match=message):
        Library([written(tmp_path / "ranks.json", spoil(encode(job(4))))])


def test_the_url_says_which_report_is_meant(tmp_path: Path) -> None:
    library = Library([written(tmp_path / "a.json"), written(tmp_path / "b.json"), DDP])
    place = parse("/", "/ranks", "?trace=ddp/rank0&report=b.json")
    assert place.report == "b.json" and "report=b.json" in place.href("overview")
    names = {report: chosen(library, UrlState(report=report)) for report in (None, "b.json", "gone.json", TRACES)}
    assert {report: entry and entry.id for report, entry in names.items()} == {
        None: "a.json",
        "b.json": "b.json",
        "gone.json": "a.json",
        TRACES: None,
    }


def test_rows_of_a_report_find_their_traces(tmp_path: Path) -> None:
    beside = tmp_path / "run" / "job" / "rank0.json.gz"
    beside.parent.mkdir(parents=True)
    shutil.copy(DDP / "rank0.json.gz", beside)
    elsewhere = tmp_path / "copies" / "rank1.json.gz"
    elsewhere.parent.mkdir()
    shutil.copy(DDP / "rank1.json.gz", elsewhere)
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        shutil.copy(DDP / "rank1.json.gz", tmp_path / folder / "rank2.json.gz")
    written(tmp_path / "run" / "ranks.json")
    library = Library([tmp_path])
    ranks = of_file(library, library.ranks_files()[0])
    # Beside the report, by its name alone, one of two of that name, and not here at all.
    assert [ranks.trace(row) for row in range(-1, 5)] == [None, "run/job/rank0", "copies/rank1", None, None, None]


# -- the traces of a folder -----------------------------------------------------------------------


def test_the_traces_of_a_folder_are_reduced_and_joined() -> None:
    library = Library([SAMPLES])
    ranks = all_read(library, "ddp/rank1")
    assert ranks.report == report_on(recorded())
    assert [ranks.trace(row) for row in range(2)] == ["ddp/rank0", "ddp/rank1"]
    # They are small, where the traces that they were made from may be a thousand times too large to keep.
    assert library.opened("ddp/rank0") is None
    assert of_job(library, job_of(library, "ddp/rank0")) is ranks


def test_the_page_waits_for_the_ranks_of_a_folder_and_not_for_a_trace_alone(tmp_path: Path) -> None:
    library, alone = Library([SAMPLES]), Library([DDP / "rank0.json.gz"])
    context = PageContext.at(UrlState(page="ranks", trace="ddp/rank0"), library)
    assert "0 of 2 traces read; ddp/rank0: " in str(waits(context))
    all_read(library, "ddp/rank0")
    assert waits(context) is None and "ranks-table" in str(layout(context))
    context = PageContext.at(UrlState(page="ranks", trace="rank0"), alone)
    assert waits(context) is None and "One trace is open" in str(layout(context))
    assert not alone._background._wanted and alone._background.at_work is None


def test_programs_without_a_gpu_are_no_ranks_that_cannot_be_read(tmp_path: Path) -> None:
    for number in range(2):
        shutil.copy(HOST, tmp_path / f"run{number}.trace.json.gz")
    library = Library([tmp_path])
    all_read(library, "run0")
    shown = str(layout(PageContext.at(UrlState(page="ranks", trace="run0"), library)))
    assert "Traces that cannot be compared" in shown and "no GPU activity" in shown
    assert "No rank could be read" not in shown and "ranks-table" not in shown


def test_a_trace_that_cannot_be_read_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    shutil.copytree(DDP, tmp_path / "job")
    (tmp_path / "job" / "rank2.json").write_text("nothing")
    library = Library([tmp_path])
    ranks = all_read(library, "job/rank0")
    assert len(ranks.report.ranks) == 2
    assert [failure.rank for failure in ranks.report.unreadable] == [2]
    assert library.failure("job/rank0") is None and library.failure("job/rank2") is None


def test_a_trace_that_has_changed_is_read_again(tmp_path: Path) -> None:
    shutil.copytree(DDP, tmp_path / "job")
    late = tmp_path / "job" / "rank1.json.gz"
    good = late.read_bytes()
    late.write_bytes(gzip.compress(b"nothing"))
    library = Library([tmp_path])
    assert len(all_read(library, "job/rank0").report.ranks) == 1
    late.write_bytes(good)
    assert len(all_read(library, "job/rank0").report.ranks) == 2


def test_what_somebody_wants_to_look_at_comes_before_the_ranks(tmp_path: Path) -> None:
    for rank in range(12):
        shutil.copy(DDP / f"rank{rank % 2}.json.gz", tmp_path / f"rank{rank}.json.gz")
    library = Library([tmp_path])
    job = job_of(library, "rank0")
    assert len(waiting_for(library, job)) == 12
    library.wait("rank11")
    assert waiting_for(library, job)


def test_ranks_that_were_dropped_in_go_by_their_own_names(tmp_path: Path) -> None:
    library = Library()
    for rank in range(2):
        stored = tmp_path / f"upload-{rank}"
        shutil.copy(DDP / f"rank{rank}.json.gz", stored)
        library.add(stored, f"rank{rank}.json.gz")
    ranks = all_read(library, "dropped/rank0")
    assert [row.source for row in ranks.report.ranks] == ["rank0.json.gz", "rank1.json.gz"]
    assert ranks.trace(1) == "dropped/rank1"


# -- links ----------------------------------------------------------------------------------------


def test_a_meeting_leads_to_its_place_in_a_trace_that_was_not_loaded() -> None:
    library = Library([SAMPLES])
    server = flask.Flask(__name__)
    routes.register(server, library, "/base/")
    meeting = all_read(library, "ddp/rank0").report.meetings[0]
    link = instant_href(UrlState(base="/", of=RECORDED), "ddp/rank0", meeting.window)
    answer = server.test_client().get(link)
    assert answer.status_code == 302
    parts = urlsplit(answer.headers["Location"])
    asked = parse_qs(parts.query)
    origin = library.wait("ddp/rank0").lanes.origin_ns
    assert parts.path == "/base/timeline" and asked["trace"] == ["ddp/rank0"]
    assert int(asked["from"][0]) <= meeting.window.start_ns - origin < meeting.window.end_ns - origin
    assert meeting.window.end_ns - origin <= int(asked["to"][0])


def test_a_link_leads_to_the_same_ops_in_the_plain_program(tmp_path: Path) -> None:
    timed = with_plain_steps(DDP / "rank0.json.gz", tmp_path / "t.json.gz", 30_000_000)
    library, server = Library([timed]), flask.Flask(__name__)
    routes.register(server, library, "/")
    opened = library.wait("t")
    device = opened.analysis.devices[0].result
    step = device.steps[1]
    for of, shown in ((None, opened.plain), (RECORDED, opened)):
        assert shown is not None
        answer = server.test_client().get(instant_href(UrlState(of=of), "t", step.window))
        place = parse("/", *urlsplit(answer.headers["Location"])[2:4])
        assert place.of == of and place.start_ns is not None and place.end_ns is not None
        same, origin = shown.analysis.devices[0].result.steps[1].window, shown.lanes.origin_ns
        assert place.start_ns <= same.start_ns - origin < same.end_ns - origin <= place.end_ns
        assert place.end_ns - place.start_ns <= 3 * (same.end_ns - same.start_ns) + 1_000


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("trace=ddp/rank9&start=1&end=2", 404),
        ("trace=ddp/rank0&start=x&end=2", 400),
        ("trace=ddp/rank0&start=1", 400),
        (f"trace=ddp/rank0&start=1&end={1 << 70}", 400),
    ],
)
def test_a_link_that_makes_no_sense_is_answered_with_a_sentence(query: str, status: int) -> None:
    server = flask.Flask(__name__)
    routes.register(server, Library([SAMPLES]), "/")
    answer = server.test_client().get(f"/api/at?{query}")
    assert answer.status_code == status and answer.get_json()["error"].endswith(".")
