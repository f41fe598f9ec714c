"""Words, figures and places of a check, shared by its output formats.

Functions return text that `clean` made harmless, of limited length. Each format still escapes its own syntax.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import clean
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, FailureReason, Subject
from overlapscope.trace.host import file_and_line

NAME_LIMIT: Final = 200
PROSE_LIMIT: Final = 2000
MAX_SHOWN_REASONS: Final = 5
"""Maximum number of reasons to show for a verdict."""

OUTCOME: Final = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}


def name(text: str) -> str:
    """Return a name from a trace or a file, cleaned."""
    # Cleaning megabytes would be slow, and only the ends can be shown.
    ends = text if len(text) <= 2 * PROSE_LIMIT else text[:PROSE_LIMIT] + text[-PROSE_LIMIT:]
    return clean(ends, NAME_LIMIT)


def prose(text: str) -> str:
    """Return sentences from a trace or a file as one line, cleaned."""
    return clean(" ".join(text[: 2 * PROSE_LIMIT].split("\n")), PROSE_LIMIT)


def about(subject: Subject) -> str:
    """Return `rank0.json.gz, rank 0, device 0, window, h2d`; empty if the subject is all of them together."""
    parts = [
        name(subject.source) if subject.source is not None else None,
        f"rank {subject.rank}" if subject.rank is not None else None,
        f"device {subject.device}" if subject.device is not None else None,
        name(subject.scope) if subject.scope != "steps" else None,
        f"step {name(subject.step)}" if subject.step is not None else None,
        f"phase {subject.phase}" if subject.phase is not None else None,
        subject.direction,
    ]
    return ", ".join(part for part in parts if part is not None)


def title(verdict: BudgetVerdict) -> str:
    """Return the budget's name and its subject."""
    on = about(verdict.subject)
    return f"{name(verdict.budget)} ({on})" if on else name(verdict.budget)


def cases(result: CheckResult) -> Iterator[BudgetVerdict]:
    """Yield each verdict, and one for each other rank and device that it combines."""
    for verdict in result.verdicts:
        yield verdict
        for part in verdict.parts:
            subject = replace(verdict.subject, source=part.source, rank=part.rank, device=part.device)
            if subject != verdict.subject:
                yield replace(
                    verdict,
                    subject=subject,
                    status=part.status,
                    value=part.value,
                    samples=part.samples,
                    # A relative budget has a different limit for each rank.
                    limit=verdict.limit if verdict.baseline is None else None,
                    baseline=None,
                    message=f"{show(part.value, verdict.unit)}; over all ranks and devices: {verdict.message}",
                    reasons=(),
                    exception=None,
                    counts=counted(verdict),
                )


def figures(verdict: BudgetVerdict) -> tuple[str, str]:
    """Return the value and the limit, with enough digits to set them apart; the limit may be empty.

    If the value passes for a special reason, the reason follows it: `6.2 us (18% more, within noise)`.
    """
    if verdict.limit is None:
        return show(verdict.value, verdict.unit), ""
    sign = "≥" if verdict.more_is_better else "≤"
    if verdict.value is None:
        return show(None, verdict.unit), f"{sign} {show(verdict.limit, verdict.unit)}"
    value, limit = distinct([verdict.value, verdict.limit], verdict.unit)
    return f"{value} ({name(verdict.note)})" if verdict.note else value, f"{sign} {limit}"


def within(reason: FailureReason) -> str:
    """Return the Python line, op and call of a reason; empty if unknown."""
    return ", ".join(name(part) for part in (reason.where, reason.op, reason.call) if part)


def place(verdict: BudgetVerdict) -> tuple[str, int] | None:
    """Return the path and line of the verdict, or of its first reason with a line in the project; None if unknown."""
    for where in (verdict.where, *(reason.where for reason in verdict.reasons)):
        file, line = file_and_line(where) if where else ("", 1)
        path = in_project(file)
        if path is not None:
            return path, line
    return None


_CHECKOUTS: Final = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables in which GitHub and GitLab name the root of the checkout, to which their paths are relative."""


def in_project(path: str) -> str | None:
    """Return a path relative to the checkout, or to the current directory; None if it is outside.

    The path has forward slashes.
    """
    if not path or not path.isprintable():
        return None
    here = Path.cwd()
    roots = (root for root in map(os.environ.get, _CHECKOUTS) if root and here.is_relative_to(root))
    # Without resolving links, since a path from a trace must not cause access to files of this machine.
    relative = os.path.relpath(here / path, next(roots, here))
    posix = PurePosixPath(*Path(relative).parts)
    return None if ".." in posix.parts or not posix.parts else str(posix)


def unexplained(result: CheckResult) -> bool:
    """Return whether no verdict explains why the check did not pass, for example because nothing was judged."""
    return result.outcome != "pass" and not any(counted(verdict) for verdict in result.verdicts)


def counted(verdict: BudgetVerdict) -> bool:
    """Return whether this verdict keeps the check from passing."""
    return verdict.counts and verdict.status in ("fail", "unknown")
