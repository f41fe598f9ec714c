"""`overlapscope history`, as a user calls it: recordings go in, tables and files come out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.plugins.history.document import listing
from overlapscope.plugins.history.store import EVERYTHING, Store
from overlapscope.reading.samples import SAMPLES
from overlapscope.render import html, markdown, terminal
from tests.plugins.history.entries import make_entry
from tests.support.diff_samples import HOSTILE
from tests.support.helpers import TRACES
from tests.support.schemas import validate

NAIVE, PREFETCHED = str(SAMPLES / "training_naive.json.gz"), str(SAMPLES / "training_prefetched.json.gz")


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history.sqlite"
    monkeypatch.setenv("OVERLAPSCOPE_HISTORY", str(path))
    return path


def test_recordings_are_added_listed_and_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "add", NAIVE, "--job", "train.py", "--commit", "a" * 40, "--branch", "main"]) == 0
    assert main(["history", "add", PREFETCHED, "--job", "train.py", "--commit", "b" * 40]) == 0
    assert main(["history", "add", str(TRACES / "ddp"), "--job", "ddp.py", "--label", "ranks=2"]) == 0
    assert main(["history", "add", NAIVE, "--job", "train.py", "--commit", "a" * 40, "--branch", "main"]) == 0
    assert "is already in" in capsys.readouterr().err.splitlines()[-1]
    assert main(["history"]) == 0
    out = capsys.readouterr().out
    assert "aaaaaaaaaa" in out and "95.1%" in out and "ddp.py" in out
    assert main(["history", "--commit", "bb"]) == 0
    assert "aaaaaaaaaa" not in capsys.readouterr().out
    assert main(["history", "prune", "--keep", "1"]) == 0
    assert "Removed 1 entry" in capsys.readouterr().err
    assert main(["history", "prune", "--older-than", "0h", "--job", "ddp.py"]) == 0
    with Store.open() as store:
        assert store.jobs() == ["train.py"] and len(store.rows()) == 1


def test_a_report_and_its_check_are_kept_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, check = str(tmp_path / "report.json"), str(tmp_path / "check.json")
    assert main(["analyze", NAIVE, "--format", "json", "-o", report]) == 0
    assert main(["check", NAIVE, "--format", f"json:{check}"]) == 1
    assert main(["history", "add", report, "--check", check, "--job", "train.py"]) == 0
    with Store.open() as store:
        [row] = store.rows()
        assert row.outcome == "fail" and store.entry(row.id).check is not None
    assert main(["history", "add", report, NAIVE, "--check", check, "--job", "train.py"]) == 2
    assert main(["history", "add", check, "--job", "train.py"]) == 2
    assert main(["history", "add", NAIVE]) == 2
    assert "name the job with --job" in capsys.readouterr().err


def with_origin(origin: object, target: Path) -> str:
    """Return a copy of a recording whose recorder noted where it comes from."""
    document = json.loads(gzip.decompress(Path(NAIVE).read_bytes()))
    document["overlapscope"] = {**document.get("overlapscope", {}), "origin": origin}
    target.write_text(json.dumps(document))
    return str(target)


def test_a_trace_says_itself_of_what_it_is_and_options_go_first(tmp_path: Path) -> None:
    metadata = {"at_ns": 10**18, "job": "train.py", "commit": "c0ffee", "branch": "main"}
    trace, report = with_origin(metadata, tmp_path / "trace.json"), str(tmp_path / "report.json")
    assert main(["analyze", trace, "--format", "json", "-o", report]) == 0
    assert main(["history", "add", trace]) == 0
    # The report of it is the same recording, of the same commit.
    assert main(["history", "add", report]) == 0
    assert main(["history", "add", trace, "--branch", "other"]) == 0
    with Store.open() as store:
        origins = {(row.origin.at_ns, row.origin.job, row.origin.commit, row.origin.branch) for row in store.rows()}
        assert len(store.rows()) == 2
    assert origins == {(10**18, "train.py", "c0ffee", branch) for branch in ("main", "other")}


@pytest.mark.parametrize(
    "origin",
    [7, [], None, {"at_ns": -1, "job": 7}, {"at_ns": 2**70, "job": ""}, {"at_ns": True, "job": "x" * 999}],
)
def test_an_origin_that_cannot_be_is_unknown(origin: object, tmp_path: Path) -> None:
    trace = with_origin(origin, tmp_path / "trace.json")
    assert main(["history", "add", trace]) == 2
    assert main(["history", "add", trace, "--job", "train.py"]) == 0
    with Store.open() as store:
        [row] = store.rows()
        assert row.origin.commit is None and row.origin.at_ns > 10**18


def test_what_is_left_for_others_is_added_once_and_what_is_bad_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop = tmp_path / "drop"
    assert main(["history", "add", NAIVE, PREFETCHED, "--job", "train.py", "--to", str(drop)]) == 0
    assert not (tmp_path / "history.sqlite").exists()
    [first, _] = sorted(drop.iterdir())
    assert main(["history", "add", str(first)]) == 0
    assert main(["history", "add", str(drop)]) == 0
    assert "added 1 entry, had 1 already" in capsys.readouterr().err
    (drop / f"{'f' * 32}.json.zst").write_bytes(b"bad")
    assert main(["history", "add", str(drop)]) == 2
    assert "f.json.zst: is not an entry of a history" in capsys.readouterr().err
    assert main(["history", "add", str(drop), "--job", "other"]) == 2


def test_names_that_mean_harm_stay_text(history: Path) -> None:
    with Store.open(history) as store:
        store.add(
            make_entry(10**18, job=HOSTILE, commit=HOSTILE, branch=HOSTILE, gpu=HOSTILE, labels={HOSTILE: HOSTILE})
        )
        shown = listing(store, EVERYTHING, store.rows())
    assert "<script>x" not in html.render(shown)
    assert "<script>x" not in markdown.render(shown)
    assert "\x1b[31m" not in terminal.to_stream(shown, None).decode()


def test_a_dropped_entry_is_what_its_schema_says(tmp_path: Path) -> None:
    from overlapscope.reading.files import zstd_module

    assert main(["history", "add", NAIVE, "--job", "train.py", "--to", str(tmp_path / "drop")]) == 0
    [file] = (tmp_path / "drop").iterdir()
    validate(json.loads(zstd_module().decompress(file.read_bytes())), schema_of("history-entry"))
