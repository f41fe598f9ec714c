"""The Report: everything known about one or several traces, and its JSON.

The JSON's names are a contract (`docs/reference/json.md`, `overlapscope schema`): fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal

import msgspec

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.saved import Tool, decode, encode
from overlapscope.base.shown import Shown
from overlapscope.errors import UsageError
from overlapscope.prediction.program import Program, find_program, summary
from overlapscope.report.findings import find_all
from overlapscope.rules.finding import Finding

SCHEMA_VERSION = 1
PLAIN = "plain"
"""Flag of the environment (`analysis.results.Environment`) of a report whose figures are of the plain program."""


class Report(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one job: its traces and the findings over all of them, costliest first."""

    kind: Literal["report"] = "report"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    traces: tuple[TraceResult, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """What has to be said of the traces taken together: files that were left out, traces that are of different jobs."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of all traces."""
        return tuple(device for trace in self.traces for device in trace.devices)


def build(
    analyses: Iterable[TraceAnalysis],
    *,
    scope: str = "window",
    replayed: bool = True,
    plain_step_ns: int | None = None,
) -> Report:
    """Join analysed traces into a report and apply every rule. `scope` names what was analysed.

    `replayed` is false where nobody asks what fixes save: every finding's cost is its bound then, and a plain step that
    was not timed is not estimated. `plain_step_ns` tells what a step takes while nothing is recorded.

    Raises UsageError where that cannot be, or is told of a scope that is not the whole recording.
    """
    if plain_step_ns is not None and scope != "window":
        raise UsageError("--plain-step is for whole recordings; leave out either it, or --step and --range.")
    done = tuple(analyses)
    programs = [
        find_program(device, plain_step_ns, estimate=replayed) if scope == "window" else None for device in done
    ]
    return joined(done, programs, scope=scope, replayed=replayed)


def joined(
    analyses: Sequence[TraceAnalysis], programs: Sequence[Program | None], *, scope: str, replayed: bool
) -> Report:
    """`build`, for whoever has the plain programs already."""
    findings = find_all(analyses, programs, scope=scope, replayed=replayed)
    results = [analysis.result for analysis in analyses]
    return Report(traces=tuple(map(_with_plain, results, programs)), findings=findings, notes=mixture(results))


def _with_plain(result: TraceResult, program: Program | None) -> TraceResult:
    if program is None:
        return result
    devices = (msgspec.structs.replace(device, plain=summary(device, program)) for device in result.devices)
    return msgspec.structs.replace(result, devices=tuple(devices))


def of_program(report: Report) -> Report:
    """The report as of the plain program, which is what is judged and compared.

    `Device.plain.program` takes the place of the recording's figures, the findings' plain bounds and examples that of
    recorded ones.

    Unless its step is measured or told on every device of all traces, the report stays what it is: like is to be
    compared with like.
    """
    known = [device.plain is not None and device.plain.program is not None for device in report.devices]
    if not known or not all(known):
        return report
    traces = [
        msgspec.structs.replace(
            trace,
            devices=tuple(map(spoken, trace.devices)),
            # How it was recorded is taken out of it.
            environment=msgspec.structs.replace(trace.environment, flags={PLAIN: True}),
        )
        for trace in report.traces
    ]
    findings = [
        one
        if one.plain_bound_ns is None
        else msgspec.structs.replace(one, bound_ns=one.plain_bound_ns, example=one.plain_example)
        for one in report.findings
    ]
    return msgspec.structs.replace(report, traces=tuple(traces), findings=tuple(findings))


def spoken(device: Device) -> Device:
    """The figures that are spoken of: of the plain program where its step is measured or told, else the recording's."""
    plain = device.plain
    if plain is None or plain.program is None:
        return device
    return msgspec.structs.replace(plain.program, plain=plain)


def to_json(report: Report) -> bytes:
    """The report as indented JSON, ending in a newline."""
    return encode(report)


def from_json(data: bytes) -> Report:
    """Read a report back.

    Raises msgspec.ValidationError where it is not one, msgspec.DecodeError where it is not JSON.
    """
    report = decode(data, Report)
    if not report.traces:
        raise msgspec.ValidationError("Expected a trace - at `$.traces`")
    for device in report.devices:
        by_step: list[msgspec.Struct] = [group.by_step for group in device.copies]
        by_step += [group.by_step for group in device.host_stalls]
        by_step += [group.by_step for group in device.kernels]
        for values in chain.from_iterable(map(msgspec.structs.astuple, by_step)):
            if len(values) != len(device.steps):
                raise msgspec.ValidationError("Expected a number for each step - at `by_step`")
    return report
