"""Items of answers: doubts, devices, figures and spans as assistants read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from overlapscope.analysis.figures import Period
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.report.model import Report
from overlapscope.report.page import DeviceReport

FEW: Final = 8
"""Maximum number of names in an item."""
_NO_PLAIN: Final = (
    "The step time without the profiler is unknown: the recorder did not measure it. Pass plain_step_ns if you know it."
)


def doubts_about_trace(trace: TraceResult) -> Iterator[str]:
    """Yield the checks that did not pass, and whether the trace is a prediction."""
    yield from (f"{check.id}: {check.detail}" for check in trace.trust.checks if check.status != "ok")
    if trace.predicted_by is not None:
        yield "This is a timeline that whatif predicted, not a recording."


def doubts_about(report: Report, device: int | None = None) -> list[str]:
    """Return the doubts about the traces of a device, or about all traces."""
    traces = [trace for trace in report.traces if device is None or device in {each.device for each in trace.devices}]
    doubts = [
        f"rank {trace.rank}, {sentence}" if len(report.traces) > 1 and trace.rank is not None else sentence
        for trace in traces
        for sentence in doubts_about_trace(trace)
    ]
    if any(each.plain is None for trace in traces for each in trace.devices):
        doubts.append(_NO_PLAIN)
    return [*doubts, *report.notes]


def opened(device: Device) -> dict[str, Any]:
    """Return the window, streams and first steps of a device."""
    return {
        "device": device.device,
        "name": device.name,
        "start_ns": device.window.start_ns,
        "end_ns": device.window.end_ns,
        "span_ns": device.span_ns,
        "lead_in_ns": device.lead_in_ns,
        "main_stream": device.main_stream,
        "streams": [stream.stream for stream in device.streams],
        "step_count": len(device.steps),
        "steps": [_place(step) for step in device.steps[:FEW]],
        "ranges": [_place(period) for period in device.ranges[:FEW]],
    }


def _place(period: Period) -> dict[str, Any]:
    return {"name": period.name, "start_ns": period.window.start_ns, "end_ns": period.window.end_ns}


def measured_figures(section: DeviceReport, device: Device) -> dict[str, Any]:
    """Return the figures of a device: of an average step, as verdicts and findings state them, and of its window."""
    plain, window = device.plain, section.window
    origin = section.plain_origin
    of = "of the recording" if origin is None else f"of the program without the profiler, whose step is {origin}"
    # Without steps, people read figures of the time after the lead-in.
    frame = {"figures": of} | ({"steps": section.steps} if section.steps else {}) | _figures(device)
    return {
        "device": device.device,
        "name": device.name,
        "per_step" if section.steps else "judged": frame,
        "plain_step": None if plain is None else {name: getattr(plain, name) for name in _PLAIN},
        **({} if window is None else {"recorded_window": _figures(window)}),
    }


_PLAIN: Final = ("step_ns", "low_ns", "high_ns", "origin", "recorded_step_ns")


def _figures(device: Device) -> dict[str, Any]:
    return {
        "span_ns": device.span_ns,
        **msgspec.structs.asdict(device.buckets),
        "hidden_copy_pct": device.overlap.hidden_copy_pct,
        "efficiency_pct": device.overlap.efficiency_pct,
        "exposed_copy_by_cause": _some(device.exposed_copy_by_cause),
        "exposed_comm_by_cause": _some(device.exposed_comm_by_cause),
        "exposed_other_by_cause": _some(device.exposed_other_by_cause),
        "idle_by_cause": _some(device.idle_by_cause),
    }


def _some(by_cause: dict[str, int]) -> dict[str, int]:
    return dict(sorted(((cause, ns) for cause, ns in by_cause.items() if ns), key=lambda item: -item[1]))


def without(value: Any, less: dict[str, Any]) -> dict[str, Any]:
    """Return a structure for JSON without fields that have the given values, or any value for `...`."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return {name: field for name, field in fields.items() if name not in less or less[name] not in (..., field)}


def since(group: Any) -> dict[str, Any]:
    """Return the time and commit of the first report of a level or change."""
    return {"since_ns": group.at_ns, "commit": group.commit}
