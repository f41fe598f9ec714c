"""The constants that a prediction uses, each with its source."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec
import numpy as np

from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.base.words import size as size_text
from overlapscope.prediction.calibration import Calibration, Constants, SizedTime, shipped
from overlapscope.prediction.observed_hardware import observe
from overlapscope.prediction.result import Constant, Origin
from overlapscope.trace.model import F64, Kind, Trace

_NEAR = 4
"""Maximum ratio of sizes for a copy's duration to be taken from another size."""


class Stance(IntEnum):
    """How to treat the unknown: the interval reaches from `BEST` to `WORST`."""

    BEST = 0
    """Nothing depends on data without evidence, and the hardware is at its fastest."""
    EXPECTED = 1
    """Program order decides dependencies, and the hardware behaves as usual."""
    WORST = 2
    """Everything depends on all earlier work, and the hardware is at its slowest."""


_WORDS = {
    "h2d_two_way": "H2D rate beside D2H copies, of the rate alone",
    "d2h_two_way": "D2H rate beside H2D copies, of the rate alone",
    "launch_latency_ns": "launch call to its kernel, the stream being empty",
    "copy_latency_ns": "copy call to its copy, the stream being empty",
    "kernel_gap_ns": "end of a kernel to the next in the queue",
    "handover_ns": "end of an op to the start of an op that an event held back",
    "return_ns": "end of an op to the return of the call that waits for it",
    "sync_call_ns": "synchronize call with nothing to wait for",
    "launch_call_ns": "kernel launch call",
    "copy_call_ns": "pinned copy call",
    "event_call_ns": "event record or wait call",
    "query_call_ns": "call that does nothing",
    "graph_call_ns": "graph launch call, one kernel",
    "graph_node_call_ns": "graph launch call, each kernel more",
    "graph_latency_ns": "graph launch call to its first kernel",
    "graph_gap_ns": "end of a kernel to the next inside a graph",
}
"""Names of constants in reports."""


_PCIE_4, _PCIE_3 = 2.2, 4.6
"""Slowdown of older links: 25 and 12 GB/s with 16 lanes, compared with 55 for PCIe 5."""
_LINKS = (
    (re.compile(r"\b(G?H[12]00|G?B[123]00|H800|H20|RTX (PRO|50[5-9]0))\b"), 1.0),
    (re.compile(r"\b(V100|P100|T4|P40|TITAN|GTX|Quadro|RTX 20[5-8]0)"), _PCIE_3),
)
"""Links by the makers' data sheets. Other products are assumed to have PCIe 4 (A100, L40S, RTX 30 and 40)."""


