"""Representations of results in Python and notebooks: a verdict, or a screen of text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

from overlapscope.base.registry import Shown, load
from overlapscope.base.words import clean, plural, shorten
from overlapscope.budgets.document import log
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.compare import document as compare
from overlapscope.compare.difference import Diff
from overlapscope.documents.model import Document, brief
from overlapscope.prediction import document as whatif
from overlapscope.prediction.result import WhatIf
from overlapscope.ranks import document as ranks
from overlapscope.ranks import verdict as ranks_verdict
from overlapscope.ranks.result import RanksReport
from overlapscope.render import terminal
from overlapscope.report import document as report
from overlapscope.report.model import Report
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge

WIDTH, LINES = 100, 30
"""Size of the text in a notebook, in characters and lines."""
_MAX_LENGTH = 300
_SAME_BEGINNING = 60
"""Number of characters by which a text that begins with the verdict is recognized."""


def sentence(result: Shown) -> str:
    """Return `Report: trace.json.gz, NVIDIA H200: No overlap: all 72.2 ms of copies...` in angle brackets."""
    verdict, _ = _verdict_and_document(result)
    return f"<{type(result).__name__}: {shorten(clean(verdict), _MAX_LENGTH)}>"


def screen(result: Shown) -> str:
    """Return the beginning of the command line's output as HTML, with the number of lines left out."""
    verdict, document = _verdict_and_document(result)
    text = terminal.render(brief(document()), width=WIDTH)
    # A check's outcome is at the end of its document, so the verdict goes first.
    begins = (" ".join(words.split())[:_SAME_BEGINNING] for words in (text, verdict))
    lines = [] if len({*begins}) == 1 else [clean(verdict), ""]
    lines += text.splitlines()
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... and {plural(len(lines) - LINES + 1, 'line')} more on the command line."]
    return f'<pre style="line-height: 1.25; white-space: pre">{escape(chr(10).join(lines))}</pre>'


def _verdict_and_document(result: Shown) -> tuple[str, Callable[[], Document]]:
    """Return the verdict and a function that builds the command line's document."""
    match result:
        case Report():
            page = Page(result)
            sections = list(page.sections())
            several = f"{plural(len(result.traces), 'trace')}, {plural(len(result.findings), 'finding')}"
            verdict = judge(sections[0]).text if len(sections) == 1 else several
            return verdict, partial(report.document, page)
        case Diff():
            return result.verdict, partial(compare.document, result)
        case CheckResult():
            return result.summary, partial(log, result)
        case WhatIf():
            return whatif.headline(result), partial(whatif.document, result)
        case RanksReport():
            return ranks_verdict.judge(result).text, partial(ranks.document, result, ranks.TERMINAL)
    view: tuple[str, Callable[[], Document]] = load(result.shown_by)(result)
    return view
