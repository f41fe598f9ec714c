"""Results as Python and notebooks show them unasked: a sentence, and one screen."""

from __future__ import annotations

import html
import json
import pickle
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.base.registry import Shown
from overlapscope.base.saved import encode
from overlapscope.ranks.parts import from_json as ranks_from_json
from overlapscope.reading.samples import SAMPLES
from overlapscope.render.notebook import LINES, WIDTH
from overlapscope.report.model import Report
from tests.support.helpers import TRACES
from tests.support.kineto_files import kernel, write
from tests.support.ranks_samples import job

BAD = TRACES / "known_causes" / "pageable_memory.json.gz"
GOOD = TRACES / "known_causes" / "healthy_prefetch.json.gz"


def result(name: str) -> Shown:
    trace = ov.load(BAD)
    match name:
        case "Diff":
            return ov.diff(trace, ov.load(GOOD))
        case "CheckResult":
            return ov.check(trace)
        case "WhatIf":
            return ov.whatif(trace, ["pin"])
        case "RanksReport":
            return ranks_from_json(encode(job(2)))
        case "several":
            return ov.analyze([trace, ov.load(GOOD)])
        case _:
            return ov.analyze(trace)


@pytest.mark.parametrize("name", ["Report", "several", "Diff", "CheckResult", "WhatIf", "RanksReport"])
def test_a_result_shows_its_verdict_and_one_screen(name: str, tmp_path: Path) -> None:
    shown = result(name)
    kind = "Report" if name == "several" else name
    assert repr(shown).startswith(f"<{kind}: ") and len(repr(shown)) < 350 and repr(shown).isprintable()
    screen = shown._repr_html_()
    assert screen.startswith("<pre ") and screen.endswith("</pre>")
    lines = html.unescape(screen.partition(">")[2].removesuffix("</pre>")).splitlines()
    assert 5 < len(lines) <= LINES
    assert max(map(len, lines)) <= max(WIDTH, len(lines[0]))
    # To everything else, a result behaves as before.
    assert pickle.loads(pickle.dumps(shown)) == shown


def test_a_screen_states_the_verdict_once() -> None:
    screen = html.unescape(ov.analyze(SAMPLES / "training_naive.json.gz")._repr_html_())
    assert screen.count("Copy-bound") == 1 and "\\n" not in screen


def test_names_from_a_trace_are_text_in_a_notebook(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    path = write(tmp_path / f"{name.replace('/', '')}.json", [kernel(0, 10, name=name), kernel(20, 10, name=name)])
    report = ov.analyze(ov.load(path))
    assert isinstance(report, Report)
    assert "<script" not in report._repr_html_() and "\x1b" not in report._repr_html_()
    assert repr(report).isprintable() and json.dumps(repr(report)).isascii()
