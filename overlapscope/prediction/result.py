"""Structures of a prediction, with the names of `overlapscope whatif --format json`.

All times are integer nanoseconds. A step is an average step of the judged steps (`analysis.average`); in a trace
without steps, it is the window.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.results import PlainStep
from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool

Origin = Literal["calibration", "trace", "table"]
"""Source of a hardware constant: a calibration of this GPU, the trace itself, or the shipped table."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted length: `low <= value <= high`."""

    value: int
    """Length if every assumption holds."""
    low: int
    """Length with the hardware at its fastest, if no op needs a copy without evidence."""
    high: int
    """Length if no assumption with a cost holds, with the hardware at its slowest. Both ends include the differences
    between the recorded steps."""

    def below(self, length: int) -> Estimate:
        """Return by how much it is shorter than a length."""
        return Estimate(value=length - self.value, low=length - self.high, high=length - self.low)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Figure of an average step, measured and predicted."""

    measured: int
    """As recorded; of the plain program if its step is known."""
    predicted: Estimate


class AppliedChange(msgspec.Struct, frozen=True, kw_only=True):
    """An intervention that was asked for, and its effect on this trace."""

    intervention: str
    """Its id: `pin`, `no-sync`."""
    argument: str | None
    """Argument: the call of `no-sync`, the range of `graph`."""
    title: str
    """Short description: `host memory pinned`."""
    touched: int
    """Number of copies, calls or launches it changed; 0 if it does not apply."""
    what: str
    """Effect here, in a sentence: `96 copies of 4.9 GB take 88 ms instead of 402 ms`."""
    advice: str
    """Code to change."""
    where: tuple[str, ...] = ()
    """Python lines, or ops, that it changed, the most frequent first; at most five."""

    @property
    def text(self) -> str:
        """The text that asks for it, as in `Rung.interventions`: `no-sync cudaStreamSynchronize`."""
        return f"{self.intervention} {self.argument}" if self.argument else self.intervention


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """An assumption of the prediction that the trace does not confirm in general."""

    intervention: str
    text: str
    """A sentence."""
    cost_ns: int | None
    """Extra step time if it does not hold; None if not computed."""
    shown: bool
    """True if the trace shows it, for example by shapes, so that the interval need not allow for the contrary."""


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A property of the hardware that the prediction used."""

    name: str
    """Description: `pinned copy of 50 MB to the GPU`."""
    value: float
    unit: str
    origin: Origin


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Match between the dependency graph's unchanged replay and the recording."""

    valid: bool
    """True if predictions are possible."""
    reasons: tuple[str, ...]
    """Reasons for an invalid replay, or doubts about a valid one, a sentence each."""
    step_error_pct: float | None
    """Median over the steps of |replayed - measured| / measured."""
    start_error_ns: int
    """Maximum deviation of an op's start within its step."""
    launch_latency_ns: int
    """Time from a launch call's start to its op's start if nothing else holds the op: the tolerance for starts."""
    unexplained_ns: int
    """Sum of waits that no edge of the graph explains. Up to 2% of the window, the replay keeps them, and `reasons`
    says so. If there are more, the replay leaves them out, and its error shows them."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the ladder of gains: the best set of a given size."""

    interventions: tuple[str, ...]
    added: str
    """Interventions that the previous rung does not have."""
    predicted_step_ns: Estimate
    gain_ns: int
    """Gain of the value over the unchanged step."""


class WhatIf(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step of a device for a changed program."""

    kind: Literal["whatif"] = "whatif"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    source: str
    rank: int | None
    device: int
    device_name: str | None
    steps: int
    """Number of steps that the figures are the median of; 0 if the trace has none and the step is the window."""
    baseline_step_ns: int
    """Current step: of the plain program if it is timed or passed by the user, else as recorded."""
    plain: PlainStep | None
    """The plain step, if it is timed or passed by the user."""
    recorded_step_ns: int
    """As recorded."""
    replayed_step_ns: int
    """Step of the recording's replay without changes."""
    predicted_step_ns: Estimate | None
    """Step of the replay with the interventions, of the same program as `baseline_step_ns`; None if the replay is not
    valid."""
    recorded_predicted_step_ns: int | None
    """Predicted step of the recording itself."""
    gain_ns: Estimate | None
    """Gain over the unchanged step; its `low` belongs to the prediction's `high`. Negative if the step gets longer.

    Both ends include a measured plain step's interval, as far as the device waits in the time that is saved.
    """
    gain_pct: float | None
    """The gain's value as a percentage of that step."""
    buckets: dict[str, Figure]
    """`compute_ns`, `exposed_comm_ns`, `exposed_copy_ns`, `exposed_other_ns`, `idle_ns` of the step; empty without a
    prediction."""
    interventions: tuple[AppliedChange, ...]
    assumptions: tuple[Assumption, ...]
    constants: tuple[Constant, ...]
    replay: Fidelity
    ladder: tuple[Rung, ...] = ()
    """Only with `--best`: from no change to the best set, with another intervention in each rung."""

    @property
    def unchanged_step_ns(self) -> int:
        """Step that gains are counted from: the plain step, or the replayed step if the plain step is unknown."""
        return self.replayed_step_ns if self.plain is None else self.plain.step_ns
