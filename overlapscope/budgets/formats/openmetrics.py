"""A check as an OpenMetrics 1.0 exposition: values, limits and states, in base units.

https://prometheus.io/docs/specs/om/open_metrics_spec/. States are gauges of 0 and 1 rather than a stateset, which what
reads the older text format, such as a Pushgateway, refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from overlapscope.budgets import words
from overlapscope.budgets.verdicts import CheckResult, Status, Unit, Verdict

Labels = dict[str, str]

_BASE: Final[dict[Unit, tuple[str, float]]] = {
    "ns": ("seconds", 1e9),
    "pct": ("ratio", 100),
    "gb_per_s": ("bytes_per_second", 1e-9),
    "findings": ("findings", 1),
    "differences": ("differences", 1),
}
"""Name of the base unit, and what to divide by."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What is exposed of a budget on one rank and device."""

    labels: Labels
    unit: Unit
    status: Status
    value: float | None
    limit: float | None


def render(result: CheckResult) -> str:
    """The check as a text exposition."""
    cases = list(_cases(result))
    lines = [
        *_family(
            "overlapscope_check_outcome",
            "What the check came to: 1 for the outcome that it has.",
            [({"outcome": outcome}, int(outcome == result.outcome)) for outcome in words.OUTCOME],
        ),
        *_family(
            "overlapscope_budget_status",
            "What a budget came to: 1 for the status that it has.",
            [(case.labels | {"status": one}, int(one == case.status)) for case in cases for one in get_args(Status)],
        ),
    ]
    for unit, (suffix, divisor) in _BASE.items():
        mine = [case for case in cases if case.unit == unit]
        values = [(case.labels, case.value / divisor) for case in mine if case.value is not None]
        lines += _family(f"overlapscope_budget_value_{suffix}", "What was measured.", values, unit=suffix)
        limits = [(case.labels, case.limit / divisor) for case in mine if case.limit is not None]
        lines += _family(f"overlapscope_budget_limit_{suffix}", "What the value must not pass.", limits, unit=suffix)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _cases(result: CheckResult) -> Iterator[_Case]:
    """Every rank by itself: of the one that decides alone, the labels would change from run to run."""
    seen: Counter[str] = Counter()
    for verdict in result.verdicts:
        for subject, part in words.cases(verdict):
            known = {
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
            labels = {key: str(value) for key, value in known.items() if value is not None}
            # No two samples may have the same labels.
            seen[repr(labels)] += 1
            if seen[repr(labels)] > 1:
                labels["number"] = str(seen[repr(labels)])
            limit = _limit(verdict, part.status, decides=subject == verdict.subject)
            yield _Case(labels, verdict.unit, part.status, part.value, limit)


def _limit(verdict: Verdict, status: Status, *, decides: bool) -> float | None:
    """None where it is not known: of a relative budget, each rank has a limit of its own.

    Nor where a value passes beyond it, as that may be chance: whoever compares the two would see a failure.
    """
    if verdict.baseline is None:
        return verdict.limit
    return verdict.limit if decides and not (status == "pass" and _beyond(verdict)) else None


def _beyond(verdict: Verdict) -> bool:
    if verdict.value is None or verdict.limit is None:
        return False
    return verdict.value < verdict.limit if verdict.more_is_better else verdict.value > verdict.limit


def _family(
    family: str, help_text: str, samples: Sequence[tuple[Labels, float]], *, unit: str | None = None
) -> Iterator[str]:
    if not samples:
        return
    yield f"# TYPE {family} gauge"
    if unit is not None:
        yield f"# UNIT {family} {unit}"
    yield f"# HELP {family} {help_text}"
    for labels, value in samples:
        yield f"{family}{_written(labels)} {value!r}"


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
