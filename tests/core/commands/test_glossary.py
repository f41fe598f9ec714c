"""`overlapscope explain` knows every word that a report prints, and says what belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from overlapscope import glossary
from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.errors import UsageError
from overlapscope.reading.samples import SAMPLES
from overlapscope.render import terminal
from tests.support.helpers import TRACES, various

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.md"))
WORDS_OF_ROWS = {"h2d, d2h, both at once", "p2p, exposed", "engines busy, ideal", "a plain step"}
"""Rows that are named by several words, each of which is known."""
TITLES = re.compile(
    r"where (?:the time|a step) goes.*|the whole window, as recorded|overlap|overlap and engines|kernels|ops.*"
    r"|copies \(stream\)|recorded step|steps? .*|outermost op"
)
"""Headings that are the titles of tables."""
EVERYDAY = {
    *("", "%", "ms", "us", "after", "before", "best", "between", "budget", "change", "change %", "check", "device"),
    *(
        "detail",
        "drain",
        "fastest",
        "figure",
        "for",
        "function",
        "GPU",
        "group",
        "groups",
        "in",
        "kernel",
        "least",
        "limit",
    ),
    *("max", "median", "min", "most", "ms a step", "not judged", "now", "of", "of idle", "on", "option", "other"),
    *(
        "passed on",
        "predicted",
        "ranks",
        "receives",
        "recorded with",
        "rows",
        "sends",
        "slowest",
        "source",
        "status",
        "steady",
    ),
    *("steps", "thread", "trace", "value", "waits: warm-up", "what it does", "what was found", "where", "% saved"),
}
"""Headings in their everyday sense."""


def explanation(word: str) -> str:
    """Return the explanation of a word, on a single line."""
    return " ".join(terminal.render(glossary.explain(word)).split())


def _enums(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (item for item in node.get("enum", ()) if isinstance(item, str))
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _enums(inner)


@pytest.mark.parametrize("word", sorted({*_enums(schema_of("report"))}))
def test_every_word_that_the_json_report_chooses_from_is_explained(word: str) -> None:
    assert explanation(word)


def _headings(report: str) -> Iterator[str]:
    """Yield the headings of the columns of a report, without titles of tables and everyday words."""
    lines = report.replace("\\", "").splitlines()
    for line, below in pairwise(lines):
        if re.fullmatch(r"\|[ :|-]+\|", below):
            headings = {re.sub(r",? (?:ms|us|%)$", "", cell.strip()) for cell in line.strip("|").split(" | ")}
            yield from (each for each in headings - EVERYDAY if not TITLES.fullmatch(each))


def _printed(report: str) -> Iterator[str]:
    """Yield the words of ours in a report: headings, checks, causes, buckets, figures and rules."""
    yield from _headings(report)
    yield from re.findall(r"[A-Z]\w+-bound", report.replace("\\", ""))
    for line in report.replace("\\", "").splitlines():
        if heading := re.match(r"### \d+\. ([a-z-]+) \((\w+)\)", line):
            yield from heading.groups()
        elif line.startswith("| "):
            first, second = [cell.strip() for cell in line.split("|")][1:3]
            if first in ("ok", "warn", "fail"):
                yield from (first, second)
            elif re.fullmatch("[a-z][a-z0-9, -]+", first) and re.match(r"[\d.,<> n/a%]+", second):
                yield first


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_every_word_of_a_report_is_explained(golden: Path) -> None:
    ranges = {"forward", "backward", "optimizer", "input", "rank0", "rank1"}
    for word in {*_printed(golden.read_text())} - WORDS_OF_ROWS - ranges:
        assert explanation(word)


PAGEABLE, PREFETCHED = (str(SAMPLES / f"training_{name}.json.gz") for name in ("naive", "prefetched"))
HOST = TRACES.parent / "tests" / "host_samples.trace.json.gz"
REPORTS = (
    *(
        ("analyze", str(recording))
        for recording in [*various(), TRACES.parent / "tests" / "host_samples.trace.json.gz"]
    ),
    ("diff", PAGEABLE, PREFETCHED),
    ("diff", str(SAMPLES / "ddp/rank0.trace.json.gz"), PAGEABLE),
    ("whatif", PAGEABLE, "--best"),
    ("check", PAGEABLE),
    ("ranks", str(SAMPLES / "ddp")),
)


@pytest.mark.parametrize("command", REPORTS, ids=lambda command: "-".join(Path(part).stem for part in command))
def test_every_heading_of_a_report_is_explained(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main([*command, "--format", "markdown", "-v"])
    headings = {*_headings(capsys.readouterr().out)}
    for word in headings:
        assert explanation(word)


@pytest.mark.parametrize(
    ("word", "sense"),
    [
        ("stall", "A blocking call of the host"),
        ("stall cost", "A blocking call of the host"),
        ("exposed", "no kernel ran"),
        ("exp. comm", "communication ran and no other kernel beside it"),
        ("hidden", "during which kernels ran"),
        ("plain", "The program without the profiler"),
        ("exposed, us", "no kernel ran"),
        ("copy: late-issue", "(cause of exposed copies)"),
    ],
)
def test_a_heading_is_explained_as_it_is_printed(word: str, sense: str) -> None:
    assert sense in explanation(word)


def test_a_cause_leads_to_its_rule_its_interventions_and_its_metrics() -> None:
    text = explanation("same-stream")
    assert "Found by rule same-stream." in text
    assert "`--side-stream`" in text
    assert "exposed_copy_pct" in text


def test_a_word_with_several_meanings_is_explained_with_all_of_them() -> None:
    text = explanation("host-sync")
    assert all(kind in text for kind in ("(rule, warning)", "(cause of exposed copies)", "(cause of idle time)"))


@pytest.mark.parametrize("spelled", ["exposed copy", "exposed-copy", "exposed_copy_ns", "Exposed Copy"])
def test_a_word_may_be_spelled_as_people_or_as_json_spell_it(spelled: str) -> None:
    assert "(bucket)" in explanation(spelled)


def test_the_short_form_in_narrow_tables_is_explained_as_the_whole_term() -> None:
    for short, whole in (
        ("efficiency", "overlap efficiency"),
        ("bubble", "pipeline bubble"),
        ("load", "load of experts"),
        ("delay of others", "delay"),
        ("made others wait", "made wait"),
        ("idle caused", "GPU idle"),
    ):
        assert glossary.explain(short).blocks == glossary.explain(whole).blocks


@pytest.mark.parametrize("word", ["stage", "expert", "good", "fair", "poor"])
def test_words_of_tables_of_ranks_and_of_the_dashboard_are_explained(word: str) -> None:
    assert "(term)" in explanation(word)


def test_a_typing_error_is_reported_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'same-stream'"):
        glossary.explain("sam-stream")


def test_without_a_word_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    for word in ("same-stream", "pageable-memory", "side-stream", "exposed_copy_pct", "clock-skew", "idle"):
        assert re.search(rf"^{word} ", listed, re.MULTILINE)
