"""OpenMetrics exposition of a check: values, limits and states, in base units.

States are gauges of 0 and 1 instead of a stateset, because readers of the older text format, such as a Pushgateway,
refuse statesets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, get_args

from overlapscope.budgets import words
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, DeviceVerdict, Status, Unit

_STATUSES: Final[tuple[Status, ...]] = get_args(Status)

_BASE: Final[dict[Unit, tuple[str, float]]] = {unit: (unit, 1) for unit in get_args(Unit)} | {
    "ns": ("seconds", 1e9),
    "pct": ("ratio", 100),
    "gb_per_s": ("bytes_per_second", 1e-9),
}
"""Name of the base unit, and the divisor."""


def render(result: CheckResult) -> str:
    """Return the check as a text exposition."""
    cases = list(_cases(result))
    lines = [
        *family(
            "overlapscope_check_outcome",
            "Outcome of the check: 1 for the outcome that it has.",
            [({"outcome": outcome}, int(outcome == result.outcome)) for outcome in words.OUTCOME],
        ),
        *family(
            "overlapscope_budget_status",
            "Status of a budget: 1 for the status that it has.",
            [
                (labels | {"status": status}, int(status == part.status))
                for labels, _, part, _ in cases
                for status in _STATUSES
            ],
        ),
    ]
    for unit, (suffix, divisor) in _BASE.items():
        of_unit = [(labels, part.value, limit) for labels, verdict, part, limit in cases if verdict.unit == unit]
        values = [(labels, value / divisor) for labels, value, _ in of_unit if value is not None]
        lines += family(f"overlapscope_budget_value_{suffix}", "The measured value.", values, unit=suffix)
        limits = [(labels, limit / divisor) for labels, _, limit in of_unit if limit is not None]
        lines += family(f"overlapscope_budget_limit_{suffix}", "The limit of the value.", limits, unit=suffix)
    return text(lines)


def _cases(result: CheckResult) -> Iterator[tuple[Labels, BudgetVerdict, DeviceVerdict, float | None]]:
    """Yield the results of every rank and device with labels and limit.

    The decisive one alone would have other labels in each run.
    """
    seen: Counter[str] = Counter()
    for verdict in result.verdicts:
        for subject, part in words.cases(verdict):
            subject_labels = {
                "budget": words.name(verdict.budget),
                "metric": words.name(verdict.metric),
                "level": verdict.level,
                "trace": words.name(subject.source) if subject.source is not None else None,
                "rank": subject.rank,
                "device": subject.device,
                "scope": words.name(subject.scope),
                "step": words.name(subject.step) if subject.step is not None else None,
                "direction": subject.direction,
            }
            labels = {key: str(value) for key, value in subject_labels.items() if value is not None}
            # No two samples may have the same labels.
            seen[repr(labels)] += 1
            if seen[repr(labels)] > 1:
                labels["number"] = str(seen[repr(labels)])
            limit = _limit(verdict, part.status, decides=subject == verdict.subject)
            yield labels, verdict, part, limit


def _limit(verdict: BudgetVerdict, status: Status, *, decides: bool) -> float | None:
    """Return the limit; None if it is unknown, since a relative budget has a different limit for each rank.

    A limit is also left out if a value beyond it passes because it may be chance. Comparing the two would suggest a
    failure.
    """
    if verdict.baseline is None:
        return verdict.limit
    value, limit = verdict.value, verdict.limit
    if status == "pass" and value is not None and limit is not None:
        decides = decides and (value >= limit if verdict.more_is_better else value <= limit)
    return limit if decides else None


# -- Lines of an exposition (OpenMetrics 1.0), which Prometheus reads --------------------------------

Labels = dict[str, str]


def family(
    name: str, help_text: str, samples: Sequence[tuple[Labels, float]], *, unit: str | None = None
) -> Iterator[str]:
    """Return the lines of a gauge; none without samples. A name ends in its unit."""
    if not samples:
        return
    yield f"# TYPE {name} gauge"
    if unit is not None:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {help_text}"
    for labels, value in samples:
        yield f"{name}{_written(labels)} {value!r}"


def text(lines: Iterable[str]) -> str:
    """Return the complete exposition."""
    return "\n".join([*lines, "# EOF"]) + "\n"


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
