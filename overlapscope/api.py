"""Functions of the Python API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.errors import UsageError
from overlapscope.inputs import TOLD_OF_A_REPORT, Source, as_list, read_report, read_trace, read_traces
from overlapscope.reading import find_traces, load
from overlapscope.reading.patterns import using
from overlapscope.report.model import Report, build
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.compare.difference import Diff
    from overlapscope.prediction.calibration import Calibration
    from overlapscope.prediction.result import WhatIf

__all__ = ["analyze", "check", "diff", "load", "whatif"]

Job = Report | Source | Iterable[Source]
"""A report; or the traces of a job, or files, directories or patterns with them, to make a report from."""


def analyze(
    traces: Source | Iterable[Source],
    *,
    device: int | None = None,
    step: str | None = None,
    range: str | None = None,
    plain_step_ns: int | None = None,
) -> Report:
    """Analyze a trace, or the traces of a job.

    Args:
        traces: Traces or their files.
        device: Ordinal of a GPU to narrow all figures to. Causes are found in the whole recording in any case.
        step: Name of a step to narrow all figures to.
        range: Name of a range to narrow all figures to.
        plain_step_ns: Step time without the profiler in nanoseconds, for a trace whose recorder did not measure it
            (`docs/how-it-works/numbers.md`).

    Returns:
        The report, which covers all given traces.

    Raises:
        UnreadableTrace: A file can't be read.
        NotInTrace: No device has this step or range, or the device doesn't exist.
        UsageError: The plain step is impossible, or was given together with a step or range.
    """
    analyses = [analyze_trace(trace, device=device, step=step, range=range) for trace in read_traces(traces)]
    return build(analyses, scope=step or range or "window", plain_step_ns=plain_step_ns)


def diff(before: Job, after: Job, *, plain_step_ns: tuple[int, int] | None = None) -> Diff:
    """Compare two recordings of a program: what changed, by how much, and why (`docs/guides/diff.md`).

    Args:
        before: Report or traces before the change.
        after: Report or traces after the change.
        plain_step_ns: Step times without the profiler in nanoseconds, before and after.

    Returns:
        The difference of each figure on each device, and whether it exceeds the noise.

    Raises:
        UnreadableTrace: A file can't be read.
    """
    from overlapscope.compare import diff as comparing

    step_before_ns, step_after_ns = plain_step_ns or (None, None)
    return comparing.diff(report_of(before, step_before_ns), report_of(after, step_after_ns))


def check(
    job: Job,
    settings: Mapping[str, Any] | None = None,
    *,
    baseline: Job | None = None,
    plain_step_ns: int | None = None,
    other_program: bool = False,
) -> CheckResult:
    """Check a recording against budgets (`docs/reference/check.md`) and a contract (`docs/reference/contracts.md`).

    Args:
        job: Report or traces to judge.
        settings: Keys of a configuration file, such as `{"budgets": {"efficiency_pct": {"min": "80%"}}}` or
            `{"contract": "overlap.contract.toml"}`. The default
            is that of `overlapscope check`: copies must overlap with compute, or, with a `baseline`, the program must
            not have become slower.
        baseline: A file of `overlapscope check --write-baseline`, or a recording; by default that of the settings.
        plain_step_ns: Step time without the profiler in nanoseconds.
        other_program: Whether to compare with a baseline of another program.

    Returns:
        The outcome, and the verdict on each budget.

    Raises:
        ConfigError: The settings are wrong.
        UsageError: A recording can't serve as a baseline, or a timeline was predicted.
        UnreadableTrace: A file can't be read.
    """
    from overlapscope.budgets import baseline as baselines
    from overlapscope.budgets.config import from_mapping
    from overlapscope.budgets.settings import Settings
    from overlapscope.contracts.judge import check_job
    from overlapscope.inputs import read_baseline, recordings_of

    parsed = Settings() if settings is None else from_mapping(settings, "settings")
    parsed = replace(parsed, other_program=other_program)
    past, baseline = None, parsed.baseline if baseline is None else baseline
    with using(parsed.names):
        if isinstance(baseline, str | os.PathLike):
            past = read_baseline(os.fspath(baseline), ranges=parsed.compared_ranges)
        elif baseline is not None:
            past = baselines.of(report_of(baseline), ranges=parsed.compared_ranges)
        return check_job(parsed, lambda: recordings_of(job), lambda: report_of(job, plain_step_ns), past)


def whatif(
    trace: Source,
    interventions: Sequence[str] = (),
    *,
    device: int | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    plain_step_ns: int | None = None,
) -> WhatIf:
    """Predict the step time of a changed program, in nanoseconds (`docs/guides/whatif.md`).

    If the replay doesn't explain the recording, `replay.valid` is False and `predicted_step_ns` is None.

    Args:
        trace: The trace or its file.
        interventions: Changes as on the command line: `["pin", "side-stream", "no-sync cudaStreamSynchronize"]`.
        device: Ordinal of the GPU; by default the busiest.
        calibration: Result of `overlapscope scenarios calibrate` for the GPU, or its file. By default, constants come
            from the trace and the shipped table.
        plain_step_ns: Step time without the profiler in nanoseconds, if the recorder did not measure it.

    Returns:
        The predicted step, as an interval, and the judgement of the replay that it rests on.

    Raises:
        UnreadableTrace: The trace can't be read.
        UsageError: An intervention doesn't exist or lacks its argument, the trace has no GPU activity, or the file is
            not a calibration.
        NotInTrace: The trace lacks the device, or something that an intervention names.
    """
    from overlapscope.prediction.calibration import read
    from overlapscope.prediction.interventions import check_names
    from overlapscope.prediction.predict import predict

    if isinstance(interventions, str):
        raise UsageError(f"interventions are a list, even of one: [{interventions!r}].")
    trace = read_trace(trace)
    check_names(trace, interventions)
    if isinstance(calibration, str | os.PathLike):
        calibration = read(calibration)
    return predict(trace, interventions, device=device, calibration=calibration, plain_step_ns=plain_step_ns).result


def files_of(job: Job) -> list[str]:
    """Return the files of a job's traces."""
    if isinstance(job, Report):
        return [trace.source for trace in job.traces]
    files: list[str] = []
    for source in as_list(job):
        files += [source.source] if isinstance(source, Trace) else map(str, find_traces(os.fspath(source)).files)
    return files


def report_of(job: Job, plain_step_ns: int | None = None) -> Report:
    """Return the report to compare or judge. Raises UsageError if it exists and a plain step is given."""
    if isinstance(job, Report):
        if plain_step_ns is not None:
            raise UsageError(TOLD_OF_A_REPORT)
        return job
    sources = as_list(job)
    files = [os.fspath(source) for source in sources if not isinstance(source, Trace)]
    if len(files) == len(sources):
        return read_report(files, plain_step_ns=plain_step_ns)
    # Comparing and judging use measurements only, so no replay is needed.
    analyses = [analyze_trace(trace) for trace in read_traces(sources)]
    return build(analyses, replayed=False, plain_step_ns=plain_step_ns)
