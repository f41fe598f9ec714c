"""The Report: everything known about one or several traces, and its JSON.

The JSON's names are a contract (`docs/json-report.md`, `overlapscope schema`): fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from overlapscope import __version__
from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.rules import find_all
from overlapscope.rules.finding import Finding

SCHEMA_VERSION = 1


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote a report."""

    name: str = "overlapscope"
    version: str = __version__


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one job: its traces and the findings over all of them, costliest first."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    traces: tuple[TraceResult, ...]
    findings: tuple[Finding, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of all traces."""
        return tuple(device for trace in self.traces for device in trace.devices)

    def show(self, *, height: int = 800) -> None:
        """Show the dashboard of the report's traces: in a frame of that height in a notebook, else in a browser until
        Ctrl-C.

        Raises UsageError where a trace's file is gone, MissingPackage where the dashboard is not installed.
        """
        from overlapscope.dashboard.launch import show

        show([trace.source for trace in self.traces], height=height)


def build(analyses: Iterable[TraceAnalysis], *, scope: str = "window", replayed: bool = True) -> Report:
    """Join analysed traces into a report and apply every rule. `scope` names what was analysed.

    `replayed` is false where nobody asks what fixes save: every finding's cost is its bound then.
    """
    done = tuple(analyses)
    findings = find_all(done, scope=scope, replayed=replayed)
    return Report(traces=tuple(one.result for one in done), findings=findings)


def to_json(report: Report) -> bytes:
    """The report as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def from_json(data: bytes) -> Report:
    """Read a report back.

    Raises msgspec.ValidationError where it is not one, msgspec.DecodeError where it is not JSON.
    """
    return msgspec.json.decode(data, type=Report)


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a report."""
    return published(Report, "report")


def published(contract: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON schema (2020-12) of something that this package writes for programs to read."""
    return msgspec.json.schema(contract) | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"overlapscope {name}",
    }
