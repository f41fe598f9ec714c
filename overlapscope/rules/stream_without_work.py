"""Rule: streams that take part in the program's order but hardly run anything."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import covered
from overlapscope.base.words import plural
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.model import Sync

NOTHING = 0.001
"""Share of the span below which a stream hardly runs anything."""

WAITS = 2
"""Minimum number of waits. A stream that waits only once may just have been set up."""


def _check(claims: Claims) -> Iterator[Draft]:
    ops, syncs, edges = claims.device.timeline.ops, claims.trace.syncs, claims.device.edges
    start, end = claims.device.result.window.start_ns, claims.device.result.window.end_ns
    waits = (syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.stream >= 0)
    waits &= (syncs.device < 0) | (syncs.device == claims.device.result.device)
    waits &= syncs.stream != claims.device.result.main_stream
    for stream in distinct(syncs.stream[waits]).tolist():
        on_stream = ops.stream == stream
        work = int(covered(claims.windows, ops.start_ns[on_stream], ops.end_ns[on_stream]).sum())
        times = int((waits & (syncs.stream == stream)).sum())
        if times < WAITS or work >= NOTHING * claims.judged_ns:
            continue
        waited_for = int((ops.stream[edges.source] == stream).sum())
        ran = int((on_stream & (ops.end_ns > start) & (ops.start_ns < end)).sum())
        backward = any("autograd::engine::evaluate_function" in op for op in claims.trace.names)
        hint = (
            " The recording has a backward pass: autograd runs each backward op on the stream its forward op "
            "ran on, so backward() under another stream moves nothing there but the first gradient."
            if backward
            else ""
        )
        yield Draft(
            title=f"Stream {stream} takes part in {plural(times + waited_for, 'event wait')} but ran only "
            f"{claims.time(work)} of work{claims.a_step}",
            detail=f"It waited for others {plural(times, 'time')}"
            + (f" and others waited for its ops {plural(waited_for, 'time')}" if waited_for else "")
            + f", and ran {plural(ran, 'GPU op')}. Nothing can overlap with a stream that has no "
            f"work.{hint}",
            advice="Check that the work meant for this stream runs there, or drop the stream.\n"
            "Ops go to the stream that is current when they are launched, and backward ops to the stream of their "
            "forward op, so put the forward pass under torch.cuda.stream() as well. Without work, the stream's waits "
            "only order work that was in order anyway.",
        )


RULE = Rule(
    id="stream-without-work",
    severity="info",
    check=_check,
    effort="line",
)
