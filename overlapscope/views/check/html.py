"""A check as one HTML page that needs nothing else: what failed, by how much, and why."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from overlapscope.budgets.quantity import show
from overlapscope.budgets.verdicts import CheckResult, Status, Verdict
from overlapscope.views.check import shown
from overlapscope.views.html import document
from overlapscope.views.html.document import Document
from overlapscope.views.html.parts import items, panel, paragraphs, table
from overlapscope.views.old_tables import Column, Table

ROOM_BYTES: Final = 300_000
"""For each list, so that the page stays below 1 MB."""
_CLASS: Final[dict[Status, str]] = {
    "pass": "ok",
    "fail": "fail",
    "unknown": "unknown",
    "skipped": "muted",
    "accepted": "accepted",
}
_OUTCOME_CLASS: Final = {"pass": "ok", "fail": "fail", "inconclusive": "unknown"}


def render(result: CheckResult) -> str:
    """The check as a page."""
    return document.render(
        Document(
            title=f"overlapscope check: {shown.OUTCOME[result.outcome]}",
            body=_body(result),
            styles=[document.asset("check.css")],
        )
    )


def _body(result: CheckResult) -> Iterator[str]:
    yield "<h1>overlapscope check</h1>"
    yield (
        f'<p class="summary">{_badge(_OUTCOME_CLASS[result.outcome], shown.OUTCOME[result.outcome])}'
        f"{escape(shown.prose(result.summary))}</p>"
    )
    if len(result.sources) > 1:
        yield f"<p>{escape(shown.judged(result))}</p>"
    if result.program is not None:
        yield f"<p>{escape(shown.prose(result.program))}</p>"
    if result.warnings:
        yield panel("Warnings", items(map(shown.prose, result.warnings[: shown.WARNINGS])))
    told = [verdict for verdict in result.verdicts if verdict.status != "pass"]
    articles, rest = shown.fitting(told, lambda verdict: "".join(_verdict(verdict)), ROOM_BYTES)
    yield from articles
    yield _rest(rest)
    passed = [verdict for verdict in result.verdicts if verdict.status == "pass"]
    if passed:
        yield _passed(passed)
    yield f'<p class="muted">{escape(result.tool.name)} {escape(result.tool.version)}</p>'


def _verdict(verdict: Verdict) -> Iterator[str]:
    about = shown.about(verdict.subject)
    yield f'<article class="panel verdict {_CLASS[verdict.status]}">'
    yield f"<h2>{escape(shown.name(verdict.budget))}</h2>"
    note = "" if shown.counted(verdict) or verdict.status not in ("fail", "unknown") else "does not count"
    yield (
        f'<p class="facts">{_badge(_CLASS[verdict.status], shown.STATUS[verdict.status])}'
        f'<span>{escape(about)}</span><span class="muted">{escape(note)}</span></p>'
    )
    yield f'<div class="sides"><div>{"".join(_scale(verdict))}</div><div>'
    yield f"<p>{escape(shown.prose(verdict.message))}</p>"
    if verdict.exception is not None:
        yield f'<p class="muted">{escape(shown.prose(verdict.exception))}</p>'
    if verdict.reasons:
        yield '<ol class="reasons">'
        for reason in shown.reasons(verdict):
            yield f"<li><b>{escape(shown.prose(reason.title))}</b>"
            within = shown.within(reason)
            if within:
                yield f'<br><span class="where">{escape(within)}</span>'
            for text in (reason.detail, shown.advice(reason)):
                if text:
                    yield paragraphs(text[: shown.PROSE_LIMIT])
            if reason.rule is not None:
                yield f"<code>overlapscope explain {escape(shown.name(reason.rule))}</code>"
            yield "</li>"
        yield "</ol>"
    yield "</div></div></article>"


def _scale(verdict: Verdict) -> Iterator[str]:
    """Value and limit in figures, and as a bar with a mark where both are known."""
    if verdict.value is None and verdict.limit is None:
        return
    value, limit = shown.figures(verdict)
    yield f'<dl class="figures"><div><dt>value</dt><dd>{escape(value)}</dd></div>'
    if limit:
        yield f"<div><dt>limit</dt><dd>{escape(limit)}</dd></div>"
    if verdict.baseline is not None:
        yield f"<div><dt>baseline</dt><dd>{escape(show(verdict.baseline, verdict.unit))}</dd></div>"
    yield "</dl>"
    if verdict.value is None or verdict.limit is None or verdict.unit in ("findings", "differences"):
        return
    longest = 100.0 if verdict.unit == "pct" else 1.15 * max(verdict.value, verdict.limit)
    if longest > 0:
        filled, mark = (min(100.0, 100 * max(0.0, part) / longest) for part in (verdict.value, verdict.limit))
        yield (
            f'<div class="scale-bar" aria-hidden="true"><span style="width:{filled:.2f}%"></span>'
            f'<i style="left:{mark:.2f}%"></i></div>'
        )


def _passed(verdicts: list[Verdict]) -> str:
    rows: list[tuple[str, ...]] = []
    room = ROOM_BYTES
    for verdict in verdicts:
        row = (shown.name(verdict.budget), shown.about(verdict.subject), *shown.figures(verdict))
        room -= sum(len(escape(cell).encode()) for cell in row) + 100
        if room < 0:
            break
        rows.append(row)
    columns = (
        Column("budget", number=False, flexible=True),
        Column("on", number=False, flexible=True),
        Column("value"),
        Column("limit"),
    )
    shown_table = table(Table("", columns, tuple(rows)))
    return panel(f"{len(verdicts):,} passed", shown_table, _rest(len(verdicts) - len(rows)))


def _badge(kind: str, word: str) -> str:
    return f'<span class="level {kind}">{escape(word.capitalize())}</span>'


def _rest(count: int) -> str:
    return f'<p class="note">{escape(shown.left_out(count))}</p>' if count else ""
