"""Check of recordings against a contract: a verdict on each promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import TraceResult
from overlapscope.base.words import clean, listed, plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import check, obstacle_verdict
from overlapscope.budgets.config import rule_named
from overlapscope.budgets.judge import verdict
from overlapscope.budgets.places import JudgedPlace
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, FailureReason, Status, Subject
from overlapscope.compare import doubts
from overlapscope.compare.doubts import (
    Obstacle,
    absence_notes,
    absent_devices,
    absent_ranks,
    incomplete,
    program_of,
    refuse_predicted,
)
from overlapscope.contracts.compare import ADVICE, SMALL_BYTES, Promise, compare
from overlapscope.contracts.model import Contract, ContractProgram, read
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.trace.model import Trace

METRIC = "contract"
"""Metric of the verdicts on promises, followed by the part: `contract-overlap`."""
_STATUS: dict[str, Status] = {"kept": "pass", "lost": "fail", "gained": "pass", "unknown": "unknown"}
GAINED = "gained"
"""Note of a verdict on a promise that is more than kept."""
_WHAT: Final = "the contract"
_NONE_LEFT: Final = (
    "The contract may be of another program: none of its copies, collectives or ops is left. If they "
    "were removed on purpose, write the contract again."
)
_WITHOUT_OPS: Final = (
    "The recording has no CPU ops, by which the contract tells places apart and counts kernels. Record them, too "
    "(`ProfilerActivity.CPU`)."
)
_MAX_NAMED_PROMISES: Final = 3
_MAX_NAME_LENGTH: Final = 60


def check_job(
    settings: Settings,
    traces: Callable[[], Sequence[Trace]],
    report: Callable[[], Report],
    baseline: Baseline | None = None,
) -> CheckResult:
    """Check recordings against the contract of the settings, and against budgets.

    A contract adds to the default rules, except to those that it replaces by name. `traces` returns the recordings, and
    is called if there is a contract.

    Returns:
        The verdicts on all promises and budgets, and the outcome.

    Raises:
        ConfigError: The contract can't be read.
        UsageError: A trace was predicted.
    """
    if settings.contract is None:
        return check(report(), settings, baseline=baseline)
    contract, recordings, job = read(settings.contract), traces(), report()
    refuse_predicted(job)
    replaced = tuple(
        name if name == "verdict" else rule_named(name, f"{settings.contract}: replaces") for name in contract.replaces
    )
    promises, verdicts = _judged(contract, recordings, job, settings)
    settings, promised = replace(settings, replaced=replaced), _promised(promises)
    result = check(job, settings, baseline=baseline, promises=verdicts, promised=promised)
    not_judged = f"The contract replaces default rules, which aren't judged: {listed(replaced)}." if replaced else ""
    return replace(result, warnings=(*result.warnings, *filter(None, (contract.not_promised, not_judged))))


def promise(trace: Trace) -> Contract:
    """Return the contract that a recording keeps.

    Raises:
        UsageError: The recording lacks something, or was predicted.
    """
    result = analyze_trace(trace).result
    if result.predicted_by is not None:
        raise UsageError(f"{trace.source}: is a prediction of `overlapscope whatif`; pass a recording.")
    for obstacle in incomplete(result):
        raise UsageError(f"{obstacle.sentence} It can't serve as a contract; record it again.")
    from overlapscope.contracts.observe import observe

    program = ContractProgram(
        **asdict(program_of([result])),
        recorder=trace.recorder,
        ranks=trace.world_size or 1,
        devices=len(result.devices),
    )
    return replace(observe(trace), program=program)


def _judged(
    contract: Contract, recordings: Sequence[Trace], job: Report, settings: Settings
) -> tuple[list[Promise], list[BudgetVerdict]]:
    """Return the promises that could be judged, and the verdicts on them and on what couldn't be."""
    results = {result.source: result for result in job.traces}
    # A contract may state any number of ranks, and a few absent ones are enough.
    absent = absent_ranks(job, range(min(contract.program.ranks, 2 * len(recordings) + 1)), _WHAT)
    obstacles = [Obstacle("all ranks", "ranks", " ".join(absence_notes(absent)))] if absent else []
    promises: list[Promise] = []
    verdicts: list[BudgetVerdict] = []
    for trace in recordings:
        in_the_way, kept = judge(contract, trace, results[trace.source], other_program=settings.other_program)
        obstacles += in_the_way
        promises += kept
        verdicts += _verdicts(kept, Subject(source=trace.source, rank=trace.rank) if recordings[1:] else Subject())
    if settings.allow_missing:
        verdicts = [replace(verdict, counts=verdict.status == "fail") for verdict in verdicts]
    return promises, [*(obstacle_verdict(each, allowed=settings.allow_missing) for each in obstacles), *verdicts]


