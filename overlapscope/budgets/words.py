"""What all that shows a check shares: words, figures and places.

Every text that is returned has been made harmless by `clean` and is bounded in length; a format still escapes what its
own syntax gives a meaning to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import clean, listed, plural
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, DeviceVerdict, FailureReason, Subject

NAME_LIMIT: Final = 200
PROSE_LIMIT: Final = 2000
MOST_SOURCES: Final = 8
"""How many traces are named that were judged."""
REASONS: Final = 5
"""How many reasons of one verdict a format shows."""

OUTCOME: Final = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}

_LINE = (
    re.compile(r"(?P<path>.+?):(?P<line>[0-9]{1,7}) in .*"),
    re.compile(r"(?P<path>.+?)\((?P<line>[0-9]{1,7})\): .*"),
)


def name(text: str) -> str:
    """Foreign text where a name stands."""
    # Of a name of megabytes, only what can be shown is looked at.
    ends = text if len(text) <= 2 * PROSE_LIMIT else text[:PROSE_LIMIT] + text[-PROSE_LIMIT:]
    return clean(ends, NAME_LIMIT)


def prose(text: str) -> str:
    """Foreign text where sentences stand, as one line."""
    return clean(" ".join(text[: 2 * PROSE_LIMIT].split("\n")), PROSE_LIMIT)


def about(subject: Subject) -> str:
    """`rank0.json.gz, rank 0, device 0, window, h2d`; empty where it is about all of them together."""
    parts = [
        name(subject.source) if subject.source is not None else None,
        f"rank {subject.rank}" if subject.rank is not None else None,
        f"device {subject.device}" if subject.device is not None else None,
        name(subject.scope) if subject.scope != "steps" else None,
        f"step {name(subject.step)}" if subject.step is not None else None,
        subject.direction,
    ]
    return ", ".join(part for part in parts if part is not None)


def title(verdict: BudgetVerdict, subject: Subject | None = None) -> str:
    """The budget and what it was judged on, or one of the subjects that it was judged on."""
    on = about(subject or verdict.subject)
    return f"{name(verdict.budget)} ({on})" if on else name(verdict.budget)


def cases(verdict: BudgetVerdict) -> tuple[tuple[Subject, DeviceVerdict], ...]:
    """The verdict by rank and device: what it speaks of, which decides, then the others. Where no single one of them
    decides, the first is all of them together."""
    subject = verdict.subject
    decisive = DeviceVerdict(
        source=subject.source,
        rank=subject.rank,
        device=subject.device,
        status=verdict.status,
        value=verdict.value,
        samples=verdict.samples,
    )
    subjects = [replace(subject, source=part.source, rank=part.rank, device=part.device) for part in verdict.parts]
    others = zip(subjects, verdict.parts, strict=True)
    return (subject, decisive), *((whose, part) for whose, part in others if whose != subject)


def figures(verdict: BudgetVerdict) -> tuple[str, str]:
    """Value and limit, with enough digits to see them differ; the limit is empty where there is none.

    Beside the value stands why it passes where it does not speak for itself: `6.2 us (18% more, within noise)`.
    """
    if verdict.limit is None:
        return show(verdict.value, verdict.unit), ""
    sign = "≥" if verdict.more_is_better else "≤"
    if verdict.value is None:
        return show(None, verdict.unit), f"{sign} {show(verdict.limit, verdict.unit)}"
    value, limit = distinct([verdict.value, verdict.limit], verdict.unit)
    return f"{value} ({name(verdict.note)})" if verdict.note else value, f"{sign} {limit}"


def within(reason: FailureReason) -> str:
    """Where a reason lies, from the program inwards; empty where the trace does not tell."""
    return ", ".join(name(part) for part in (reason.where, reason.op, reason.call) if part)


def place(verdict: BudgetVerdict) -> tuple[str, int] | None:
    """The path, as `in_project` gives it, and the line of the first reason that has one in the project; None where
    there is none."""
    for reason in verdict.reasons:
        for pattern in _LINE:
            match = pattern.fullmatch(reason.where[:PROSE_LIMIT]) if reason.where else None
            path = in_project(match["path"]) if match else None
            if match and path is not None:
                return path, max(1, int(match["line"]))
    return None


def in_project(path: str) -> str | None:
    """A path relative to the current directory, with forward slashes; None where it is not below it."""
    if not path or not path.isprintable():
        return None
    # Not resolved: nothing named in a trace is looked up on this machine.
    relative = os.path.relpath(path, Path.cwd()) if os.path.isabs(path) else os.path.normpath(path)
    posix = PurePosixPath(*Path(relative).parts)
    return None if posix.is_absolute() or ".." in posix.parts or not posix.parts else str(posix)


def unexplained(result: CheckResult) -> bool:
    """Whether the check did not pass though no single verdict says so, as where nothing at all was judged."""
    return result.outcome != "pass" and not any(counted(verdict) for verdict in result.verdicts)


def counted(verdict: BudgetVerdict) -> bool:
    """Whether this verdict keeps the check from passing."""
    return verdict.counts and verdict.status in ("fail", "unknown")


def left_out(count: int) -> str:
    """A sentence about what did not fit."""
    return f"{count:,} more {'is' if count == 1 else 'are'} left out here; --format json has all."


def judged(result: CheckResult) -> str:
    """Which traces were judged, in a sentence: the first few by name."""
    names = [clean(PurePath(source).name, NAME_LIMIT) for source in result.sources]
    return f"{plural(len(names), 'trace')} were judged: {listed(names, MOST_SOURCES)}."
