"""A check as an OpenMetrics 1.0 exposition: values, limits and states, in base units.

https://prometheus.io/docs/specs/om/open_metrics_spec/. States are gauges of 0 and 1 rather than a stateset, which what
reads the older text format, such as a Pushgateway, refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from overlapscope.budgets.verdicts import CheckResult, Unit, Verdict
from overlapscope.views.check import shown

Labels = dict[str, str]

_BASE: Final[dict[Unit, tuple[str, float]]] = {
    "ns": ("seconds", 1e9),
    "pct": ("ratio", 100),
    "gb_per_s": ("bytes_per_second", 1e-9),
    "findings": ("findings", 1),
    "differences": ("differences", 1),
}
"""Name of the base unit, and what to divide by."""


def render(result: CheckResult) -> str:
    """The check as a text exposition."""
    labelled = list(_labelled(result))
    lines = [
        *_family(
            "overlapscope_check_outcome",
            "What the check came to: 1 for the outcome that it has.",
            [({"outcome": outcome}, int(outcome == result.outcome)) for outcome in shown.OUTCOME],
        ),
        *_family(
            "overlapscope_budget_status",
            "What a budget came to: 1 for the status that it has.",
            [
                (labels | {"status": status}, int(status == case.status))
                for labels, _, case in labelled
                for status in shown.STATUS
            ],
        ),
    ]
    for unit, (suffix, divisor) in _BASE.items():
        for part, help_text in (("value", "What was measured."), ("limit", "What the value must not pass.")):
            samples = [
                (labels, figure / divisor)
                for labels, verdict, case in labelled
                if verdict.unit == unit
                and (figure := case.value if part == "value" else _limit(verdict, case)) is not None
            ]
            lines += _family(f"overlapscope_budget_{part}_{suffix}", help_text, samples, unit=suffix)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labelled(result: CheckResult) -> Iterator[tuple[Labels, Verdict, shown.Case]]:
    """Every rank by itself: of the one that decides alone, the labels would change from run to run."""
    seen: Counter[str] = Counter()
    for verdict in result.verdicts:
        for case in shown.cases(verdict):
            subject = case.subject
            known = {
                "budget": shown.name(verdict.budget),
                "metric": shown.name(verdict.metric),
                "level": verdict.level,
                "trace": shown.name(subject.source) if subject.source is not None else None,
                "rank": subject.rank,
                "device": subject.device,
                "scope": shown.name(subject.scope),
                "step": shown.name(subject.step) if subject.step is not None else None,
                "direction": subject.direction,
            }
            labels = {key: str(value) for key, value in known.items() if value is not None}
            # No two samples may have the same labels.
            seen[repr(labels)] += 1
            if seen[repr(labels)] > 1:
                labels["number"] = str(seen[repr(labels)])
            yield labels, verdict, case


def _limit(verdict: Verdict, case: shown.Case) -> float | None:
    """None where it is not known: of a relative budget, each rank has a limit of its own.

    Nor where a value passes beyond it, as that may be chance: whoever compares the two would see a failure.
    """
    if verdict.baseline is None:
        return verdict.limit
    if not case.decides or (case.status == "pass" and _beyond(verdict)):
        return None
    return verdict.limit


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
