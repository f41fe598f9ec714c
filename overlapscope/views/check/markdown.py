"""A check as GitHub markdown that fits into a comment: what failed, and why behind a click."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape as escape_html

from overlapscope.budgets.verdicts import CheckResult, Reason, Verdict
from overlapscope.views.check import shown
from overlapscope.views.markdown import escape, plain_start, unlinked

COMMENT_BYTES = 60_000
"""GitHub refuses a comment of more than 65,536 characters."""


def render(result: CheckResult) -> str:
    """The check as one markdown document."""
    return document(result, COMMENT_BYTES)


def document(result: CheckResult, room_bytes: int) -> str:
    """The check as markdown of at most so many bytes; what does not fit is counted."""
    told = [verdict for verdict in result.verdicts if verdict.status != "pass"]
    passed = [verdict for verdict in result.verdicts if verdict.status == "pass"]
    lines = [
        f"## overlapscope check: {shown.OUTCOME[result.outcome]}",
        "",
        _paragraph(result.summary),
        "",
        *([_paragraph(shown.judged(result)), ""] if len(result.sources) > 1 else []),
        *([] if result.program is None else [_paragraph(result.program), ""]),
        *_warnings(result, room_bytes // 8),
        *_table(told, room_bytes // 4),
        *_explained(told, room_bytes // 4),
    ]
    if passed:
        lines += [f"<details><summary>{len(passed):,} passed</summary>", ""]
        lines += [*_table(passed, room_bytes // 4), "</details>", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _warnings(result: CheckResult, room_bytes: int) -> Iterator[str]:
    drawn, rest = shown.fitting(result.warnings, lambda warning: f"- {_paragraph(warning)}", room_bytes)
    if result.warnings:
        yield from (*drawn, *_rest(rest), "")


def _table(verdicts: list[Verdict], room_bytes: int) -> Iterator[str]:
    if not verdicts:
        return
    yield "| | budget | on | value | limit |"
    yield "|---|---|---|---:|---:|"
    rows, rest = shown.fitting(verdicts, _row, room_bytes)
    yield from (*rows, "", *_rest(rest))


def _row(verdict: Verdict) -> str:
    value, limit = shown.figures(verdict)
    status = shown.STATUS[verdict.status]
    if shown.counted(verdict):
        status = f"**{status}**"
    elif verdict.status in ("fail", "unknown"):
        status += " (warning)" if verdict.level == "warn" else " (allowed)"
    cells = map(escape, (shown.name(verdict.budget), shown.about(verdict.subject), value, limit))
    return f"| {' | '.join((status, *cells))} |"


def _explained(verdicts: list[Verdict], room_bytes: int) -> Iterator[str]:
    blocks, rest = shown.fitting(verdicts, lambda verdict: "\n".join(_details(verdict)), room_bytes)
    yield from (*blocks, *_rest(rest))


def _details(verdict: Verdict) -> Iterator[str]:
    heading = unlinked(escape_html(shown.title(verdict)))
    yield f"<details><summary>{heading}: {shown.STATUS[verdict.status]}</summary>"
    yield ""
    yield _paragraph(verdict.message)
    yield ""
    if verdict.exception is not None:
        yield _paragraph(verdict.exception)
        yield ""
    for number, reason in enumerate(shown.reasons(verdict), 1):
        yield from _reason(number, reason)
    yield "</details>"
    yield ""


def _reason(number: int, reason: Reason) -> Iterator[str]:
    title = escape(shown.prose(reason.title).strip())
    # Two pairs of stars with nothing between them are a rule across the page.
    yield f"{number}. **{title}**" if title else f"{number}. &nbsp;"
    within = shown.within(reason)
    for line in (
        shown.prose(reason.detail),
        shown.prose(shown.advice(reason)),
        f"At {within}" if within else "",
        f"To read more: overlapscope explain {shown.name(reason.rule)}" if reason.rule is not None else "",
    ):
        if line:
            yield f"   <br>{escape(line)}"
    yield ""


def _paragraph(text: str) -> str:
    """Foreign sentences that begin neither a list nor a block of code."""
    return plain_start(escape(shown.prose(text).strip()))


def _rest(count: int) -> tuple[str, ...]:
    return (shown.left_out(count), "") if count else ()
