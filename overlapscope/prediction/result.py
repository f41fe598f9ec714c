"""What a prediction says, as frozen structures; their names are those of `overlapscope whatif --format json`.

All times are integer nanoseconds. A step is a `ProfilerStep#N`, and its time the median over the steps whose end is
known: all but the last, which ends where the recording does. Where the trace has no steps, a step is the window.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.results import PlainOrigin
from overlapscope.base.saved import Tool
from overlapscope.base.shown import Shown

SCHEMA_VERSION = 1

Origin = Literal["calibration", "trace", "table"]
"""Where a constant of the hardware comes from: a calibration of this GPU, the trace itself, the shipped table."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted length: `low <= value <= high`."""

    value: int
    """If every assumption holds."""
    low: int
    """The same with the hardware at its fastest, and copies that nothing is shown to need needed by nothing."""
    high: int
    """If no assumption that has a cost holds, with the hardware at its slowest. Both ends also hold how much the
    recorded steps differ among themselves."""


class KnownStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes while nothing is recorded."""

    step_ns: int
    low_ns: int
    high_ns: int
    origin: PlainOrigin


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the step of median length: as it is, and predicted."""

    measured: int
    """As recorded; of the plain program where its step is known."""
    predicted: Estimate


class Percentage(msgspec.Struct, frozen=True, kw_only=True):
    """A percentage over all steps whose end is known, likewise; None of nothing."""

    measured: float | None
    predicted: float | None
    low: float | None
    high: float | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One intervention that was asked for, and what it did to this trace."""

    intervention: str
    """Its id: `pin`, `no-sync`."""
    argument: str | None
    """What it was told: the call of `no-sync`, the range of `graph`."""
    title: str
    """What it stands for, in a few words: `host memory pinned`."""
    touched: int
    """Copies, calls or launches it changed; 0 where there was nothing for it to do."""
    what: str
    """What it changed here, in a sentence: `96 copies of 4.9 GB take 88 ms instead of 402 ms`."""
    advice: str
    """The code to change."""
    where: tuple[str, ...] = ()
    """Python lines, or ops, of what it changed, most of it first; at most five."""


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the trace does not tell, and the prediction rests on."""

    intervention: str
    text: str
    """A sentence."""
    cost_ns: int | None
    """How much longer the step takes if it does not hold; None where it was not computed."""
    shown: bool
    """The trace shows it, by shapes for one, so that the interval need not allow for the contrary."""


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A property of the hardware that the prediction used."""

    name: str
    """In words: `pinned copy of 50 MB to the GPU`."""
    value: float
    unit: str
    origin: Origin


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """How well the dependency graph explains the recording: its unchanged replay, beside what was measured."""

    valid: bool
    """Only then is anything predicted."""
    reasons: tuple[str, ...]
    """Why not, a sentence each; where valid, what remains in doubt."""
    step_error_pct: float | None
    """Median over the steps of |replayed - measured| / measured."""
    start_error_ns: int
    """The most by which an op begins elsewhere in its step than it was measured to."""
    launch_latency_ns: int
    """From a launch call's start to its op's start where nothing else holds the op: what the error is judged by."""
    unexplained_ns: int
    """Waits that no edge of the graph explains, added up. Where they are at most 2% of the window, the replay keeps
    them, and `reasons` says so; where they are more, it leaves them out, which shows as an error."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder of gains: the best set of so many interventions."""

    interventions: tuple[str, ...]
    added: str
    """What this rung has more than the one before."""
    predicted_step_ns: Estimate
    gain_ns: int
    """Against the unchanged step: that of the value."""


class WhatIf(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What a step would take on one device, had the program been changed."""

    kind: Literal["whatif"] = "whatif"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    source: str
    rank: int | None
    device: int
    device_name: str | None
    steps: int
    """How many steps the figures are the median of; 0 where the trace has none and the step is the window."""
    baseline_step_ns: int
    """As it is: of the plain program where its step is measured or told, else as recorded."""
    plain: KnownStep | None
    """The plain step, where it is measured or told."""
    recorded_step_ns: int
    """As recorded."""
    replayed_step_ns: int
    """By the simulation of the recording with nothing changed."""
    predicted_step_ns: Estimate | None
    """By the simulation with the interventions, of the same program as `baseline_step_ns`; None where the replay is not
    valid."""
    recorded_predicted_step_ns: int | None
    """The value for the recording itself."""
    gain_ns: Estimate | None
    """What is saved of the unchanged step by the simulation; its `low` belongs to the prediction's `high`. Negative
    where the step gets longer."""
    gain_pct: float | None
    """The value's share of that step."""
    buckets: dict[str, Figure]
    """`compute_ns`, `exposed_comm_ns`, `exposed_copy_ns`, `exposed_other_ns`, `idle_ns` of the step; empty where
    nothing is predicted."""
    hidden_copy_pct: Percentage | None
    efficiency_pct: Percentage | None
    interventions: tuple[Change, ...]
    assumptions: tuple[Assumption, ...]
    constants: tuple[Constant, ...]
    replay: Fidelity
    ladder: tuple[Rung, ...] = ()
    """Of `--best` alone: from nothing changed to the best set, one intervention more each time."""

    @property
    def unchanged_step_ns(self) -> int:
        """What gains are counted from: the plain step, or where it is not known the replayed one."""
        return self.replayed_step_ns if self.plain is None else self.plain.step_ns
