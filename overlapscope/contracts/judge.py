"""Check of recordings against a contract: a verdict on each promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import check, check_promises
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, Status, Subject
from overlapscope.contracts.compare import Promise, compare
from overlapscope.contracts.file import read
from overlapscope.contracts.model import Contract
from overlapscope.contracts.observe import observe
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.trace.model import Trace

METRIC = "contract"
"""Metric of the verdicts on promises, followed by the part: `contract-overlap`."""
_STATUS: dict[str, Status] = {"kept": "pass", "lost": "fail", "gained": "pass", "unknown": "unknown"}
GAINED = "gained"
"""Note of a verdict on a promise that is more than kept."""


def check_job(
    settings: Settings,
    traces: Callable[[], Sequence[Trace]],
    report: Callable[[], Report],
    baseline: Baseline | None = None,
) -> CheckResult:
    """Check recordings against the contract of the settings, and against budgets.

    Without budgets, forbidden rules and baseline, only the contract is judged.

    Args:
        settings: Settings of the check.
        traces: Returns the recordings; called if there is a contract.
        report: Returns their report; called unless only the contract is judged.
        baseline: Figures that relative budgets compare with.

    Returns:
        The verdicts on all promises and budgets, and the outcome.

    Raises:
        ConfigError: The contract can't be read.
        UsageError: A trace was predicted, and the settings don't allow predictions.
    """
    if settings.contract is None:
        return check(report(), settings, baseline=baseline)
    contract, recordings = read(settings.contract), traces()
    predicted = [trace.source for trace in recordings if trace.predicted_by is not None]
    if predicted and not settings.allow_predicted:
        raise UsageError(f"{predicted[0]}: is a prediction of `overlapscope whatif`; pass a recording.")
    promises = judge(contract, recordings, allow_missing=settings.allow_missing)
    if settings.budgets or settings.forbid or baseline is not None:
        return check(report(), settings, baseline=baseline, promises=promises)
    return check_promises(promises, tuple(trace.source for trace in recordings))


def judge(contract: Contract, traces: Sequence[Trace], *, allow_missing: bool = False) -> tuple[BudgetVerdict, ...]:
    """Return a verdict on each promise for each recording. `allow_missing` is whether unknown promises pass."""
    verdicts = [verdict for trace in traces for verdict in _verdicts(contract, trace, several=len(traces) > 1)]
    if allow_missing:
        verdicts = [replace(verdict, counts=verdict.status == "fail") for verdict in verdicts]
    return tuple(verdicts)


def _verdicts(contract: Contract, trace: Trace, *, several: bool) -> Iterator[BudgetVerdict]:
    seen: Counter[str] = Counter()
    for promise in compare(contract, observe(trace)):
        seen[promise.name] += 1
        number = f" #{seen[promise.name]}" if seen[promise.name] > 1 else ""
        subject = Subject(source=trace.source, rank=trace.rank) if several else Subject()
        yield _verdict(promise, f"{promise.name}{number}", subject)


def _verdict(promise: Promise, name: str, subject: Subject) -> BudgetVerdict:
    status = _STATUS[promise.result]
    return BudgetVerdict(
        budget=name,
        metric=f"{METRIC}-{promise.part}",
        subject=subject,
        status=status,
        level="error",
        value=promise.value,
        limit=promise.limit,
        unit=promise.unit,
        more_is_better=promise.at_least,
        message=promise.message,
        where=promise.line or None,
        note=GAINED if promise.result == "gained" else None,
        counts=status != "pass",
    )
