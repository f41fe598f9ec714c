"""A program that can be run, and the messages of a run.

Its task is in an environment variable, and the outcome of each rank in a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from overlapscope.base.child import how_it_ended
from overlapscope.base.words import plural
from overlapscope.recorder.program_lines import CodeLine


class Setting(msgspec.Struct, frozen=True):
    """A change with its value, such as `workers` 6 or `graph` compile; the value may be empty."""

    change: str
    value: str = ""

    @property
    def text(self) -> str:
        """Text for a person: `workers (6)`."""
        return f"{self.change} ({self.value})" if self.value else self.change


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Events that end the steps of a program without marks and optimizer."""

    kind: str
    """Name of a `step_choice.Kind`."""
    name: str
    """Name of their source; empty for all sources of the kind."""
    each: int
    """Number of events in a step."""
    label: str
    """Description: `calls of ResNet.forward`."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a run."""

    directory: str
    """Directory for each rank's `RankOutcome`, named `rank0.json`."""
    changes: tuple[Setting, ...] = ()
    warmup_steps: int = 0
    """Number of steps before the timed steps."""
    steps: int | None = None
    """Number of timed steps, after which results are kept and the program ends. None to time nothing, and not to end
    it."""
    survey: bool = False
    """Collect `Facts` about the program, which costs time."""
    steps_by: Steps | None = None
    """Events that end steps; None for the program's marks or its optimizer."""
    rounded: bool = False
    """Change each parameter by its last bit before the first step, to see the effect of rounding on the results."""
    seed: int = 0


# -- Outcome -----------------------------------------------------------------------------------------


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader that steps took batches from."""

    site: CodeLine
    """Place that made it."""
    loop: CodeLine | None
    """Place that iterates over it."""
    iterable: bool
    num_workers: int
    pin_memory: bool
    on_gpu: bool
    """True if its batches are tensors on a GPU."""


class Uploads(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from the host to a GPU within steps, of the same line and kind."""

    site: CodeLine
    method: Literal["to", "cuda", "copy_"]
    pinned: bool
    non_blocking: bool
    from_loader: bool
    """True if they move tensors of a DataLoader's batch."""


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that the program made."""

    site: CodeLine
    """Place that made it."""
    name: str
    """Class name."""
    takes_fused: bool
    """True if its class has the option, which all its parameters allow."""
    fused: bool


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """The outermost module with parameters that steps call."""

    site: CodeLine
    """Place that calls it."""
    name: str
    """Class name."""
    compiled: bool
    of_torch: bool = False
    """True if its class is torch's own, such as `Sequential`, on which `compile()` has no effect."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the program's steps, from rank 0."""

    cuda: bool
    """True if it uses a GPU."""
    device_name: str | None = None
    """Name of the GPU that is current at the end."""
    cpus: int
    """Number of CPUs that its process may use."""
    loaders: tuple[Loader, ...] = ()
    uploads: tuple[Uploads, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    modules: tuple[Module, ...] = ()
    gc_pct: float = 0.0
    """Percentage of its steps' time in Python's garbage collector."""
    threads: int = 1
    """Number of threads that torch uses on the CPU."""
    threads_site: CodeLine | None = None
    """Place that sets it; None if the program doesn't."""
    began_ns: int | None = None
    """Start of the survey since the epoch, for noticing files that have changed since."""


BUCKETS: Final = 32
"""Number of sums in a sketch: each element of a tensor is added to or subtracted from a sum.

The squared distance of two sketches has the squared distance of the tensors as its mean, and a standard deviation of at
most sqrt(2 / 32) = 25 % of it (Charikar, Chen, Farach-Colton: Finding frequent items in data streams, 2002).
"""


class Sketch(msgspec.Struct, frozen=True):
    """A short summary of a tensor that allows estimating distances (see `fingerprint`)."""

    name: str
    norm: float
    sums: tuple[float, ...]


class RankResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a rank after its last timed step."""

    digest: str
    """SHA-256 over checksums of every parameter and optimizer state, or of the last output without an optimizer; empty
    without either."""
    sketches: tuple[Sketch, ...]
    loss: float | None
    """Loss of the last step."""


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a rank."""

    rank: int
    ranks: int
    all_steps: int
    """Number of steps made, timed or not."""
    complete: bool
    """True if it made all steps of the task, after which it was ended."""
    host_ns: tuple[int, ...] = ()
    """Length of each timed step, from mark to mark."""
    device_ns: tuple[int, ...] = ()
    """Length of each timed step by the device's clock; empty without a GPU."""
    compiled: tuple[int, ...] = ()
    """Indices of timed steps in which torch compiled, which later steps of the program don't do again."""
    results: RankResults | None = None
    facts: Facts | None = None
    steps_by: Steps | None = None
    """Events that the survey took for steps; None for the program's marks or its optimizer."""
    effects: dict[str, int] = {}
    """Number of times each change took effect, by its id."""
    refused: dict[str, str] = {}
    """Sentences on why changes could not be made after all, by id."""


_RAISED: Final = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


class EndedRun(Struct, frozen=True):
    """A finished run."""

    outcomes: tuple[RankOutcome, ...]
    """Outcomes of the ranks that reported, by rank."""
    exit_code: int | None
    """Python's exit code; None if the run was stopped."""
    output: str
    """End of its output."""
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every rank has made its steps."""
        return all_complete(self.outcomes)

    @property
    def failed(self) -> bool:
        """True if it ended with an error before its steps were made."""
        return not self.complete and self.exit_code != 0

    @property
    def how(self) -> str:
        """Sentence on how it ended before its steps were made, with the last line of output."""
        lines = [line.strip() for line in reversed(self.output.splitlines()) if line.strip()]
        # A launcher prints much after it.
        last = next((line for line in lines if _RAISED.match(line)), lines[0] if lines else "")
        words = f": {last}" if last else "."
        if self.exit_code is None:
            return f"It was stopped after {self.wall_s:.0f} s{words}"
        if self.exit_code:
            return f"It {how_it_ended(self.exit_code)}{words}"
        return f"It ended after {plural(max((outcome.all_steps for outcome in self.outcomes), default=0), 'step')}."


def all_complete(outcomes: Sequence[RankOutcome]) -> bool:
    """Return whether every rank has made its steps."""
    return bool(outcomes) and len(outcomes) == outcomes[0].ranks and all(outcome.complete for outcome in outcomes)


class TrialProgram(Struct, frozen=True, kw_only=True):
    """A program that can be run repeatedly."""

    text: str
    """Its command line, or another name for it."""
    root: Path
    """The directory of its own files."""
    records: bool = False
    """True if it can be recorded: it makes its steps itself, and does not start other programs that do."""

    def run(self, task: Task, limit_s: float) -> EndedRun:
        """Run it for a limited time."""
        raise NotImplementedError

    def alone(self, directory: str, limit_s: float) -> EndedRun:
        """Run it without overlapscope for a limited time; its output is in `directory`."""
        raise NotImplementedError

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> EndedRun:
        """Run it under `overlapscope run` with these options, if it can be recorded."""
        raise NotImplementedError
