"""Writes `docs/evaluation/questions.md`: 40 questions about recordings, asked of `overlapscope mcp` as assistants ask.

    python -m benchmarks.questions docs/evaluation/questions.md      # half a minute

`tests/questions/questions.yaml` has the questions with their calls and expected answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import math
import re
import shlex
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from mcp import Client, StdioServerParameters

from benchmarks.data_files import csv_cells, csv_text
from overlapscope.base.words import size
from overlapscope.commands import main as overlapscope
from tests.questions import truth
from tests.questions.made import make
from tests.support.helpers import TRACES

ROOT: Final = TRACES.parent
MOST_CALLS, MOST_BYTES = 3, 8_000
_ENDS: Final = {"_ns": "ns", "_pct": "%", "bytes": "bytes", "gb_per_s": "GB/s"}
_UNITS: Final = {"ns": "ns", "pct": "%"}
_OF: Final = {"prediction": "predicted", "without the profiler": "plain", "plain": "plain", "record": "recorded"}
"""Words by which an answer says which program its figures are of; the first that it has decides."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `questions.yaml` has it."""

    question: str
    calls: tuple[dict[str, dict[str, Any]], ...]
    answer: str
    expected: dict[str, Any]
    unit: Literal["ns", "%", "bytes", "GB/s", "none"]
    figures: Literal["recorded", "plain", "predicted", "none"]
    holds: Literal["equal", "inside", "contains"] = "equal"
    unknown: str = ""
    changed: str = ""
    """Part that was missing when the question was first asked."""


class Asked(msgspec.Struct, frozen=True):
    """A question and what came back."""

    question: Question
    answers: tuple[str, ...]
    """JSON, or the tool's error."""
    expected: Any
    wrong: tuple[str, ...]
    """Mistakes in words; empty if the answer is right."""


