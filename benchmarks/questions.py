"""Writes `docs/evaluation/questions.md`: 40 questions about recordings, asked of `overlapscope mcp` as assistants ask.

    python -m benchmarks.questions docs/evaluation/questions.md      # half a minute

The questions are those of `tests/questions/questions.yaml`, which says how each is asked and what is expected.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from mcp import Client, StdioServerParameters

from benchmarks.noise import table
from overlapscope.base.words import plural
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


@dataclass(frozen=True)
class Asked:
    """A question and what came back."""

    question: Question
    answers: tuple[str, ...]
    """JSON, or what the tool says against the call."""
    expected: Any
    wrong: tuple[str, ...]
    """What is not as it should be, in words; empty where the answer is right."""

    @property
    def found(self) -> Any:
        """The answer."""
        return at(json.loads(self.answers[-1]), self.question.answer)


def questions() -> tuple[Question, ...]:
    """All of them."""
    text = (ROOT / "tests/questions/questions.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=tuple[Question, ...])


# -- asking ---------------------------------------------------------------------------------------------


async def ask(made: Path) -> list[Asked]:
    """Of one server that reads the bundled recordings, and the made files of a directory."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "overlapscope", "mcp", str(TRACES), str(made)],
        env={"PYTHONPATH": str(ROOT)},
    )
    async with Client(server) as client:
        return [await _ask(client, question, made) for question in questions()]


async def _ask(client: Client, question: Question, made: Path) -> Asked:
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
    expected = _expected(question, made)
    return Asked(question, tuple(answers), expected, tuple(wrong or _wrong(question, answers, expected)))


def _wrong(question: Question, answers: list[str], expected: Any) -> Iterable[str]:
    answer = json.loads(answers[-1])
    found = at(answer, question.answer)
    if not _holds(question.holds, found, expected):
        yield f"{found!r} where {expected!r} is expected"
    if question.unit != "none" and unit_at(answer, question.answer) != question.unit:
        yield f"the unit is said to be {unit_at(answer, question.answer)}"
    if question.figures != "none" and of_at(answer, question.answer) != question.figures:
        yield f"it is said to be {of_at(answer, question.answer)}"
    if question.unknown not in answers[-1]:
        yield f"it is not said: {question.unknown}"
    if len(question.calls) > MOST_CALLS or max(len(one.encode()) for one in answers) > MOST_BYTES:
        yield "too many calls, or too long answers"


def _holds(how: str, found: Any, expected: Any) -> bool:
    match how:
        case "inside":
            low, high = (found.get(end, found.get(f"{end}_ns")) for end in ("low", "high"))
            return bool(low <= expected <= high)
        case "contains":
            return any(expected in text for text in found)
        case _:
            same: bool = found == expected
            return same or (isinstance(expected, float) and abs(found - expected) <= 1e-12 * abs(expected))


# -- where an answer stands, and what is said of it ---------------------------------------------------------


def at(answer: Any, path: str) -> Any:
    """What stands at a path (`questions.yaml` says how they are written)."""
    *_, last = _along(answer, path)
    return last


def _along(answer: Any, path: str) -> Iterable[Any]:
    """All that a path leads through, from the whole answer on."""
    yield answer
    for part in re.findall(r"\[[^]]*\]|[^/]+", path):
        if part.startswith("["):
            name, _, value = part[1:-1].partition("=")
            answer = next(one for one in answer if str(one.get(name)) == value)
        elif part == "largest":
            answer = max(answer, key=lambda one: answer[one])
        else:
            answer = answer[int(part)] if isinstance(answer, list) else answer[part]
        yield answer


def unit_at(answer: Mapping[str, Any], path: str) -> str | None:
    """Which unit the answer says that a value has: beside it, in its column, or by its name."""
    *_, holder, value = _along(answer, path)
    if isinstance(holder, dict) and "unit" in holder:
        return _UNITS.get(holder["unit"])
    if isinstance(holder, list):
        said: str | None = answer["columns"][int(path.split("/")[-1])]["unit"]
        return said
    # An interval has its unit in its own name, or in those of its ends.
    names = [part for part in path.split("/") if part != "value"][-1:] + list(value if isinstance(value, dict) else ())
    return next((unit for name in names for end, unit in _ENDS.items() if name.endswith(end)), None)


