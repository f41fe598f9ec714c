"""The Report: all results on one or several traces, and its JSON.

The JSON's names are a contract (`docs/reference/json.md`, `overlapscope schema`): fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.plain_step import from_user
from overlapscope.analysis.results import Device, HostUse, TraceResult, host_parts
from overlapscope.analysis.trust import verdict
from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool, decode
from overlapscope.catalog.causes import CAUSES, Subject
from overlapscope.errors import UsageError
from overlapscope.prediction import find_program
from overlapscope.rules.finding import Finding
from overlapscope.rules.findings import find_all

if TYPE_CHECKING:
    from overlapscope.prediction.plain_program import PlainProgram

PLAIN = "plain"
"""Flag of the environment (`analysis.results.Environment`) in a report on the plain program."""


class Report(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The answer for a job: its traces and the findings over all of them, the costliest first."""

    kind: Literal["report"] = "report"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    traces: tuple[TraceResult, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """Notes on the traces as a whole, such as files left out or traces of different jobs."""

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
    """Join analyzed traces into a report and apply every rule.

    Args:
        analyses: The analyzed traces.
        scope: Name of the analyzed part.
        replayed: Whether to replay fixes. If not, no finding's saving is known.
        plain_step_ns: Step time without the profiler, if the user knows it.

    Returns:
        The report.

    Raises:
        UsageError: `plain_step_ns` is impossible, or `scope` is not the whole recording.
    """
    if plain_step_ns is not None and scope != "window":
        raise UsageError("--plain-step is for whole recordings; leave out either it, or --step and --range.")
    done = tuple(_with_step(analysis, plain_step_ns) for analysis in analyses)
    programs = [find_program(analysis, plain_step_ns) if scope == "window" else None for analysis in done]
    return joined(done, programs, scope=scope, replayed=replayed)


def joined(
    analyses: Sequence[TraceAnalysis], programs: Sequence[PlainProgram | None], *, scope: str, replayed: bool
) -> Report:
    """Join analyzed traces whose plain programs are known already; otherwise as `build`."""
    findings = find_all(analyses, programs, scope=scope, replayed=replayed)
    results = [analysis.result for analysis in analyses]
    traces = tuple(
        result if program is None else msgspec.structs.replace(result, devices=tuple(_with_plain(result, program)))
        for result, program in zip(results, programs, strict=True)
    )
    return Report(traces=traces, findings=findings, notes=mixture(results))


def _with_step(analysis: TraceAnalysis, user_step_ns: int | None) -> TraceAnalysis:
    """Return the analysis of a recording without a GPU for a step time that the user passed; others unchanged."""
    result = analysis.result
    if user_step_ns is None or result.host is None:
        return analysis
    if not result.host.by_steps:
        raise UsageError(f"{result.source}: no step is marked in it, so leave out --plain-step.")
    from overlapscope.analysis.host_sampled import sampled_step
    from overlapscope.analysis.host_use import with_plain

    host = with_plain(result.host, from_user(user_step_ns), analysis.trace.host_activity)
    sampled = sampled_step(analysis.trace, host)
    return msgspec.structs.replace(analysis, result=msgspec.structs.replace(result, host=host, sampled=sampled))


def _with_plain(result: TraceResult, program: PlainProgram) -> Iterator[Device]:
    for device in result.devices:
        plain = program.step_on(device)
        yield msgspec.structs.replace(device, plain=plain, alone=device.alone if plain is None else None)


def of_program(report: Report) -> Report:
    """Return the report on the plain program, for judgement and comparison.

    `Device.plain.program` replaces the recording's figures. Unless it is known for every device of all traces, the
    report is returned unchanged, so that like is compared with like.
    """
    if not report.devices or any(device.plain is None or device.plain.program is None for device in report.devices):
        return report
    traces = [
        msgspec.structs.replace(
            trace,
            devices=tuple(map(of_plain, trace.devices)),
            # The plain program has no recorder, so its flags don't apply.
            environment=msgspec.structs.replace(trace.environment, flags={PLAIN: True}),
        )
        for trace in report.traces
    ]
    return msgspec.structs.replace(report, traces=tuple(traces))


def of_plain(device: Device) -> Device:
    """Return the device in the plain program; the device in the recording if there is none."""
    plain = device.plain
    if plain is None or plain.program is None:
        return device
    return msgspec.structs.replace(plain.program, plain=plain)


def from_json(data: bytes) -> Report:
    """Read a report.

    Returns:
        The report.

    Raises:
        msgspec.ValidationError: `data` is not a report.
        msgspec.DecodeError: `data` is not JSON.
    """
    report = decode(data, Report)
    if not report.traces:
        raise msgspec.ValidationError("Expected a trace - at `$.traces`")
    for trace in report.traces:
        if trace.trust.verdict != (verdict(trace.trust.checks).verdict if trace.trust.checks else "trusted"):
            raise msgspec.ValidationError("Expected the verdict of the checks - at `trust`")
        if trace.host is not None:
            _check_host(trace.host)
    _check_causes(report.traces)
    for device in report.devices:
        _check_steps(device)
        if device.plain is not None and device.plain.program is not None:
            _check_steps(device.plain.program)
    return report


def _check_causes(part: object) -> None:
    """Check the causes in a part of a report as read from JSON. Raises msgspec.ValidationError for one that is none."""
    if isinstance(part, tuple):
        for each in part:
            _check_causes(each)
    elif isinstance(part, msgspec.Struct):
        for name, value in msgspec.structs.asdict(part).items():
            if name in _BY_CAUSE and not {*value} <= CAUSES[_BY_CAUSE[name]].keys():
                raise msgspec.ValidationError(f"Expected causes - at `{name}`")
            _check_causes(value)


_BY_CAUSE: Final[dict[str, Subject]] = {f"{subject.replace('-', '_')}_by_cause": subject for subject in CAUSES}
"""Fields with the times of causes."""


def _check_host(host: HostUse) -> None:
    """Check the steps of a host as read from JSON.

    Raises:
        msgspec.ValidationError: The parts of a step don't add up to it, or the average step is not of its steps.
    """
    steps = (*host.steps, host.per_step, host.frame())
    if any(step.buckets is None or sum(host_parts(step).values()) != step.span_ns for step in steps):
        raise msgspec.ValidationError("Expected parts that add up to the step - at `host`")
    if not 0 < len(host.judged) == host.per_step.steps:
        raise msgspec.ValidationError("Expected the numbers of steps - at `host.per_step`")


def _check_steps(device: Device) -> None:
    """Check the figures of steps of a device as read from JSON.

    Raises:
        msgspec.ValidationError: A group does not have a number for each step, or the average step is not of whole
            steps that follow each other.
    """
    by_step: list[msgspec.Struct] = [group.by_step for group in device.copies]
    by_step += [group.by_step for group in device.kernels]
    by_step += [stall.by_step for stall in device.host_stalls]
    by_step += [case.by_step for case in device.evidence]
    columns = chain.from_iterable(map(msgspec.structs.astuple, by_step))
    if any(len(values) != len(device.steps) for values in columns):
        raise msgspec.ValidationError("Expected a number for each step - at `by_step`")
    whole = [number for number, step in enumerate(device.steps) if not step.partial]
    if whole and len(whole) != whole[-1] - whole[0] + 1:
        # The last step may be whole after steps that the end of the recording cut off.
        whole = whole[:-1] if whole[-1] == len(device.steps) - 1 else whole
        if len(whole) != whole[-1] - whole[0] + 1:
            raise msgspec.ValidationError("Expected whole steps that follow each other - at `steps`")
    if device.per_step is not None:
        first, count = device.per_step.first, device.per_step.steps
        # Large reports are kept without the figures of each step.
        fits = not device.steps or (whole and whole[0] <= first and first + count <= whole[-1] + 1)
        if first < 0 or count < 1 or not fits or (device.steps and len(judged_steps(device)) != count):
            raise msgspec.ValidationError("Expected the numbers of whole steps - at `per_step`")
