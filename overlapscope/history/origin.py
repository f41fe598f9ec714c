"""Where a report comes from, as far as this process can tell: when, of which program, on which commit and host."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import UNSET

from overlapscope.base.revision import job_name, revision, running_script
from overlapscope.base.words import clean
from overlapscope.errors import UsageError
from overlapscope.history.entry import Origin
from overlapscope.report.model import Report
from overlapscope.trace.model import TraceOrigin

_LONGEST = 200
_EARLIEST_NS = 10**18
"""In 2001: what is earlier counts from something else than 1970."""


def origin(job: str | None = None, labels: Mapping[str, str] = MappingProxyType({})) -> Origin:
    """That of what this process runs now; `job` is the name of its script where it is not given."""
    script = running_script()
    commit, branch = revision(script.parent)
    return Origin(
        at_ns=time.time_ns(),
        job=_text(job) or job_name(script),
        commit=commit,
        branch=branch,
        host=socket.gethostname() or None,
        labels=_texts(labels),
    )


def of_report(
    report: Report,
    *,
    otherwise_ns: int,
    job: str | None = None,
    commit: str | None = None,
    branch: str | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Origin:
    """That of a report, by what its trace says and what is told besides, which goes first. What neither says is
    unknown: the working tree of today need not be that of the recording.

    `otherwise_ns` is the time of a recording whose trace does not state it.

    Raises UsageError where nobody says what job it is of.
    """
    said = [trace.origin for trace in report.traces if trace.origin is not UNSET]
    first = said[0] if said else TraceOrigin()
    starts = [device.window.start_ns for device in report.devices]
    began_ns = first.at_ns or min((start for start in starts if start > _EARLIEST_NS), default=otherwise_ns)
    name = _text(job) or first.job
    if name is None:
        source = clean(report.traces[0].source, 200) if report.traces else "the report"
        raise UsageError(f"{source}: does not say what program it is of; name it with --job.")
    return Origin(
        at_ns=began_ns,
        job=name,
        commit=_text(commit) or first.commit,
        branch=_text(branch) or first.branch,
        labels=_texts(labels),
    )


def _text(told: str | None) -> str | None:
    """What a user wrote, which may hold bytes that are no text, as a name that any file takes."""
    return told and told.encode(errors="backslashreplace").decode()[:_LONGEST]


def _texts(labels: Mapping[str, str]) -> dict[str, str]:
    return {_text(key) or "": _text(value) or "" for key, value in labels.items()}