class Hardware(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The constants of a GPU, each from the best available source."""

    constants: Constants
    origins: dict[str, Origin]
    sized: dict[Kind, tuple[tuple[SizedTime, Origin], ...]]
    """Durations of pinned copies by direction, ascending by size."""
    calibrated: Constants
    """Constants of a calibration of this GPU model; empty if there is none."""
    guessed: bool
    """True if the link's rate is neither measured on this GPU model nor seen in the trace."""
    doubt: str | None
    """Sentence to show if constants of another GPU are used."""

    def copy_ns(self, kind: Kind, size: I64, stance: Stance = Stance.EXPECTED) -> F64:
        """Return the time of pinned copies of these sizes in bytes, with nothing beside them."""
        sizes, times = _points(self, kind, stance)
        wanted = np.maximum(size, 1).astype(np.float64)
        # Interpolate linearly between sizes, for latency and rate. Beyond the largest size, only its rate counts.
        took: F64 = np.where(wanted > sizes[-1], times[-1] * wanted / sizes[-1], np.interp(wanted, sizes, times))
        return took

    def host_ns(self, field: str) -> float | None:
        """Return a constant of this machine's host, from its calibration or the table's own GPU; None if unknown."""
        value = getattr(self.calibrated, field)
        return None if value is None else float(value)

    def copy_constant(self, kind: Kind, size: int) -> Constant:
        """Return the duration of a copy, for a report."""
        ratio = [abs(np.log(point.bytes / max(size, 1))) for point, _ in self.sized[kind]]
        return Constant(
            name=f"pinned {kind.name} copy of {size_text(size)}",
            value=float(round(self.copy_ns(kind, np.array([size]))[0])),
            unit="ns",
            origin=self.sized[kind][int(np.argmin(ratio))][1],
        )

    def constant(self, field: str) -> Constant | None:
        """Return another constant, for a report; None if unknown."""
        value = getattr(self.constants, field)
        if value is None:
            return None
        return Constant(
            name=_WORDS[field],
            value=float(value),
            unit="ns" if field.endswith("_ns") else "x",
            origin=self.origins[field],
        )


@kept()
def _points(hardware: Hardware, kind: Kind, stance: Stance) -> tuple[F64, F64]:
    """Return the sizes in bytes with known durations, and the durations in ns."""
    points = [point for point, _ in hardware.sized[kind]]
    take = {Stance.BEST: "low_ns", Stance.EXPECTED: "duration_ns", Stance.WORST: "high_ns"}[stance]
    sizes = np.array([point.bytes for point in points], np.float64)
    return sizes, np.array([getattr(point, take) for point in points], np.float64)


def find_hardware(trace: Trace, calibration: Calibration | None) -> Hardware:
    """Collect the constants of a trace's hardware: from a calibration of its GPU, the trace, and the shipped table."""
    sources: list[tuple[Origin, Constants]] = [("trace", observe(trace)), ("table", shipped().constants)]
    if calibration is not None:
        sources.insert(0, ("calibration", calibration.constants))
    chosen, origins = {}, {}
    for field in Constants.__struct_fields__:
        if field not in ("h2d", "d2h"):
            for origin, constants in sources:
                value = getattr(constants, field)
                if value is not None:
                    chosen[field], origins[field] = value, origin
                    break
    table, names = shipped(), trace.device_names.values()
    here = calibration is not None or table.gpu in names
    slower = 1.0 if here else _slower(next(iter(names), ""))
    sized = {
        Kind.H2D: _curve([(origin, constants.h2d) for origin, constants in sources], slower, here=here),
        Kind.D2H: _curve([(origin, constants.d2h) for origin, constants in sources], slower, here=here),
    }
    calibrated = calibration.constants if calibration is not None else table.constants if here else Constants()
    seen = any(origin == "trace" for points in sized.values() for _, origin in points)
    doubt = None
    if not here:
        link = "" if seen else ", and the link rate is guessed from its name"
        doubt = (
            f"Some constants are those of an {table.gpu.removeprefix('NVIDIA ')}, not of this GPU{link}. Run "
            "`overlapscope scenarios calibrate` on this GPU to measure them."
        )
    return Hardware(Constants(**chosen), origins, sized, calibrated, not here and not seen, doubt)


def _slower(gpu: str) -> float:
    """Return how much slower a GPU's link is than the table's, by the PCIe generation that its name suggests."""
    for products, slower in _LINKS:
        if products.search(gpu):
            return slower
    return _PCIE_4


def _curve(
    sources: list[tuple[Origin, tuple[SizedTime, ...]]], slower: float, *, here: bool
) -> tuple[tuple[SizedTime, Origin], ...]:
    """Return the best source's sizes, and sizes of the other sources that are far from these.

    Other sources' times are scaled by the ratio of the link rates at the best source's sizes. If only another GPU's
    times are known, their interval allows for any generation of link.
    """
    points: list[tuple[SizedTime, Origin]] = []
    for origin, measured in sources:
        scale = _scale(points, measured)
        if not here and not points and origin == "table":
            return tuple(
                (
                    msgspec.structs.replace(
                        point, duration_ns=round(point.duration_ns * slower), high_ns=round(point.high_ns * _PCIE_3)
                    ),
                    origin,
                )
                for point in measured
            )
        points += [
            (point if scale == 1 else _scaled(point, scale), origin)
            for point in measured
            if all(not 1 / _NEAR < point.bytes / other.bytes < _NEAR for other, _ in points)
        ]
    return tuple(sorted(points, key=lambda pair: pair[0].bytes))


def _scale(points: list[tuple[SizedTime, Origin]], others: tuple[SizedTime, ...]) -> float:
    """Return how much longer copies take than by the other source, at the largest known size."""
    if not points or not others:
        return 1.0
    largest = max((point for point, _ in points), key=lambda point: point.bytes)
    sizes, times = [point.bytes for point in others], [point.duration_ns for point in others]
    by_others = np.interp(largest.bytes, sizes, times) * max(1.0, largest.bytes / sizes[-1])
    # Small copies, which latency dominates, don't show the link's rate.
    return float(largest.duration_ns / by_others) if largest.bytes >= 1 << 20 else 1.0


def _scaled(point: SizedTime, scale: float) -> SizedTime:
    times = {name: round(getattr(point, name) * scale) for name in ("duration_ns", "low_ns", "high_ns")}
    return msgspec.structs.replace(point, **times)
