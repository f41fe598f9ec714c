"""The small Python API, which is also what the command line uses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.errors import UsageError
from overlapscope.inputs import TOLD_OF_A_REPORT, Source, each, read_report, read_trace, read_traces
from overlapscope.reading import load, look
from overlapscope.report.model import Report, build
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd

    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.compare.difference import Diff
    from overlapscope.prediction.calibration import Calibration
    from overlapscope.prediction.result import WhatIf

__all__ = ["analyze", "check", "diff", "load", "sql", "whatif"]

Job = Report | Source | Iterable[Source]
"""A report; or the traces of one job, or the files, directories or patterns that hold them, to make one of."""


def analyze(
    traces: Source | Iterable[Source],
    *,
    device: int | None = None,
    step: str | None = None,
    range: str | None = None,
    plain_step_ns: int | None = None,
) -> Report:
    """Analyse a trace, or the traces of one job, into a report; where files hold them, these are read.

    `device`, `step` and `range` narrow every figure to one device, step or range; causes are found on the
    whole recording all the same. `plain_step_ns` tells what a step takes while nothing is recorded, for a trace whose
    recorder did not time that (`docs/how-it-works/numbers.md`).

    Raises UnreadableTrace where a file cannot be read, NotInTrace where no device has what was asked for, UsageError
    where the plain step cannot be, or is told of a step or range.
    """
    analyses = [analyze_trace(trace, device=device, step=step, range=range) for trace in read_traces(traces)]
    return build(analyses, scope=step or range or "window", plain_step_ns=plain_step_ns)


def diff(before: Job, after: Job, *, plain_step_ns: tuple[int, int] | None = None) -> Diff:
    """What changed from one recording of a program to another, by how much, and why (`docs/guides/diff.md`).

    `plain_step_ns` tells what a step takes while nothing is recorded, before and after.

    Raises UnreadableTrace where a file cannot be read.
    """
    from overlapscope.compare import diff as comparing

    told = plain_step_ns or (None, None)
    return comparing.diff(_report(before, told[0]), _report(after, told[1]))


def check(
    job: Job,
    settings: Mapping[str, Any] | None = None,
    *,
    baseline: Job | None = None,
    plain_step_ns: int | None = None,
    allow_predicted: bool = False,
    other_program: bool = False,
) -> CheckResult:
    """Hold a recording to budgets (`docs/guides/check.md`).

    `settings` has the keys of a configuration file: `{"budgets": {"efficiency_pct": {"min": "80%"}}}`. Without it,
    what `overlapscope check` does by default: the rules on data that does not move while the GPU computes, or, with a
    `baseline`, nothing may have become longer. A baseline is a file of `overlapscope baseline write`, or a recording.
    `plain_step_ns` tells what a step of the job takes while nothing is recorded. Timelines that `whatif` predicted are
    refused unless `allow_predicted` says otherwise. `other_program` compares with a baseline of another program, too.

    Raises ConfigError for settings that make no sense, UsageError where a budget needs a baseline and none is given or
    a recording cannot serve as one, and for a prediction, UnreadableTrace where the baseline's file cannot be read.
    """
    from overlapscope.budgets import baseline as baselines
    from overlapscope.budgets import check as checking
    from overlapscope.budgets.config import from_mapping
    from overlapscope.budgets.settings import Settings
    from overlapscope.inputs import read_baseline

    told = Settings() if settings is None else from_mapping(settings, "settings")
    told = replace(told, allow_predicted=allow_predicted, other_program=other_program)
    past = None
    if isinstance(baseline, str | os.PathLike):
        past = read_baseline(os.fspath(baseline), ranges=told.compared_ranges, allow_predicted=allow_predicted)
    elif baseline is not None:
        past = baselines.of(_report(baseline), ranges=told.compared_ranges, allow_predicted=allow_predicted)
    return checking.check(_report(job, plain_step_ns), told, baseline=past)


def whatif(
    trace: Source,
    interventions: Sequence[str] = (),
    *,
    device: int | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    plain_step_ns: int | None = None,
) -> WhatIf:
    """What a step of a recording would take, in nanoseconds, had the program been changed (`docs/guides/whatif.md`).

    `trace` may be the file that holds it. `interventions` are written as on the command line: `["pin", "side-stream",
    "no-sync cudaStreamSynchronize"]`.
    `calibration` is what `overlapscope scenarios calibrate` measured on the GPU, or the file that holds it; without it
    the constants come from the trace and the shipped table. `plain_step_ns` tells what a step takes while nothing is
    recorded, where the recorder did not time it. Where the replay does not explain the recording,
    `replay.valid` is False and `predicted_step_ns` None.

    Raises UnreadableTrace where the trace cannot be read, UsageError for an intervention that does not exist or lacks
    its argument, a trace without GPU activity and a file that holds no calibration, NotInTrace where an intervention
    names what the trace does not have, or there is no such device.
    """
    from overlapscope.prediction import predict
    from overlapscope.prediction.calibration import read
    from overlapscope.prediction.interventions import check_names

    if isinstance(interventions, str):
        raise UsageError(f"interventions are a list, even of one: [{interventions!r}].")
    trace = read_trace(trace)
    check_names(trace, interventions)
    if isinstance(calibration, str | os.PathLike):
        calibration = read(calibration)
    return predict(trace, interventions, device=device, calibration=calibration, plain_step_ns=plain_step_ns).result


def sql(traces: Source | Iterable[Source], statement: str, *, timeout_s: float | None = None) -> pd.DataFrame:
    """What a SELECT statement finds in traces and in their results, as a data frame (`docs/guides/query.md`).

    Its `attrs["notes"]` say which program the figures are of, and which traces are in doubt. NULL becomes `pd.NA` in
    columns of whole numbers.

    Raises UnreadableTrace where a file cannot be read, UsageError where the statement is refused, fails or takes longer
    than `timeout_s`, MissingPackage without DuckDB.
    """
    from overlapscope.query import engine
    from overlapscope.query.rows import QueriedTraces
    from overlapscope.query.written import to_frame

    job = QueriedTraces(tuple(read_traces(traces)))
    return to_frame(engine.ask(job, statement, timeout_s=timeout_s or engine.TIMEOUT_S))


def files_of(job: Job) -> list[str]:
    """The traces' files; those of a report are the ones that it is of."""
    if isinstance(job, Report):
        return [trace.source for trace in job.traces]
    files: list[str] = []
    for source in each(job):
        files += [source.source] if isinstance(source, Trace) else map(str, look(os.fspath(source)).files)
    return files


def _report(job: Job, plain_step_ns: int | None = None) -> Report:
    if isinstance(job, Report):
        if plain_step_ns is not None:
            raise UsageError(TOLD_OF_A_REPORT)
        return job
    sources = each(job)
    files = [os.fspath(source) for source in sources if not isinstance(source, Trace)]
    if len(files) == len(sources):
        return read_report(files, plain_step_ns=plain_step_ns)
    # To be compared or judged, which rests on what was measured.
    analyses = [analyze_trace(trace) for trace in read_traces(sources)]
    return build(analyses, replayed=False, plain_step_ns=plain_step_ns)