def of_at(answer: Mapping[str, Any], path: str) -> str | None:
    """Which program the answer says that a value is of: the nearest that says so, else the whole answer."""
    for name in reversed(path.split("/")):
        if name in ("recorded", "plain_step"):
            return name.removesuffix("_step")
    said = [one["figures"] for one in _along(answer, path) if isinstance(one, dict) and "figures" in one][-1]
    of = {of for words, of in _OF.items() if words in said}
    return "predicted" if "predicted" in of else of.pop() if len(of) == 1 else None


# -- what is expected ---------------------------------------------------------------------------------------


def _expected(question: Question, made: Path) -> Any:
    how = question.expected
    if "raw" in how:
        given = {name: _file(value, made) if name in ("file", "before") else value for name, value in how.items()}
        return truth.RAW[given.pop("raw")](given.pop("file"), **given)
    if "command" in how:
        return at(json.loads(_printed(how["command"])), how["at"])
    return how["value"]


def _file(name: str, made: Path) -> Path:
    return next(path for path in (TRACES / name, made / name) if path.exists())


def _printed(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(TRACES):
        overlapscope(shlex.split(command))
    return printed.getvalue()


# -- the page -----------------------------------------------------------------------------------------------

HEAD = """# Questions of assistants

Written by `python -m benchmarks.questions docs/evaluation/questions.md`; a test asks all questions again, and fails when one is no longer answered.

{count} questions of people who use PyTorch, about bundled recordings, were written down with the answers that must come back, before any of them was
asked. `tests/questions/questions.yaml` has them, with the calls in full. They are asked of one `overlapscope mcp` over its standard streams, with the client of the
MCP SDK. Nobody chooses the calls while asking: they are written down, too, so this page says what the tools can answer, not how well an assistant
chooses among them. A later call may use values from the answer to an earlier one.

An answer is right if it has the expected value, in nanoseconds to the last digit, says its unit, says whether it is of the recording, of the plain
program or a prediction, and says what is unknown where the question has no answer in the file. {raw} expected values are
computed from the raw file by brute force (`tests/questions/truth.py`), without overlapscope's reader or analysis; {stated} follow from how the program
or the file was made; {command} {is_command} the published JSON of the command line. Predictions are held against recordings or timings of the changed program: those must lie in the
interval.

**{right} of {count} questions are answered**, with at most {most_calls} calls (median {calls}) and {most_bytes:,} bytes (median {bytes:,}), all answers to a question together.
The files that they are about hold {median_raw} of trace in the median, and {whole_raw} together, unpacked.

"""
CHANGED = """
## What the questions changed

These were not answered, or not in full, when they were first asked, and the tools were changed for them:

"""


def page(asked: list[Asked], made: Path) -> str:
    """The page."""
    sizes = [sum(len(answer.encode()) for answer in one.answers) for one in asked]
    raw = [_raw(one.question, made) for one in asked]
    ways = [next(way for way in ("raw", "command", "value") if way in one.question.expected) for one in asked]
    calls = [len(one.question.calls) for one in asked]
    command = ways.count("command")
    head = HEAD.format(
        count=len(asked),
        raw=ways.count("raw"),
        stated=ways.count("value"),
        command=command,
        is_command="is" if command == 1 else "are",
        right=sum(not one.wrong for one in asked),
        calls=round(statistics.median(calls)),
        most_calls=max(calls),
        bytes=round(statistics.median(sizes)),
        most_bytes=max(sizes),
        median_raw=_size(statistics.median(raw)),
        whole_raw=_size(sum(raw)),
    )
    lines = table(["question", "calls", "bytes", "answer", "of", "known from"], map(_row, asked, sizes))
    changed = [f"- {one.question.question} {one.question.changed}" for one in asked if one.question.changed]
    return head + "\n".join(lines) + "\n" + (CHANGED + "\n".join(changed) + "\n" if changed else "")
