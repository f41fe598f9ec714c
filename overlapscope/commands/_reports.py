"""From what a user names to a Report: traces, directories of ranks, patterns, or reports written as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import UnreadableTrace
from overlapscope.sources import LIMIT_BYTES, expand, load

if TYPE_CHECKING:
    from overlapscope.report import Report

_BEGINS_LIKE_A_REPORT = re.compile(rb'\s*\{\s*"schema_version"\s*:')
_HEAD_BYTES = 256


def read(paths: Sequence[str | Path], *, limit_bytes: int | None = None) -> Report:
    """One report over all that is named: the ranks of one job.

    Raises UnreadableTrace for the first file that is neither a trace nor a report of this version.
    """
    from overlapscope.analysis import analyze_trace
    from overlapscope.report import Report, build

    files = expand(paths)
    reports = [_from_json(path) for path in files if _is_report(path)]
    limit = LIMIT_BYTES if limit_bytes is None else limit_bytes
    analyses = [analyze_trace(load(path, limit_bytes=limit)) for path in files if not _is_report(path)]
    if analyses:
        reports.append(build(analyses))
    if len(reports) == 1:
        return reports[0]
    findings = [finding for report in reports for finding in report.findings]
    return Report(
        traces=tuple(trace for report in reports for trace in report.traces),
        findings=tuple(sorted(findings, key=lambda one: (-one.cost_ns, one.rule, one.source, one.device))),
    )


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _BEGINS_LIKE_A_REPORT.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        # Whoever reads it as a trace says what is wrong.
        return False


def _from_json(path: Path) -> Report:
    import msgspec

    from overlapscope.report import SCHEMA_VERSION, from_json

    try:
        report = from_json(path.read_bytes())
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror or error}); check its permissions.") from None
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{path}: looks like a report of overlapscope, but not of this version ({error}); analyze its traces again "
            "with `overlapscope analyze --format json`."
        ) from None
    if report.schema_version != SCHEMA_VERSION:
        raise UnreadableTrace(
            f"{path}: is a report of schema version {report.schema_version}, and this version reads {SCHEMA_VERSION}; "
            "analyze its traces again with `overlapscope analyze --format json`."
        )
    return report
