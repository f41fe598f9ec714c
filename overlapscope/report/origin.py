"""Origin of a report: its time, program, commit and host, as far as they are known; and plugins that keep both."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Protocol

from msgspec import UNSET, Meta, Struct

from overlapscope.base.registry import load
from overlapscope.base.revision import job_name, revision, running_script
from overlapscope.base.saved import Instant
from overlapscope.base.words import clean
from overlapscope.errors import UsageError
from overlapscope.plugin import built_in
from overlapscope.report.model import Report
from overlapscope.trace.model import TraceOrigin

Name = Annotated[str, Meta(max_length=500)]

_MAX_LENGTH = 200
_EARLIEST_NS = 10**18
"""Earliest plausible time (2001), in nanoseconds since 1970. Smaller numbers count from another moment."""


class Origin(Struct, frozen=True, kw_only=True):
    """Origin of a report; unknown fields are None."""

    at_ns: Instant
    """Time of the recording."""
    job: Name
    """Name shared by all runs of a program, by default the name of its script."""
    commit: Name | None = None
    """Commit, with the suffix `-dirty` if the working tree had uncommitted changes."""
    branch: Name | None = None
    host: Name | None = None
    labels: Annotated[dict[Name, Name], Meta(max_length=100)] = {}
    """Other names and values that set runs apart."""


def origin(job: str | None = None) -> Origin:
    """Return the origin of a recording in this process. `job` is by default the name of the script."""
    script = running_script()
    commit, branch = revision(script.parent)
    return Origin(
        at_ns=time.time_ns(),
        job=_text(job) or job_name(script),
        commit=commit,
        branch=branch,
        host=socket.gethostname() or None,
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
    """Return the origin of a report, from its traces and from the arguments, which take precedence.

    Everything else is unknown, since the current working tree may not be that of the recording.

    Args:
        report: The report.
        otherwise_ns: Time of the recording if the trace doesn't state it, in nanoseconds since 1970.
        job: Name of the job.
        commit: Commit of the program.
        branch: Branch of the program.
        labels: Other names and values.

    Raises:
        UsageError: Neither the trace nor `job` states the job.
    """
    first = next((trace.origin for trace in report.traces if trace.origin is not UNSET), TraceOrigin())
    starts = [device.window.start_ns for device in report.devices]
    began_ns = first.at_ns or min((start for start in starts if start > _EARLIEST_NS), default=otherwise_ns)
    name = _text(job) or first.job
    if name is None:
        source = clean(report.traces[0].source, 200) if report.traces else "the report"
        raise UsageError(f"{source}: does not state its program; name the job with --job.")
    return Origin(
        at_ns=began_ns,
        job=name,
        commit=_text(commit) or first.commit,
        branch=_text(branch) or first.branch,
        labels={_text(key) or "": _text(value) or "" for key, value in labels.items()},
    )


def _text(argument: str | None) -> str | None:
    """Return a command line argument as valid text of limited length."""
    return argument and argument.encode(errors="backslashreplace").decode()[:_MAX_LENGTH]


class Keeper(Protocol):
    """A plugin's module that keeps reports. Every function may raise OverlapscopeError."""

    def place(self, named: str | os.PathLike[str] | None) -> tuple[str, Path]:
        """Return where `add` adds to, by default a place of this user, and a directory for other files beside it."""

    def add(self, report: Report, origin: Origin, where: str) -> None:
        """Keep a report."""


def keepers() -> Iterator[Keeper]:
    """Yield the keepers of all plugins."""
    return (load(plugin.keeper) for plugin in built_in() if plugin.keeper)
