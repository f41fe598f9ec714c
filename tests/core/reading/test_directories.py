"""Tests of directories and patterns: the output says which traces they stand for, and mixtures of jobs do not pass."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.jobs import APART_NS, Recorded, different_jobs
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from overlapscope.reading import find_traces
from tests.support.stepped_traces import write_steps

KEPT = ("--budget", "step_time <= 1 s")
EPOCH_NS = 1_750_000_000 * 10**9


def test_endings_count_in_any_case(tmp_path: Path) -> None:
    for name in ("rank0.JSON", "rank1.Json", "rank2.json"):
        write_steps(tmp_path / name)
    assert [path.name for path in find_traces(tmp_path).files] == ["rank0.JSON", "rank1.Json", "rank2.json"]


def leave(directory: Path, what: str) -> str:
    """Put a file beside the traces whose name is not that of a trace, and return its name."""
    match what:
        case "another ending":
            write_steps(directory / "rank9.trace")
            return "rank9.trace"
        case "a subfolder":
            (directory / "node1").mkdir()
            write_steps(directory / "node1" / "rank9.json")
            return "node1"
        case "a hidden file":
            write_steps(directory / ".rank9.json")
            return ".rank9.json"
        case "a pipe":
            os.mkfifo(directory / "rank9.json")
            return "rank9.json"
        case _:
            (directory / "rank9.json").symlink_to(directory / "rank0.json")
            return "rank9.json"


@pytest.mark.parametrize("what", ["another ending", "a subfolder", "a hidden file", "a pipe", "a second link"])
def test_what_is_left_out_is_reported(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_steps(tmp_path / "rank0.json")
    name = leave(tmp_path, what)
    # A pattern leaves hidden files out by itself, and takes a file by whatever ending it asks for.
    by_pattern = what not in ("a hidden file", "another ending")
    asked = [str(tmp_path), *([str(tmp_path / "*")] if by_pattern else [])]
    for source in asked:
        [note] = find_traces(source).notes
        assert note.startswith(f"{tmp_path / name}: is skipped: ")
        assert main(["check", source, *KEPT]) == 0
        assert name in capsys.readouterr().err
        for command in (["analyze"], ["analyze", "--format", "markdown"], ["analyze", "--format", "json"], ["ranks"]):
            assert main([*command, source]) == 0
            assert "is skipped:" in " ".join(capsys.readouterr().out.split())
        assert main(["diff", source, str(tmp_path / "rank0.json")]) == 0
        assert "is skipped:" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("what", ["another ending", "a subfolder", "a hidden file", "a pipe"])
def test_a_directory_of_nothing_else_fails(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = leave(tmp_path, what)
    for command in ("check", "analyze", "ranks"):
        assert main([command, str(tmp_path)]) == 2
        errors = capsys.readouterr().err
        assert "no trace in this directory" in errors and f"{name}: is skipped" in errors


@pytest.mark.parametrize("what", ["nothing", "a link to nothing"])
def test_a_file_that_holds_no_trace_fails_the_check(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path / "rank0.json")
    broken = tmp_path / "rank1.json"
    if what == "nothing":
        broken.touch()
    else:
        broken.symlink_to(tmp_path / "gone.json")
    assert main(["check", str(tmp_path), *KEPT]) == 2
    assert "rank1.json: " in capsys.readouterr().err


def test_files_that_do_not_look_like_traces_are_not_reported(tmp_path: Path) -> None:
    write_steps(tmp_path / "rank0.json")
    (tmp_path / "README.md").write_text("# Traces")
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / "logs").mkdir()
    assert find_traces(tmp_path).notes == ()
    with pytest.raises(UnreadableTrace, match="no trace in this directory"):
        find_traces(tmp_path / "logs")


def test_many_that_are_left_out_are_counted(tmp_path: Path) -> None:
    write_steps(tmp_path / "rank0.json")
    for number in range(30):
        (tmp_path / f"rank{number}.trace").write_text("{}")
    notes = find_traces(tmp_path).notes
    assert len(notes) == 9 and notes[-1] == "22 more are skipped."


def test_what_was_judged_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write_steps(tmp_path / f"rank{rank}.json", rank=rank, world_size=2)
    for form in ("text", "markdown", "html"):
        assert main(["check", str(tmp_path), *KEPT, "--format", form]) == 0
        assert "2 traces were judged: rank0.json and rank1.json." in capsys.readouterr().out
    assert main(["check", str(tmp_path), *KEPT, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == [str(tmp_path / f"rank{rank}.json") for rank in range(2)]


# -- traces of different jobs


def shifted(path: str, seconds: int) -> None:
    content = json.loads(Path(path).read_text())
    content["baseTimeNanoseconds"] = EPOCH_NS + seconds * 10**9
    Path(path).write_text(json.dumps(content))


@pytest.mark.parametrize(("apart_s", "code"), [(30, 0), (3600, 3)])
def test_ranks_that_were_recorded_apart_are_not_of_one_run(apart_s: int, code: int, tmp_path: Path) -> None:
    for rank in range(2):
        shifted(write_steps(tmp_path / f"rank{rank}.json", rank=rank, world_size=2), rank * apart_s)
    assert main(["check", str(tmp_path), *KEPT]) == code


def test_a_rank_beyond_its_own_world_size_is_reported(tmp_path: Path) -> None:
    write_steps(tmp_path / "rank5.json", rank=5, world_size=2)
    assert main(["check", str(tmp_path), *KEPT, "--format", "json"]) == 3


RECORDED = st.builds(
    lambda rank, start, length: Recorded(f"{rank}", rank, 8, EPOCH_NS + start, EPOCH_NS + start + length),
    st.integers(0, 7),
    st.integers(0, 5 * APART_NS),
    st.integers(0, APART_NS),
)


@given(st.lists(RECORDED, max_size=6), st.randoms())
def test_apart_is_where_a_moment_has_a_gap_around_it(recorded: Sequence[Recorded], random: object) -> None:
    gap = any(
        all(other.end_ns + APART_NS < item.start_ns or other.start_ns >= item.start_ns for other in recorded)
        and any(other.start_ns < item.start_ns for other in recorded)
        for item in recorded
    )
    assert bool(different_jobs(recorded)) == gap


def test_what_is_not_a_trace_in_a_directory_is_left_out_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path / "rank0.json")
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    assert main(["analyze", str(tmp_path), "--format", "json"]) == 0
    [note] = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith(f"Left out: {tmp_path / 'settings.json'}: is JSON without `traceEvents`")
    (tmp_path / "words.json").write_text("hello")
    assert main(["analyze", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    # Lines are broken where a path is.
    assert printed.startswith("Left out 2 files that cannot be read as traces:")
    assert "words.json" in "".join(printed.splitlines())
    assert main(["analyze", str(tmp_path / "words.json"), str(tmp_path)]) == 2, "it was named"
    (tmp_path / "rank0.json").unlink()
    assert main(["analyze", str(tmp_path)]) == 2
    assert "settings.json: is JSON without" in capsys.readouterr().err


def test_listing_a_directory_takes_time_in_proportion_to_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counter[str]()
    plain = Path.__hash__

    def counting(path: Path) -> int:
        counted["hashes"] += 1
        return plain(path)

    files = 300
    for number in range(files):
        (tmp_path / f"rank{number}.json").touch()
    monkeypatch.setattr(Path, "__hash__", counting)
    assert len(find_traces(tmp_path).files) == len(find_traces(str(tmp_path / "*.json")).files) == files
    assert counted["hashes"] < 20 * files


def test_more_traces_than_a_report_holds_are_refused_before_any_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2_049):
        (tmp_path / f"rank{number}.json").touch()
    assert main(["analyze", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "2,049 traces are too many for one report" in message and "`overlapscope ranks`" in message
    assert "each of 2,048 at" in " ".join(message.split())
