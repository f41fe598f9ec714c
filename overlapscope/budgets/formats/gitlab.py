"""GitLab Code Quality report of a check, with an entry for each verdict that did not pass.

https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from overlapscope.base.saved import encode
from overlapscope.budgets import words
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult

_WHOLE = "overlapscope.toml"
"""File of entries that belong to no other file."""


def render(result: CheckResult) -> str:
    """Return the check as a JSON document."""
    seen: Counter[str] = Counter()
    issues = [_issue(verdict, seen) for verdict in result.verdicts if verdict.status != "pass"]
    if words.unexplained(result):
        issues.insert(0, _entry("outcome", words.prose(result.summary), "major", _digest("outcome"), _WHOLE, 1))
    return encode(issues).decode()


def _issue(verdict: BudgetVerdict, seen: Counter[str]) -> dict[str, Any]:
    source = verdict.subject.source
    path = words.in_project(source) if source is not None else None
    at, line = words.place(verdict) or (path or _WHOLE, 1)
    message = f"{words.title(verdict)}: {words.prose(verdict.message)}"
    parts = [message, *(words.prose(reason.title) for reason in verdict.reasons[: words.REASONS])]
    identity = _identity(verdict, path)
    seen[identity] += 1
    return _entry(
        verdict.metric,
        " · ".join(parts),
        "major" if words.counted(verdict) else "minor" if verdict.status == "fail" else "info",
        _digest(f"{identity}\0{seen[identity]}"),
        at,
        line,
    )


def _entry(check: str, description: str, severity: str, fingerprint: str, path: str, line: int) -> dict[str, Any]:
    return {
        "description": description,
        "check_name": f"overlapscope/{words.name(check)}",
        "fingerprint": fingerprint,
        "severity": severity,
        "location": {"path": path, "lines": {"begin": line}},
    }


def _identity(verdict: BudgetVerdict, path: str | None) -> str:
    """Return a key that stays the same between runs: without values, lines and the path of the checkout."""
    subject = verdict.subject
    source = path or subject.source
    return repr((verdict.budget, source, subject.rank, subject.device, subject.scope, subject.direction))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
