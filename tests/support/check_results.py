"""Results of checks, made by hand, for the tests of their formats."""

from __future__ import annotations

from typing import Any

from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, DeviceVerdict, FailureReason, Status, Subject

REASONS = (
    FailureReason(
        title="pageable-memory, 6.2 ms a step",
        detail="12 copies from pageable memory\nblock the host.",
        advice="Pin it: x.pin_memory().",
        time_ns=6_200_000,
        op="aten::copy_",
        call="cudaMemcpyAsync",
        where="train.py:42 in step",
        rule="pageable-memory",
    ),
    FailureReason(
        title="exposed copy, same-stream: 1.1 ms a step",
        detail="",
        advice="Issue copies on a stream of their own.",
        cause="same-stream",
        time_ns=1_100_000,
    ),
)


def verdict(**changes: Any) -> BudgetVerdict:
    """Return a failed verdict with these changes."""
    given: dict[str, Any] = {
        "budget": "efficiency_pct >= 80%",
        "metric": "efficiency_pct",
        "subject": Subject(source="traces/rank0.json.gz", rank=0, device=0),
        "status": "fail",
        "level": "error",
        "value": 61.25,
        "limit": 80.0,
        "unit": "pct",
        "more_is_better": True,
        "samples": 6,
        "message": "efficiency_pct is 61.2% over 6 steps, and at least 80% is asked for.",
        "reasons": REASONS,
    }
    return BudgetVerdict(**given | changes)


def part(rank: int, status: Status, value: float | None, source: str | None = None) -> DeviceVerdict:
    """Return the result of a rank."""
    return DeviceVerdict(
        source=source or f"rank{rank}.json.gz", rank=rank, device=0, status=status, value=value, samples=6
    )


def passed(**changes: Any) -> BudgetVerdict:
    """Return a budget that is met."""
    given: dict[str, Any] = {
        "budget": "step_time <= 12 ms",
        "metric": "step_time",
        "status": "pass",
        "value": 10_512_345.0,
        "limit": 12_000_000.0,
        "unit": "ns",
        "more_is_better": False,
        "message": "step_time is 10.5 ms over 6 steps, and at most 12 ms is allowed.",
        "reasons": (),
    }
    return verdict(**given | changes)


def forbidden(**changes: Any) -> BudgetVerdict:
    """Return a forbidden rule that was found."""
    given: dict[str, Any] = {
        "budget": "forbid pageable-memory",
        "metric": "pageable-memory",
        "value": 2.0,
        "limit": 0.0,
        "unit": "findings",
        "more_is_better": False,
        "message": "pageable-memory was found 2 times, and it is forbidden.",
    }
    return verdict(**given | changes)


def unknown(**changes: Any) -> BudgetVerdict:
    """Return a budget that could not be judged."""
    given: dict[str, Any] = {
        "budget": "copy_bandwidth >= 40 GB/s",
        "metric": "copy_bandwidth",
        "subject": Subject(source="traces/rank1.json.gz", rank=1, device=1, scope="window", direction="h2d"),
        "status": "unknown",
        "value": None,
        "limit": 40.0,
        "unit": "gb_per_s",
        "samples": 0,
        "message": "copy_bandwidth is unknown: no copies.",
        "reasons": (),
    }
    return verdict(**given | changes)


def result(*verdicts: BudgetVerdict, warnings: tuple[str, ...] = (), **changes: Any) -> CheckResult:
    """Return the result of a check with these verdicts."""
    counted = [verdict.status for verdict in verdicts if verdict.counts]
    outcome = "fail" if "fail" in counted else "inconclusive" if "unknown" in counted else "pass"
    summary = {
        "fail": f"{counted.count('fail')} of {len(verdicts)} budgets failed.",
        "inconclusive": "Some budgets could not be judged.",
        "pass": f"All {len(verdicts)} budgets are met.",
    }[outcome]
    given = {"outcome": outcome, "summary": summary, "verdicts": verdicts, "warnings": warnings}
    return CheckResult(**given | changes)


def every_kind() -> CheckResult:
    """One verdict of every status, counted and not."""
    return result(
        verdict(),
        forbidden(),
        unknown(),
        verdict(level="warn", counts=False, budget="idle_pct <= 10%", metric="idle_pct", more_is_better=False),
        unknown(counts=False, budget="exposed_comm_time <= 1 ms", metric="exposed_comm_time", unit="ns", limit=1e6),
        passed(status="skipped", value=None, message="Not judged: the baseline was made on another GPU."),
        verdict(status="accepted", budget="hidden_copy_pct >= 90%", exception="Accepted until 2027-01-31: known."),
        passed(),
        passed(subject=Subject(source="traces/rank1.json.gz", rank=1, device=1)),
        warnings=("The baseline was made on NVIDIA A100, this trace on NVIDIA H200.",),
    )
