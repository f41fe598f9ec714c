"""Tests of the hazard checker's reports: the race, the lines, and the journal of events."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from overlapscope.plugins.hazards.bookkeeping import Hazard, HazardPlace, Journal, describe
from overlapscope.recorder.program_lines import CodeLine, line
from tests.plugins.hazards.books import Books, Step, fail


def test_a_pair_of_lines_is_reported_once_with_a_count() -> None:
    books = Books()
    for _ in range(3):
        books.do(Step("d2h", 7), 1)
        books.do(Step("host"), 2)
    (hazard,) = books.books.hazards
    assert hazard == Hazard(
        kind="read-while-copied",
        first=HazardPlace("program.py", 1, "step 1", "copies into it"),
        second=HazardPlace("program.py", 2, "step 2", "reads it"),
        tensor="float32[1]",
        streams=("stream 0x7",),
        missing="synchronize() of the stream of program.py:1, or of an event recorded after the copy, "
        "before program.py:2",
        count=3,
    )


def test_a_hazard_on_the_default_stream_names_the_call_that_is_missing() -> None:
    (hazard,) = Books().run([Step("h2d"), Step("host", write=True)]).books.hazards
    assert hazard.kind == "overwritten-while-copied" and hazard.streams == ("the default stream",)
    assert hazard.missing.startswith("torch.cuda.default_stream().synchronize(), or ")


def test_a_race_between_streams_names_the_wait_that_is_missing() -> None:
    first, second = Books().run([Step("use", 0, write=True), Step("use", 7)]), Books()
    second.run([Step("use", 7), Step("use", 0, write=True)])
    (from_default,), (from_side,) = first.books.hazards, second.books.hazards
    assert from_default.missing == (
        "torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()) before program.py:1"
    )
    assert from_side.missing == (
        "torch.cuda.current_stream().wait_stream(side) before program.py:1, where side is the stream of program.py:0"
    )
    assert from_side.first.does == "reads it on stream 0x7"
    assert from_side.second.does == "writes it on the default stream"


def test_a_description_is_a_few_lines_and_harmless() -> None:
    hazard = Hazard(
        kind="read-while-copied",
        first=HazardPlace("a\x1b[31m.py", 3, "host = x.to('cpu',\u202e non_blocking=True)", "copies into it"),
        second=HazardPlace("", 0, "", "reads it"),
        tensor="float32[2]\r",
        streams=("stream 0x7",),
        missing="synchronize()",
        count=2,
    )
    assert describe(hazard).split("\n") == [
        "read-while-copied, 2 times: a host tensor is read while a copy may still be writing it",
        "  a\\x1b[31m.py:3  copies into it",
        "      host = x.to('cpu',\\u202e non_blocking=True)",
        "  code outside Python  reads it",
        "    tensor: float32[2]\\r, on stream 0x7",
        "    missing: synchronize()",
    ]


def test_the_line_is_the_innermost_that_is_not_a_librarys(tmp_path: Path) -> None:
    library, program = Path(str(torch.__file__)).with_name("library.py"), tmp_path / "library_user.py"
    names: dict[str, Any] = {}
    for path, source in (
        (library, "def call(f):\n    return f()\n"),
        (program, "def run(call, f):\n    return call(f)\n"),
    ):
        exec(compile(source, str(path), "exec"), names)
    look = lambda: line(sys._getframe(1), waiting=-1)  # noqa: E731
    assert names["run"](names["call"], look) == CodeLine(str(program), 2)


@pytest.mark.parametrize(("name", "is_library"), [("typing_extensions.py", True), ("my_typing_extensions.py", False)])
def test_wrappers_of_deprecated_functions_of_torch_are_no_lines_of_the_program(name: str, is_library: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile("def call(function):\n    return function()\n", f"/app/{name}", "exec"), names)
    found = names["call"](lambda: line(sys._getframe(1), waiting=-1))
    assert (found.file != f"/app/{name}") == is_library


def test_a_thread_without_a_line_of_its_own_gets_that_of_the_one_that_waits_for_it() -> None:
    found, waiting = [], threading.get_ident()
    thread = threading.Thread(target=lambda: found.append(line(None, waiting=waiting)))
    thread.start()
    thread.join()
    assert [one.file for one in found] == [__file__]


def test_a_journal_makes_its_calls_in_order_even_those_noted_meanwhile() -> None:
    journal, done = Journal(fail), []

    def first() -> None:
        journal.note(lambda: done.append("third"))
        journal.write_up()
        done.append("first")

    journal.note(first)
    journal.note(lambda: done.append("second"))
    journal.write_up()
    assert done == ["first", "second", "third"]


def test_a_journal_that_fails_says_so_and_takes_no_more() -> None:
    errors: list[Exception] = []
    journal = Journal(errors.append)
    journal.note(lambda: 1 / 0)
    journal.note(lambda: pytest.fail("it is closed"))
    journal.write_up()
    journal.note(lambda: pytest.fail("it is closed"))
    journal.write_up()
    assert [type(error) for error in errors] == [ZeroDivisionError] and not journal.is_open


def test_a_journal_is_written_up_even_where_no_operator_runs() -> None:
    journal, done = Journal(fail), []
    for number in range(5000):
        journal.note(lambda number=number: done.append(number))  # type: ignore[misc]
    assert len(done) > 3000 and done == list(range(len(done)))
