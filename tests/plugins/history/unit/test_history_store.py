"""Tests of the history's store: entries are found again, and files of other programs stay unchanged."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import resource
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.base.words import clean
from overlapscope.errors import NotInTrace, UnreadableTrace, UsageError
from overlapscope.plugins.history.drop import pull, put
from overlapscope.plugins.history.entry import Entry, HistoryFigure, digest, figures, pack, unpack
from overlapscope.plugins.history.entry import entry as kept
from overlapscope.plugins.history.store import HistoryRow, Point, Query, Store
from overlapscope.reading import load
from overlapscope.report.model import build
from overlapscope.report.origin import Origin, of_report, origin
from tests.plugins.history.entries import REPORT, figure, make_entry
from tests.support.endless_tables import make_endless
from tests.support.helpers import TRACES, recordings, various
from tests.support.recordings import report_of

NUL = "ä\n\0%_"
NAMES = st.sampled_from(["a", "b", "'; DROP TABLE reports --", NUL])
METRICS = st.sampled_from(["step_time", "efficiency_pct", "idle_time/host-sync"])
FIGURES = st.lists(
    st.builds(
        HistoryFigure,
        metric=METRICS,
        rank=st.none() | st.integers(0, 2),
        device=st.integers(0, 1),
        value=st.floats(0, 1e12),
        spread=st.none() | st.floats(0, 1e9),
        floor=st.floats(0, 1e9),
        samples=st.integers(1, 9),
    ),
    max_size=6,
    unique_by=lambda item: (item.metric, item.rank, item.device),
)
ENTRIES = st.lists(
    st.builds(
        make_entry,
        st.integers(0, 2**62) | st.integers(10, 20),
        FIGURES,
        job=NAMES,
        plain=st.booleans(),
        commit=st.none() | NAMES,
        branch=st.none() | NAMES,
        host=st.none() | NAMES,
        gpu=st.none() | NAMES,
        labels=st.dictionaries(NAMES, NAMES, max_size=2),
    ),
    max_size=8,
)
QUERIES = st.builds(
    Query,
    job=st.none() | NAMES,
    branch=st.none() | NAMES,
    commit=st.none() | NAMES,
    plain=st.none() | st.booleans(),
    since_ns=st.none() | st.integers(10, 20),
    until_ns=st.none() | st.integers(10, 20),
)


def meant(entry: Entry, query: Query) -> bool:
    origin = entry.origin
    equal = [(query.job, origin.job), (query.branch, origin.branch), (query.plain, entry.plain)]
    return (
        all(asked is None or asked == is_ for asked, is_ in equal)
        and (query.commit is None or (origin.commit or "").startswith(query.commit))
        and (query.since_ns is None or origin.at_ns >= query.since_ns)
        and (query.until_ns is None or origin.at_ns < query.until_ns)
    )


@given(ENTRIES, QUERIES)
@example([make_entry(1, [], commit=NUL, labels={NUL: NUL})], Query(commit=NUL))
def test_what_was_added_is_found_as_a_search_through_all_entries_finds_it(entries: list[Entry], query: Query) -> None:
    different = {entry.id: entry for entry in entries}
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "h") as store:
        assert [store.add(entry) for entry in entries] == [
            entry.id not in {before.id for before in entries[:number]} for number, entry in enumerate(entries)
        ]
        first = {entry.id: entry for entry in reversed(entries)}
        ordered = sorted((first[id] for id in different), key=lambda item: (item.origin.at_ns, item.id))
        matches = [entry for entry in ordered if meant(entry, query)]
        assert store.rows(query) == [
            HistoryRow(id=match.id, origin=match.origin, plain=match.plain, gpu=match.gpu, outcome=None)
            for match in matches
        ]
        assert store.rows(query, most=2) == store.rows(query)[-2:]
        for metric in ("step_time", "efficiency_pct", "idle_time/host-sync", "no_such"):
            assert store.points(metric, query) == [
                Point(
                    match.id,
                    match.origin.at_ns,
                    match.origin.commit,
                    match.gpu,
                    *(each.rank, each.device, each.value, each.spread, each.samples, each.floor),
                    match.plain,
                )
                for match in matches
                for each in sorted(
                    match.figures, key=lambda each: (-1 if each.rank is None else each.rank, each.device)
                )
                if each.metric == metric
            ]
        assert all(store.entry(entry.id) == entry for entry in ordered)
        assert store.delete([match.id for match in matches]) == len(matches)
        store.compact()
        assert [row.id for row in store.rows()] == [entry.id for entry in ordered if entry not in matches]
        assert store.ids() == {row.id for row in store.rows()}


def test_an_entry_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    tenth = make_entry(10)
    with Store.open(tmp_path / "h") as store:
        store.add(tenth)
        assert store.entry(tenth.id[:6]) == tenth
        for asked in ("", "zz", "%"):
            with pytest.raises(NotInTrace, match=r"no entry begins|several"):
                store.entry(asked)


def test_a_check_that_comes_later_is_kept_with_the_report_that_is_there(tmp_path: Path) -> None:
    from overlapscope.budgets.check import check

    report = report_of(recordings()[0])
    came = of_report(report, otherwise_ns=1, job="j")
    with Store.open(tmp_path / "h") as store:
        assert store.add(kept(report, came)) and store.rows()[0].outcome is None
        assert store.add(kept(report, came, check(report)))
        assert not store.add(kept(report, came))
        assert [row.outcome for row in store.rows()] == [check(report).outcome]


def test_only_its_user_may_read_a_store_that_is_made(tmp_path: Path) -> None:
    with Store.open(tmp_path / "new" / "h"):
        assert (tmp_path / "new" / "h").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", various(), ids=lambda path: path.stem)
def test_every_bundled_recording_comes_back_with_the_figures_that_check_judges(path: Path, tmp_path: Path) -> None:
    from overlapscope.budgets.check import check
    from overlapscope.budgets.settings import Budget, Settings

    report = report_of(path)
    entry = kept(report, of_report(report, otherwise_ns=1, job="j"))
    assert len(pack(entry)) < 20_000
    with Store.open(tmp_path / "h") as store:
        assert store.add(entry) and store.entry(entry.id) == entry
        points = {(point.rank, point.device): point.value for point in store.points("step_time")}
    judged = check(report, Settings(budgets=(Budget(metric="step_time", limit="min", bound=0.0),)))
    parts = {(part.rank, part.device): part.value for each in judged.verdicts for part in each.parts}
    assert points == {place: value for place, value in parts.items() if value is not None}


def test_a_recording_without_steps_has_shares_of_its_window_and_no_times(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress((TRACES / "pipeline_1stream.json.gz").read_bytes()))
    events = document["traceEvents"]
    document["traceEvents"] = [event for event in events if "ProfilerStep" not in event.get("name", "")]
    (tmp_path / "stepless.json").write_text(json.dumps(document))
    report = build([analyze_trace(load(tmp_path / "stepless.json", cache=False, periodic=False))])
    by_metric = {figure.metric: figure for figure in figures(report)}
    assert "idle_pct" in by_metric and by_metric["idle_pct"].samples == 1 and by_metric["idle_pct"].spread is None
    assert not [name for name in by_metric if "_time" in name]
    [device] = report.devices
    assert device.judged is not None
    assert by_metric["efficiency_pct"].value == device.judged.overlap.efficiency_pct


def test_predictions_and_recordings_of_two_jobs_are_no_entry() -> None:
    report = report_of(recordings()[0])
    predicted = msgspec.structs.replace(report.traces[0], predicted_by=("pin",))
    came = of_report(report, otherwise_ns=1, job="j")
    with pytest.raises(UsageError, match="history is of recordings"):
        kept(msgspec.structs.replace(report, traces=(predicted,)), came)
    with pytest.raises(UsageError, match="add them one by one"):
        kept(msgspec.structs.replace(report, traces=report.traces * 2), came)


def test_what_makes_a_report_large_is_left_out_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(recordings()[0])
    monkeypatch.setattr("overlapscope.plugins.history.entry.KEPT_BYTES", 1)
    entry = kept(report, of_report(report, otherwise_ns=1, job="j"))
    assert entry.figures == figures(report)
    assert all(not device.steps and not device.kernels and not device.ranges for device in entry.report.devices)
    assert "kernels, ranges and steps" in entry.report.notes[-1]
    assert unpack(pack(entry), "x") == entry
    assert entry.id == digest(entry.origin, report, plain=entry.plain)


# -- Wrong files ------------------------------------------------------------------------------------


def refused(path: Path, **options: Any) -> str:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UsageError) as caught, Store.open(path, **options) as store:
        store.add(make_entry(1))
    assert before is None or path.read_bytes() == before
    return str(caught.value)


def test_a_file_of_another_kind_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough for the header of one" * 30)
    assert "is not a history" in refused(tmp_path / "text")
    with contextlib.closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE cookies (name)")
        other.commit()
    assert "another program" in refused(tmp_path / "other")
    assert "cannot be opened" in refused(tmp_path)
    assert "no history yet" in refused(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "change", ["PRAGMA user_version = 5", "ALTER TABLE reports DROP COLUMN outcome", "CREATE TABLE more (name)"]
)
def test_a_store_of_another_version_stays_as_it_is(tmp_path: Path, change: str) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1))
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = DELETE")
        file.execute(change)
    assert "another version" in refused(path)
    assert "another version" in refused(path, read_only=True)


def test_reading_leaves_nothing_beside_the_file_and_detects_a_write_in_the_meantime(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1, [figure("step_time", 1.0)]))
    with Store.open(path, read_only=True, traceless=True) as store:
        assert len(store.rows()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["h"]

    def read_while_it_is_written() -> None:
        with Store.open(path, read_only=True, traceless=True) as reader, Store.open(path) as writer:
            writer.add(make_entry(2, [figure("step_time", 1.0)]))
            writer.compact()
            reader.rows()

    with pytest.raises(UsageError, match="another process wrote to the history in the meantime"):
        read_while_it_is_written()
    with Store.open(path, read_only=True) as reader, Store.open(path) as writer:
        writer.add(make_entry(3, [figure("step_time", 1.0)]))
        assert len(reader.rows()) == 3
    (tmp_path / "link").symlink_to(path)
    with Store.open(path) as writer:
        writer.add(make_entry(4, [figure("step_time", 1.0)]))
        with Store.open(tmp_path / "link", read_only=True, traceless=True) as reader:
            assert len(reader.rows()) == 4


def test_a_damaged_store_is_reported_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        for at_ns in range(50):
            store.add(make_entry(at_ns, [figure("step_time", 1.0)]))
        store.compact()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="damaged"), Store.open(path) as store:
        store.rows()
    assert len(path.read_bytes()) == len(data)


@pytest.mark.parametrize(
    "change",
    [
        "reports SET at_ns = 'x'",
        "reports SET branch = CAST('x' AS BLOB)",
        "reports SET job = CAST('x' AS BLOB)",
        "reports SET labels = '[1]'",
        "reports SET labels = '{'",
        "reports SET outcome = 'great'",
        "figures SET samples = 'many'",
        "figures SET value = 'x'",
        "figures SET value = 'nan'",
        "figures SET value = '-inf'",
        "figures SET value = '1e999'",
        "figures SET value = 1e308",
        "figures SET spread = 'nan'",
        "figures SET floor = 9e999",
        "figures SET rank = 1 << 40",
        "reports SET at_ns = 1 << 62 | 1",
        "metrics SET name = CAST('step_time' AS BLOB)",
    ],
)
def test_a_store_with_values_of_other_types_is_told_in_a_sentence(change: str, tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1, [figure("step_time", 1.0)]))
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"UPDATE {change}")
    with pytest.raises(UsageError, match="cannot be read"), Store.open(path, read_only=True) as store:
        assert all((store.jobs(), store.metrics(), store.rows(), store.points("step_time")))


def test_a_disk_that_is_full_when_a_store_is_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1, [figure("step_time", 1.0)]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
    try:
        # SQLite makes a file beside the store to share it with writers.
        assert re.search(
            r"the disk is full or doesn't work, .*; free some space, or choose", refused(path, read_only=True)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_store_whose_schema_is_not_utf_8_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.compact()
    data = path.read_bytes().replace(b"reports_by_time ON reports", b"reports_by_time ON report\x80")
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read"), Store.open(path, read_only=True) as store:
        store.rows()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_store_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    with Store.open(tmp_path / "d" / "h") as store:
        store.add(make_entry(1))
    (tmp_path / "d" / "h").chmod(0o400)
    (tmp_path / "d").chmod(0o500)
    try:
        with Store.open(tmp_path / "d" / "h", read_only=True) as store:
            assert len(store.rows()) == 1
        assert "cannot be opened" in refused(tmp_path / "d" / "h")
    finally:
        (tmp_path / "d").chmod(0o700)


def test_one_who_writes_for_long_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.plugins.history.store._PATIENCE_S", 0.05)
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with Store.open(path) as store:
            with pytest.raises(UsageError, match="another process keeps writing"):
                store.add(make_entry(2))
            assert len(store.rows()) == 1
        other.execute("ROLLBACK")


@pytest.mark.parametrize("id", ["d7\x1b[2J203".ljust(32, "0"), "f" * 31, "f" * 32 + "\n", "F" * 32])
def test_a_file_with_an_id_that_is_none_is_damaged(id: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "h") as store:
        store.add(kept(report_of(recordings()[0]), Origin(at_ns=1, job="train.py")))
    with contextlib.closing(sqlite3.connect(tmp_path / "h")) as connection, connection:
        connection.execute("UPDATE reports SET id = ?", (id,))
    with Store.open(tmp_path / "h") as store:
        for read in (store.rows, store.ids, lambda: store.points("step_time")):
            with pytest.raises(UsageError, match="the history cannot be read"):
                read()


# -- file drops -------------------------------------------------------------------------------------


def test_a_drop_gives_what_is_new_and_names_what_is_bad(tmp_path: Path) -> None:
    drop, report = tmp_path / "drop", report_of(recordings()[0])
    good = [kept(report, Origin(at_ns=at_ns, job="train.py")) for at_ns in range(5)]
    for entry in good:
        put(entry, drop)
    (drop / "notes.txt").write_text("nobody's business")
    (drop / f"{'0' * 32}.json.zst").write_bytes(b"no zstd at all")
    shutil.copy(drop / f"{good[0].id}.json.zst", drop / f"{'1' * 32}.json.zst")
    changed = msgspec.structs.replace(good[0], id="2" * 32)
    (drop / f"{'2' * 32}.json.zst").write_bytes(pack(changed))
    (drop / f"{'3' * 32}.json.zst").mkdir()
    twice = msgspec.structs.replace(good[0], figures=(figure("step_time", 1.0), figure("step_time", 2.0)))
    (drop / f"{'4' * 32}.json.zst").write_bytes(pack(twice))
    (drop / f"{'5' * 32}.json.zst").write_bytes(pack(good[1])[:-5])
    with Store.open(tmp_path / "h") as store:
        store.add(good[3])
        pulled = pull(store, drop)
        assert (pulled.added, pulled.existing, len(pulled.bad)) == (4, 1, 6)
        assert all(f"{digit * 32}.json.zst" in sentence for digit, sentence in zip("012345", pulled.bad, strict=True))
        assert [store.entry(entry.id) for entry in good] == good
        again = pull(store, drop)
        assert (again.added, again.existing) == (0, 5)


def test_what_unpacks_to_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overlapscope.reading.files import zstd_module

    monkeypatch.setattr("overlapscope.plugins.history.entry.MAX_UNPACKED", 1 << 20)
    with pytest.raises(UnreadableTrace, match="holds more than 1,048,576 bytes"):
        unpack(zstd_module().compress(bytes(1 << 24)), "bomb")


def test_a_url_is_a_drop_too(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    report = report_of(recordings()[0])
    entry = kept(report, Origin(at_ns=7, job="train.py"))
    put(entry, "memory://history-drop/inner")
    with Store.open(tmp_path / "h") as store:
        assert pull(store, "memory://history-drop/inner/").added == 1
        assert store.entry(entry.id) == entry
        with pytest.raises(UsageError, match="cannot be listed"):
            pull(store, "memory://history-drop/none")


@given(st.binary(max_size=300))
def test_no_bytes_are_taken_for_an_entry(data: bytes) -> None:
    with pytest.raises(UnreadableTrace):
        unpack(data, "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 2**40), ("rank", -1), ("device", 2**63), ("metric", "a" * 100), ("metric", "A B"), ("samples", -1)],
)
def test_a_figure_that_cannot_be_is_refused(field: str, value: Any) -> None:
    bad = msgspec.structs.replace(figure("step_time", 1.0), **{field: value})
    with pytest.raises(UnreadableTrace):
        unpack(pack(make_entry(1, [bad])), "x")


def test_instants_that_no_database_holds_are_refused() -> None:
    with pytest.raises(UnreadableTrace):
        unpack(pack(make_entry(2**63)), "x")


def test_a_schema_of_another_version_says_so() -> None:
    newer = msgspec.structs.replace(make_entry(1), schema_version=9)
    with pytest.raises(UnreadableTrace, match="schema version 9"):
        unpack(pack(newer), "x")


# -- where a report comes from ----------------------------------------------------------------------


def test_ci_tells_commit_and_branch_before_git_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SHA", "c0ffee")
    monkeypatch.setenv("GITHUB_HEAD_REF", "feature")
    monkeypatch.setenv("GITHUB_REF_NAME", "7/merge")
    monkeypatch.setattr(sys, "argv", ["/a/b/train.py", "--fast"])
    result = origin()
    assert (result.commit, result.branch, result.job) == ("c0ffee", "feature", "train.py")


def test_a_report_without_a_named_job_is_refused() -> None:
    with pytest.raises(UsageError, match="name the job with --job"):
        of_report(REPORT, otherwise_ns=1)
    figures = of_report(REPORT, otherwise_ns=7, job="\udcff", commit="c")
    assert (figures.job, figures.commit, figures.at_ns) == ("\\udcff", "c", 7)
    assert clean(figures.job) == figures.job


@pytest.mark.parametrize("table", ["reports", "metrics", "sqlite_schema"])
def test_pages_of_a_store_that_refer_to_one_page_again_and_again_are_reported_in_a_sentence(
    table: str, tmp_path: Path
) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1, [figure("step_time", 1.0)]))
        store.compact()
    make_endless(path, table)
    with pytest.raises(UsageError, match="damaged"), Store.open(path, read_only=True) as store:
        assert store.jobs() and store.metrics()


def test_a_view_without_an_end_in_the_place_of_a_table_is_reported_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with Store.open(path) as store:
        store.add(make_entry(1, [figure("step_time", 1.0)]))
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("DROP TABLE figures")
        file.execute(
            "CREATE VIEW figures AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i FROM n) "
            "SELECT i AS metric, i AS report, i AS rank, i AS device, i AS value, i AS spread, 1 AS samples, "
            "i AS floor FROM n"
        )
        file.commit()
    for read_only in (False, True):
        assert "changed its tables" in refused(path, read_only=read_only)
