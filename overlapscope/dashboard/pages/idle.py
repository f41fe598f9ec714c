"""The page Idle and stalls: why the GPU was idle, and which calls kept the host from launching work."""

from __future__ import annotations

from collections.abc import Iterator

from dash.development.base_component import Component

from overlapscope.analysis.results import Device, missing_ns
from overlapscope.base.words import part_of, share
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.report import lists
from overlapscope.report.charts import CAUSE_TITLES


def layout(context: PageContext, device: Device) -> Component:
    """Return the page."""
    return parts.page(
        "Idle and stalls",
        _idle(context, device),
        *_others(context, device),
        _stalls(context, device),
        *parts.host(context),
        lead=parts.lead(
            context, "When the GPU had nothing to compute, why, and which calls kept the host from launching."
        ),
    )


def _idle(context: PageContext, device: Device) -> Component:
    idle = device.buckets.idle_ns - missing_ns(device)
    if not idle:
        return parts.panel("Idle by cause", parts.empty("The GPU was never idle in this recording."))
    when = "In each step the" if context.section.steps else "The"
    note = f"{when} GPU is idle for {part_of(idle, device.span_ns)} ({share(idle, device.span_ns)})."
    return parts.panel("Idle by cause", *parts.causes(context, device, "idle", "idle"), note=note)


def _others(context: PageContext, device: Device) -> Iterator[Component]:
    """Yield the causes of exposed communication, and of memory work in and between GPUs, if there is any."""
    comm_ns, other_ns = device.buckets.exposed_comm_ns, device.buckets.exposed_other_ns
    if comm_ns:
        when = "In each step nothing" if context.section.steps else "Nothing"
        note = f"{when} computes beside {part_of(comm_ns, device.engines.comm_ns)} of communication."
        causes = parts.causes(context, device, "exposed-comm", "comm")
        yield parts.panel(CAUSE_TITLES["exposed-comm"], *causes, note=note)
    if other_ns:
        when = "In each step" if context.section.steps else "In all"
        note = f"{when}, only memory work in or between GPUs runs for {part_of(other_ns, device.span_ns)}."
        causes = parts.causes(context, device, "exposed-other", "memory")
        yield parts.panel(CAUSE_TITLES["exposed-other"], *causes, note=note)


def _stalls(context: PageContext, device: Device) -> Component:
    if not device.host_stalls:
        return parts.panel("Host stalls", parts.empty("No blocking call was recorded on the host."))
    lined = any(stall.where for stall in device.host_stalls)
    hint = "" if lined else " To see the line of code of each, record with overlapscope run --stacks."
    return parts.grid_panel(
        context,
        lists.stalls(context.section, device),
        "idle-stalls",
        note="Calls in which the host waited. They cost the GPU idle time that follows, because the host could launch "
        f"nothing meanwhile. Waiting while the GPU is busy costs nothing.{hint}",
    )


callbacks = Callbacks()
callbacks.grids("idle-evidence", "comm-evidence", "idle-stalls", "host-lines")