def judge(
    contract: Contract,
    trace: Trace,
    result: TraceResult,
    *,
    other_program: bool = False,
) -> tuple[list[Obstacle], tuple[Promise, ...]]:
    """Return the reasons why a recording can't be judged by a contract, or without any the result of each promise.

    `other_program`: whether it may be of another program.
    """
    from overlapscope.contracts.observe import observe

    same = () if other_program else doubts.other_program(contract.program, program_of([result]), _WHAT)
    obstacles = [*same, *incomplete(result), *absent_devices(result, contract.program.devices, _WHAT)]
    if not len(trace.cpu_ops) and any(place.op for place in (*contract.transfers, *contract.syncs)):
        obstacles.append(Obstacle("complete recording", "complete", _WITHOUT_OPS))
    promises = () if obstacles else compare(contract, observe(trace))
    if not obstacles and not other_program and _none_left(contract, promises):
        obstacles.append(Obstacle("same program", "program", _NONE_LEFT))
    return obstacles, () if obstacles else promises


def _none_left(contract: Contract, promises: Sequence[Promise]) -> bool:
    """Return whether a recording has none of the transfers whose overlap is promised, or none of those with data.

    Without a GPU, return whether the thread of the steps has no op.
    """
    promised = any(transfer.promised for transfer in contract.transfers)
    gone = sum(promise.part == "amount" and promise.value == 0 for promise in promises)
    with_data = any(transfer.bytes > SMALL_BYTES for transfer in contract.transfers)
    no_ops = contract.host_ops is not None and any(promise.name == "ops" and not promise.value for promise in promises)
    return (
        (promised and not any(promise.of_transfer for promise in promises))
        or (with_data and gone == len(contract.transfers))
        or no_ops
    )


def _promised(promises: Sequence[Promise]) -> str:
    """Return promises in a few words: `3 transfers beside at least 14 kernels, no host sync`."""
    overlaps = [promise.value or 0 for promise in promises if promise.of_transfer]
    fewest = min(overlaps, default=0)
    least = f" beside at least {plural(fewest, 'kernel')}" if fewest else ""
    beside = f"{plural(len(overlaps), 'transfer')}{least}" if overlaps else ""
    kept = [promise for promise in promises if promise.result == "kept" and promise.part != "overlap"]
    named = listed(dict.fromkeys(clean(promise.name, _MAX_NAME_LENGTH) for promise in kept), _MAX_NAMED_PROMISES)
    gains = sum(promise.result == "gained" for promise in promises)
    accepts = f"{plural(gains, 'gain')}, which `overlapscope contract update` accepts" if gains else ""
    return ", ".join(filter(None, (beside, named, accepts)))


def _verdicts(promises: Sequence[Promise], subject: Subject) -> Iterator[BudgetVerdict]:
    seen: Counter[str] = Counter()
    for promise in promises:
        seen[promise.name] += 1
        name = f"{promise.name} #{seen[promise.name]}" if seen[promise.name] > 1 else promise.name
        lost, gained = promise.result == "lost", promise.result == "gained"
        no_line = "" if promise.line else " Record with `overlapscope run --stacks` to see its line."
        advice = f"{ADVICE[promise.part]}{no_line}"
        where, status = promise.line or None, _STATUS[promise.result]
        judged = JudgedPlace(subject=subject, status=status, value=promise.value, limit=promise.limit)
        yield verdict(
            replace(judged, note=GAINED if gained else ""),
            budget=name,
            metric=f"{METRIC}-{promise.part}",
            message=promise.message,
            unit=promise.unit,
            more_is_better=promise.at_least,
            where=where,
            reasons=(FailureReason(title=name, detail="", advice=advice, time_ns=0, where=where),) if lost else (),
            counts=status != "pass",
        )
