"""A check as GitHub's workflow commands, which become annotations, and as a job's summary.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.budgets.verdicts import CheckResult, Verdict
from overlapscope.views.check import markdown, shown

MOST = 10
"""GitHub shows so many annotations of a step."""
SUMMARY_BYTES = 1_000_000
"""GitHub refuses a step's summary of more than 1 MiB."""
_TITLE = "overlapscope check"


def render(result: CheckResult) -> str:
    """The worst ten as annotations, and one notice of how it went."""
    told = list(_told(result))
    more = len(told) - MOST
    rest = f" {more:,} more {'is' if more == 1 else 'are'} in the step's summary." if more > 0 else ""
    lines = [*told[:MOST], _command("notice", f"{shown.prose(result.summary)}{rest}", title=_TITLE)]
    return "\n".join(lines) + "\n"


def step_summary(result: CheckResult) -> str:
    """The check as markdown, with all that fits, for `$GITHUB_STEP_SUMMARY`."""
    return markdown.document(result, SUMMARY_BYTES)


def _told(result: CheckResult) -> Iterator[str]:
    """Worst first: what fails the check, what leaves it open, what would fail it at another level, warnings."""
    if shown.unexplained(result):
        yield _command("error", shown.prose(result.summary), title=_TITLE)
    for status in ("fail", "unknown"):
        for verdict in result.verdicts:
            if shown.counted(verdict) and verdict.status == status:
                yield _annotation("error", verdict)
    for verdict in result.verdicts:
        if verdict.status == "fail" and not verdict.counts:
            yield _annotation("warning", verdict)
    for warning in result.warnings:
        yield _command("warning", shown.prose(warning), title=_TITLE)


def _annotation(command: str, verdict: Verdict) -> str:
    lines = [shown.prose(verdict.message)]
    for reason in shown.reasons(verdict):
        within = shown.within(reason)
        lines.append(f"- {shown.prose(reason.title)}{f' ({within})' if within else ''}")
    at = shown.place(verdict)
    where = {"file": at.path, "line": str(at.line)} if at else {}
    return _command(command, "\n".join(lines), **where, title=shown.title(verdict))


def _command(command: str, message: str, **properties: str) -> str:
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {written}::{_data(message)}"


def _data(text: str) -> str:
    """A message, escaped as GitHub's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
