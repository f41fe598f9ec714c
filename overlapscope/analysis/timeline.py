"""Work of one device as interval sets, from which every length in a report is measured."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec.structs import asdict

from overlapscope.analysis.results import StreamUse
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, Intervals, covered, join, subtract, total, union
from overlapscope.base.kept import kept
from overlapscope.catalog.measures import LENGTH_FUNCTIONS
from overlapscope.trace.lost import lead_in_end
from overlapscope.trace.model import GpuOps, Kind, Trace
from overlapscope.trace.ran import Ran, when_ran


class Timeline(Ran, frozen=True, dict=True):
    """Ops of one device, sorted by start, and the times in which each kind ran."""

    device: int
    ops: GpuOps
    lead_in_end_ns: int | None
    """End of the lead-in: the window's start if there is none; None if it is unknown."""
    main_stream: int

    @cached_property
    def exposed_comm(self) -> Intervals:
        """Times in which communication ran but no compute."""
        return subtract(self.comm, self.compute)

    @cached_property
    def exposed_copy(self) -> Intervals:
        """Times in which copies ran but no kernel."""
        return subtract(self.copy, self.sm)

    @cached_property
    def exposed_p2p(self) -> Intervals:
        """Times in which peer copies ran but no kernel."""
        return subtract(self.p2p, self.sm)

    @cached_property
    def exposed_other(self) -> Intervals:
        """Times in which other memory work ran but nothing else."""
        return subtract(self.other, self.busy)

    @property
    def judged_from_ns(self) -> int:
        """End of the lead-in, where causes and steps begin."""
        return self.start_ns if self.lead_in_end_ns is None else self.lead_in_end_ns


@kept()
def build(trace: Trace, device: int) -> Timeline:
    """Return the timeline of a device that has at least one GPU op."""
    ops = trace.gpu_ops if len(trace.devices) == 1 else trace.gpu_ops.take(trace.gpu_ops.device == device)
    ran = when_ran(ops.kind, ops.start_ns, ops.end_ns)
    return Timeline(
        **asdict(ran),
        device=device,
        ops=ops,
        lead_in_end_ns=lead_in_end(ops, trace.runtime_calls, ran.start_ns),
        main_stream=_main_stream(ops),
    )


def _main_stream(ops: GpuOps) -> int:
    """Return the stream with the most compute, or the busiest if nothing computes; among equals, the lower id."""
    compute = ops.kind == Kind.COMPUTE
    counts = compute if (ops.end_ns > ops.start_ns)[compute].any() else np.ones(len(ops), np.bool_)
    work = {}
    for stream, rows in rows_by(ops.stream):
        computing = rows[counts[rows]]
        work[stream] = total(union(ops.start_ns[computing], ops.end_ns[computing]))
    return max(work, key=lambda stream: (work[stream], -stream))


_MEASURED: Final = ("compute", "comm", "h2d", "d2h", "p2p", "other", "sm", "copy", "busy")


def lengths(ran: Ran, starts: I64, ends: I64) -> dict[str, I64]:
    """Return the lengths of measures inside each of the given windows, by name.

    Lengths of differences and intersections follow from the lengths of sets and of their unions.
    """
    ns = {name: covered(getattr(ran, name), starts, ends) for name in _MEASURED}
    unions = {name: join(ran.sm, getattr(ran, name)) for name in ("h2d", "d2h", "p2p")}
    window = Intervals(np.array([ran.start_ns]), np.array([ran.end_ns]))
    unions |= {"any": ran.any, "window": window}
    of = {name: covered(a, starts, ends) for name, a in unions.items()}
    ns |= {
        "span": ends - starts,
        "h2d_d2h": ns["h2d"] + ns["d2h"] - ns["copy"],
        "ideal": np.maximum.reduce([ns["sm"], ns["h2d"], ns["d2h"]]),
        "exposed_comm": ns["sm"] - ns["compute"],
        "exposed_copy": ns["busy"] - ns["sm"],
        "exposed_h2d": of["h2d"] - ns["sm"],
        "exposed_d2h": of["d2h"] - ns["sm"],
        "exposed_p2p": of["p2p"] - ns["sm"],
        "exposed_other": of["any"] - ns["busy"],
        "idle": of["window"] - of["any"],
    }
    return ns | {name: length(ran, starts, ends) for name, length in LENGTH_FUNCTIONS.items()}


def stream_use(timeline: Timeline, starts: I64, ends: I64) -> tuple[StreamUse, ...]:
    """Return the use of each stream inside the given disjoint windows, by stream id."""
    ops, uses = timeline.ops, []
    for stream, rows in rows_by(ops.stream):
        ran = when_ran(ops.kind[rows], ops.start_ns[rows], ops.end_ns[rows])
        spent = {
            f"{name}_ns": int(covered(getattr(ran, name), starts, ends).sum())
            for name in ("compute", "comm", "h2d", "d2h", "other")
        }
        uses.append(StreamUse(stream=stream, ops=len(rows), **spent))
    return tuple(uses)
