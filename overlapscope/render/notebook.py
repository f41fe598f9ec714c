"""What a result shows of itself: its verdict where Python shows it, a screen of text in a notebook."""

from __future__ import annotations

from functools import singledispatch
from html import escape

from overlapscope.base.shown import Shown
from overlapscope.base.words import clean, plural, shorten
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.compare.difference import Diff
from overlapscope.prediction import document as whatif
from overlapscope.prediction.result import WhatIf
from overlapscope.ranks import document as ranks_document
from overlapscope.ranks import verdict as ranks_verdict
from overlapscope.ranks.result import RanksReport
from overlapscope.render import terminal
from overlapscope.report.document import document
from overlapscope.report.model import Report
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.views.check import text as check_text
from overlapscope.views.diff import text as diff_text

WIDTH, LINES = 100, 30
"""Of the text in a notebook."""
_LONGEST = 300


def sentence(result: Shown) -> str:
    """`Report: trace.json.gz, NVIDIA H200: 0% of the overlap that was possible happened...`, in angle brackets."""
    verdict, _ = _said(result)
    return f"<{type(result).__name__}: {shorten(clean(verdict), _LONGEST)}>"


def screen(result: Shown) -> str:
    """The beginning of what the command line prints, as HTML, and how much more there is."""
    verdict, text = _said(result)
    # A check has its outcome at its end, as a log is read.
    lines = [] if " ".join(text.split()).startswith(" ".join(verdict.split())) else [clean(verdict), ""]
    lines += text.splitlines()
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... and {plural(len(lines) - LINES + 1, 'line')} more on the command line."]
    return f'<pre style="line-height: 1.25; white-space: pre">{escape(chr(10).join(lines))}</pre>'


@singledispatch
def _said(result: Shown) -> tuple[str, str]:
    """The verdict, and the text as the command line prints it."""
    raise TypeError(type(result).__name__)


@_said.register
def _(result: Report) -> tuple[str, str]:
    page = Page(result)
    sections = list(page.sections())
    several = f"{plural(len(result.traces), 'trace')}, {plural(len(result.findings), 'finding')}"
    verdict = judge(sections[0]).text if len(sections) == 1 else several
    return verdict, terminal.render(document(page), width=WIDTH)


@_said.register
def _(result: Diff) -> tuple[str, str]:
    return result.verdict, diff_text.render(result, width=WIDTH)


@_said.register
def _(result: CheckResult) -> tuple[str, str]:
    return result.summary, check_text.render(result, width=WIDTH)


@_said.register
def _(result: WhatIf) -> tuple[str, str]:
    return whatif.headline(result).text, terminal.render(whatif.document(result), width=WIDTH)


@_said.register
def _(result: RanksReport) -> tuple[str, str]:
    text = terminal.render(ranks_document.document(result, ranks_document.TERMINAL), width=WIDTH)
    return ranks_verdict.judge(result).text, text