def questions() -> tuple[Question, ...]:
    """All of them."""
    text = (ROOT / "tests/questions/questions.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=tuple[Question, ...])


# -- asking ---------------------------------------------------------------------------------------------


async def ask(folder: Path) -> list[Asked]:
    """Ask one server that reads the bundled recordings and the made files of a directory."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "overlapscope", "mcp", str(TRACES), str(folder)],
        env={"PYTHONPATH": str(ROOT)},
    )
    async with Client(server) as client:
        return [await _ask(client, question, folder) for question in questions()]


async def _ask(client: Client, question: Question, folder: Path) -> Asked:
    answers: list[str] = []
    wrong: list[str] = []
    for call in question.calls:
        [(tool, arguments)] = call.items()
        given = {
            name: at(json.loads(answers[value["from"] - 1]), value["at"]) if isinstance(value, dict) else value
            for name, value in arguments.items()
        }
        result = await client.call_tool(tool, given)
        answers.append("".join(getattr(part, "text", "") for part in result.content))
        if result.is_error:
            wrong.append(f"{tool} says: {answers[-1]}")
            break
    expected = _expected(question, folder)
    return Asked(question, tuple(answers), expected, tuple(wrong or _wrong(question, answers, expected)))


def _wrong(question: Question, answers: list[str], expected: Any) -> Iterable[str]:
    answer = json.loads(answers[-1])
    try:
        value = at(answer, question.answer)
    except (LookupError, ValueError):
        yield f"nothing stands at {question.answer}"
        return
    if not _holds(question.holds, value, expected):
        yield f"{value!r} where {expected!r} is expected"
    if question.unit != "none" and unit_at(answer, question.answer) != question.unit:
        yield f"the unit is said to be {unit_at(answer, question.answer)}"
    if question.figures != "none" and of_at(answer, question.answer) != question.figures:
        yield f"it is said to be {of_at(answer, question.answer)}"
    holder = [value for value in _along(answer, question.answer) if isinstance(value, dict)][1:]
    if question.unknown not in " ".join([*answer["unknown"], *map(str, holder)]):
        yield f"it is not said: {question.unknown}"
    if len(answers) > MOST_CALLS or sum(len(answer.encode()) for answer in answers) > MOST_BYTES:
        yield "too many calls, or too long answers"


def _holds(how: str, value: Any, expected: Any) -> bool:
    match how:
        case "inside":
            low, high = _ends(value)
            return bool(low <= expected <= high)
        case "contains":
            return any(expected in text for text in value)
        case _:
            if isinstance(value, float) and isinstance(expected, float):
                return math.isclose(value, expected, rel_tol=1e-12)
            return bool(value == expected)


def _ends(interval: Mapping[str, int]) -> tuple[int, int]:
    low, high = (interval.get(end, interval.get(f"{end}_ns", 0)) for end in ("low", "high"))
    return low, high


# -- Paths, units and programs of an answer ------------------------------------------------------------------


def at(answer: Any, path: str) -> Any:
    """Return the value at a path (`questions.yaml` explains paths)."""
    *_, last = _along(answer, path)
    return last


def _along(answer: Any, path: str) -> Iterable[Any]:
    """All that a path leads through, from the whole answer on."""
    yield answer
    for part in re.findall(r"\[[^]]*\]|[^/]+", path):
        if part.startswith("["):
            name, _, value = part[1:-1].partition("=")
            [answer] = [entry for entry in answer if str(entry.get(name)) == value][:1]
        elif part == "largest":
            answer = max(answer, key=lambda item: answer[item])
        else:
            answer = answer[int(part)] if isinstance(answer, list) else answer[part]
        yield answer


def unit_at(answer: Mapping[str, Any], path: str) -> str | None:
    """Return the unit that the answer states for a value: beside it, in its column, or by its name."""
    *_, holder, value = _along(answer, path)
    if isinstance(holder, dict) and "unit" in holder:
        return _UNITS.get(holder["unit"])
    if isinstance(holder, list):
        unit_by_name: str | None = answer["columns"][int(path.rpartition("/")[2])]["unit_by_name"]
        return unit_by_name
    # An interval has its unit in its own name, or in those of its ends.
    names = [part for part in path.split("/") if part != "value"][-1:] + list(value if isinstance(value, dict) else ())
    return next((unit for name in names for end, unit in _ENDS.items() if name.endswith(end)), None)


def of_at(answer: Mapping[str, Any], path: str) -> str | None:
    """Return the program that the answer states for a value: the nearest statement, else that of the whole answer."""
    for name in reversed(path.split("/")):
        if name in ("recorded_window", "plain_step"):
            return name.partition("_")[0]
    figures = [value["figures"] for value in _along(answer, path) if isinstance(value, dict) and "figures" in value][-1]
    of = {of for words, of in _OF.items() if words in figures}
    return "predicted" if "predicted" in of else of.pop() if len(of) == 1 else None


# -- Expected values -----------------------------------------------------------------------------------------


def _expected(question: Question, folder: Path) -> Any:
    how = question.expected
    if "raw" in how:
        given = {name: _file(value, folder) if name in ("file", "before") else value for name, value in how.items()}
        return truth.RAW[how["raw"]](given.pop("file"), **{name: given[name] for name in given if name != "raw"})
    if "command" in how:
        return at(json.loads(_printed(how["command"])), how["at"])
    return how["value"]


def _file(name: str, folder: Path) -> Path:
    return next(path for path in (TRACES / name, folder / name) if path.exists())


def _printed(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(TRACES):
        overlapscope(shlex.split(command))
    return printed.getvalue()


# -- the page -----------------------------------------------------------------------------------------------

PAGE = """# Questions of assistants

**Question:** Does a program that asks `overlapscope mcp` get the right answer?

**{right} of {count} questions are answered**, with {calls} call in the median and {most_calls} at most, and {bytes:,}
bytes in the median and {most_bytes:,} at most. The recordings have {median_raw} in the median, unpacked.

An answer is right if

- it has the expected value, to the last nanosecond;
- it states its unit, and whether it is of the recording, of the plain program or a prediction;
- it says so if the file has no answer;
- it takes at most three calls and 8,000 bytes.

| expected value known from | questions |
|---|---:|
| the raw file, by brute force (`tests/questions/truth.py`) | {raw} |
| how a program or file was made, or its documentation | {stated} |
| the JSON of the command line | {command} |

A predicted or estimated interval must contain the measured step. Every question with its calls and its answer:
[questions.csv](questions.csv). {changed} questions were not fully answered when they were first asked, and the tools
were changed for them; the last column of the file says why.

The questions and calls are fixed in `tests/questions/questions.yaml`, so this page measures the tools, not how well an
assistant chooses among them. They were written together with the tools.

`python -m benchmarks.questions docs/evaluation/questions.md` writes this page. A test asks all questions again.
"""
COLUMNS = ("question", "calls", "answer", "known from", "bytes", "missing at first")


def page(asked: list[Asked], folder: Path) -> str:
    """Return the page."""
    sizes = list(map(_bytes, asked))
    ways = Counter(way for request in asked for way in request.question.expected)
    return PAGE.format(
        count=len(asked),
        raw=ways["raw"],
        stated=ways["value"],
        command=ways["command"],
        right=sum(not request.wrong for request in asked),
        calls=round(statistics.median(len(request.answers) for request in asked)),
        most_calls=max(len(request.answers) for request in asked),
        bytes=round(statistics.median(sizes)),
        most_bytes=max(sizes),
        median_raw=size(round(statistics.median(_raw_bytes(request.question, folder) for request in asked))),
        changed=sum(bool(request.question.changed) for request in asked),
    )


def data(asked: Iterable[Asked]) -> list[list[str]]:
    """Return the rows of the CSV file."""
    return [csv_cells((*_row(request, _bytes(request)), request.question.changed)) for request in asked]


def _bytes(asked: Asked) -> int:
    return sum(len(answer.encode()) for answer in asked.answers)


def _row(asked: Asked, size: int) -> tuple[str, ...]:
    question = asked.question
    calls = ", then ".join(f"`{tool}`" for call in question.calls for tool in call)
    outcome = f"**{'; '.join(asked.wrong)}**" if asked.wrong else _shown_answer(asked)
    source = question.expected.get("because") or ("raw file" if "raw" in question.expected else "command line")
    return question.question, calls, outcome, source, f"{size:,}"


def _shown_answer(asked: Asked) -> str:
    """Return the answer, which equals the expected one or contains it."""
    question, expected = asked.question, asked.expected
    if expected is None:
        text = "null"
    elif expected is False:
        text = "not recorded"
    elif question.unit == "%":
        text = f"{expected:.4g}%"
    elif question.unit != "none":
        text = f"{expected:,}".removesuffix(".0") + f" {question.unit}"
    elif isinstance(expected, list):
        text = ": ".join(f"{value:,} ns" if isinstance(value, int) else value for value in expected)
    else:
        text = str(expected)
    if question.holds == "inside":
        low, high = _ends(at(json.loads(asked.answers[-1]), question.answer))
        text = f"{low:,} to {high:,} {question.unit}, with {text} inside"
    return text if question.figures in ("none", "recorded") else f"{text} ({question.figures})"


def _raw_bytes(question: Question, folder: Path) -> int:
    """Return the unpacked size of a question's recordings."""
    names = {
        value
        for call in question.calls
        for arguments in call.values()
        for name, value in arguments.items()
        if name in ("path", "before", "after", "baseline")
    }
    paths = [path for name in names for path in _recordings(_file(name, folder))]
    return sum(map(len, map(truth.unpacked, paths)))


def _recordings(path: Path) -> list[Path]:
    return sorted(path.glob("*.json.gz")) if path.is_dir() else [path]


def main() -> None:
    """Ask, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        make(path)
        asked = asyncio.run(ask(path))
        args.page.write_text(page(asked, path))
        args.page.with_suffix(".csv").write_text(csv_text(COLUMNS, data(asked)))
    for request in asked:
        for wrong in request.wrong:
            print(f"{request.question.question} {wrong}")


if __name__ == "__main__":
    main()
