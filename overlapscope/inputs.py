"""Inputs that users name: traces, directories of ranks, patterns, or files written by overlapscope."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.plugin import plugins
from overlapscope.reading import LIMIT_BYTES, find_traces, load, load_all
from overlapscope.reading.file_names import input_path
from overlapscope.reading.files import WRITTEN, kind_of, place
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from overlapscope.budgets.baseline import Baseline
    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.prediction.calibration import Calibration
    from overlapscope.ranks.result import RanksReport
    from overlapscope.report.model import Report

_Report = TypeVar("_Report", "Report", "RanksReport", "CheckResult")

Source = Trace | str | os.PathLike[str]
"""A trace or its file; for several traces, also a directory or a pattern."""

TOLD_OF_A_REPORT = (
    "--plain-step needs a trace, but this is a report; pass the option to `overlapscope analyze` instead."
)

CALIBRATION = Path("overlapscope-laboratory") / "calibration.json"
"""File where `overlapscope scenarios calibrate` writes its result, relative to the working directory."""


class LoadOptions(TypedDict, total=False):
    """Options of `load`."""

    limit_bytes: int | None
    cache: bool
    steps_by: str | None


def as_list(sources: Source | Iterable[Source]) -> list[Source]:
    """Return the sources as a list."""
    return [sources] if isinstance(sources, Trace | str | os.PathLike) else list(sources)


def read_traces(sources: Source | Iterable[Source]) -> list[Trace]:
    """Return the traces, reading those in files. Raises UnreadableTrace."""
    traces: list[Trace] = []
    for source in as_list(sources):
        traces += [source] if isinstance(source, Trace) else load_all(os.fspath(source))
    return traces


def read_trace(source: Source, **options: Unpack[LoadOptions]) -> Trace:
    """Return a single trace, reading it from a file if needed.

    Raises:
        UsageError: The source is a directory.
        UnreadableTrace: The file can't be read.
        NotInTrace: The trace has no range that matches `steps_by`.
    """
    if isinstance(source, Trace):
        return source
    if os.path.isdir(source):
        raise UsageError(f"{source}: is a directory; name one trace in it, because each rank is predicted separately.")
    return load(os.fspath(source), **options)


def recordings_of(job: Report | Source | Iterable[Source]) -> list[Trace]:
    """Return the traces of a job, to be judged by a contract. Raises as `read_recordings`."""
    from overlapscope.report.model import Report

    if isinstance(job, Report):
        raise UsageError(
            "a report doesn't show the order of calls, so it can't be judged by a contract; pass the trace."
        )
    return [
        trace
        for source in as_list(job)
        for trace in ([source] if isinstance(source, Trace) else read_recordings([os.fspath(source)]))
    ]


def read_recordings(paths: Sequence[str | Path], **options: Unpack[LoadOptions]) -> list[Trace]:
    """Return the traces at some paths, to be judged by a contract.

    Raises:
        UsageError: A file is a report, which doesn't show the order of calls.
        UnreadableTrace: A file can't be read.
    """
    files = find_traces(paths).files
    for path in files:
        if kind_of(path, options.get("limit_bytes")) is not None:
            raise UsageError(f"{path}: is no recording, so it can't be judged by a contract; pass the trace.")
    return [load(path, **options) for path in files]


def read_report(
    paths: Sequence[str | Path],
    *,
    plain_step_ns: int | None = None,
    replayed: bool = False,
    **options: Unpack[LoadOptions],
) -> Report:
    """Return a report about all ranks of a job.

    Args:
        paths: Traces, directories, patterns and reports.
        plain_step_ns: As in `report.build`; only for traces.
        replayed: Whether to predict the savings of fixes by replay. Comparing and judging reports doesn't need them.
        options: Options of `load`.

    Raises:
        UnreadableTrace: A file is neither a trace nor a report of this version.
        UsageError: `plain_step_ns` was given for a report, whose plain step can't be changed.
    """
    from overlapscope.analysis import analyze_trace
    from overlapscope.analysis.jobs import mixture
    from overlapscope.report.model import Report, build
    from overlapscope.rules.finding import costliest_first

    found = find_traces(paths)
    kinds = {path: kind_of(path, options.get("limit_bytes")) for path in found.files}
    reports = [_read_written(path, kind) for path, kind in kinds.items() if kind is not None]
    if reports and plain_step_ns is not None:
        raise UsageError(TOLD_OF_A_REPORT)
    analyses = [analyze_trace(load(path, **options)) for path, kind in kinds.items() if kind is None]
    if analyses:
        reports.append(build(analyses, replayed=replayed, plain_step_ns=plain_step_ns))
    findings = [finding for report in reports for finding in report.findings]
    traces = tuple(trace for report in reports for trace in report.traces)
    return Report(
        traces=traces,
        findings=tuple(sorted(findings, key=costliest_first)),
        notes=tuple(
            dict.fromkeys((*found.notes, *(note for report in reports for note in report.notes), *mixture(traces)))
        ),
    )


def read_baseline(path: str | Path, *, ranges: Iterable[str] = (), **options: Unpack[LoadOptions]) -> Baseline:
    """Return the baseline in a file, or make one from traces or a report.

    Args:
        path: The file or directory.
        ranges: Patterns of ranges to include besides steps.
        options: Options of `load`.

    Raises:
        UnreadableTrace: The path is not a baseline, trace or report.
        UsageError: The traces can't serve as a baseline.
    """
    from overlapscope.budgets import baseline

    if kind_of(input_path(path)) == "baseline":
        return baseline.from_json(_bytes(input_path(path)), str(path))
    return baseline.of(read_report([path], **options), ranges=ranges)


def read_calibration(path: Path | None, trace: Trace, *, device: int | None = None) -> Calibration | None:
    """Return the calibration in a file, or by default that of the working directory's laboratory if its GPU matches.

    Without a calibration, return None. Predictions then use constants from the trace and the shipped table.

    Raises:
        UsageError: The file can't be read, or is for another GPU.
    """
    from overlapscope.prediction import calibration

    ordinals = trace.devices if device is None else (device,)
    gpus = {trace.device_names.get(ordinal) for ordinal in ordinals}
    if path is None:
        calibrated = calibration.read(CALIBRATION) if CALIBRATION.is_file() else None
        return calibrated if calibrated is not None and gpus == {calibrated.gpu} else None
    calibrated = calibration.read(path)
    if None not in gpus and gpus != {calibrated.gpu}:
        ran_on = ", ".join(sorted(filter(None, gpus)))
        raise UsageError(
            f"{path}: is for {calibrated.gpu}, but {trace.source} was recorded on {ran_on}; name another file."
        )
    return calibrated


def read_ranks_report(path: Path) -> RanksReport:
    """Read a report of `overlapscope ranks --format json`. Raises UnreadableTrace unless it is of this version."""
    from overlapscope.ranks.parts import from_json

    again = "write it again with `overlapscope ranks --format json`"
    return _read_json(path, from_json, "ranks", again)


def read_check(path: Path) -> CheckResult:
    """Read a result of `overlapscope check --format json`. Raises UnreadableTrace unless it is of this version."""
    from overlapscope.base.saved import decode
    from overlapscope.budgets.verdicts import CheckResult

    again = "write it again with `overlapscope check --format json`"
    return _read_json(path, lambda data: decode(data, CheckResult), "check", again)


def _read_written(path: Path, kind: str) -> Report:
    from overlapscope.report.model import from_json

    if kind != "report":
        written = WRITTEN.get(kind) or next(plugin.kinds[kind] for plugin in plugins() if kind in plugin.kinds)
        alternative = ", or open it with `overlapscope dashboard`" if kind == "ranks" else ""
        raise UnreadableTrace(
            f"{path}: is {written}, which cannot be compared or judged; name the traces{alternative}."
        )
    again = "analyze its traces again with `overlapscope analyze --format json`"
    return _read_json(path, from_json, "report", again)


def _read_json(path: Path, from_json: Callable[[bytes], _Report], kind: str, again: str) -> _Report:
    """Read a file. Raises UnreadableTrace, with advice, if it can't be read or another version wrote it."""
    import msgspec

    try:
        return from_json(_bytes(path))
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{path}: looks like {WRITTEN[kind]}, but not of this version ({error}); {again}."
        ) from None


def _bytes(path: Path) -> bytes:
    try:
        return place(path, LIMIT_BYTES).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise UnreadableTrace(f"{path}: cannot be read ({reason}); check its path and permissions.") from None
