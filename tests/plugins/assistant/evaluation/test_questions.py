"""Tests that `overlapscope mcp` answers people's questions about recordings, briefly and completely."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path

import pytest

from benchmarks.questions import COLUMNS, Asked, ask, data, questions
from tests.questions.made import make
from tests.support.helpers import TRACES

pytest.importorskip("overlapscope.plugins.sql")
DATA = TRACES.parent / "docs/evaluation/questions.csv"
TOOLS = {
    *("list_traces", "open_trace", "verdict", "findings", "explain", "timeline", "query", "tables"),
    *("whatif", "diff", "check", "ranks", "history"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    make(directory)
    return directory


@pytest.fixture(scope="module")
def asked(folder: Path) -> list[Asked]:
    return asyncio.run(ask(folder))


def test_all_questions_are_answered(asked: list[Asked]) -> None:
    assert {request.question.question: request.wrong for request in asked if request.wrong} == {}


def test_there_are_40_questions_and_each_tool_answers_one() -> None:
    assert len(questions()) == 40
    assert {tool for question in questions() for call in question.calls for tool in call} == TOOLS


def test_the_file_of_them_is_up_to_date(asked: list[Asked]) -> None:
    """Except bytes: an answer may name the directories, which lie elsewhere."""
    size = COLUMNS.index("bytes")
    written, new = (
        [[*cells[:size], *cells[size + 1 :]] for cells in rows]
        for rows in (list(csv.reader(DATA.read_text().splitlines()))[1:], data(asked))
    )
    assert written == new, "stale: run python -m benchmarks.questions docs/evaluation/questions.md"
