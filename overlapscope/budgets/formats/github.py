"""GitHub workflow commands for a check, which become annotations.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.budgets import words
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult

MOST = 10
"""Maximum number of annotations that GitHub shows for a step."""
_TITLE = "overlapscope check"


def render(result: CheckResult) -> str:
    """Return the ten worst verdicts as annotations, and a notice with the summary."""
    annotations = list(_annotations(result))
    more = len(annotations) - MOST
    rest = f" {more:,} more {'is' if more == 1 else 'are'} in the step's summary." if more > 0 else ""
    lines = [*annotations[:MOST], _command("notice", f"{words.prose(result.summary)}{rest}", title=_TITLE)]
    return "\n".join(lines) + "\n"


def _annotations(result: CheckResult) -> Iterator[str]:
    """Yield failures, verdicts that are unknown, failures that don't count, and warnings, in this order."""
    if words.unexplained(result):
        yield _command("error", words.prose(result.summary), title=_TITLE)
    for status in ("fail", "unknown"):
        for verdict in result.verdicts:
            if words.counted(verdict) and verdict.status == status:
                yield _annotation("error", verdict)
    for verdict in result.verdicts:
        if verdict.status == "fail" and not verdict.counts:
            yield _annotation("warning", verdict)
    for warning in result.warnings:
        yield _command("warning", words.prose(warning), title=_TITLE)


def _annotation(command: str, verdict: BudgetVerdict) -> str:
    lines = [words.prose(verdict.message)]
    for reason in verdict.reasons[: words.REASONS]:
        within = words.within(reason)
        lines.append(f"- {words.prose(reason.title)}{f' ({within})' if within else ''}")
    at = words.place(verdict)
    where = {"file": at[0], "line": str(at[1])} if at else {}
    return _command(command, "\n".join(lines), **where, title=words.title(verdict))


def _command(command: str, message: str, **properties: str) -> str:
    escaped = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    written = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{command} {written}::{_data(message)}"


def _data(text: str) -> str:
    """Escape a message as GitHub's toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
