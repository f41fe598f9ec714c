"""What one run of the program is told, by an environment variable, and what it tells, in a file of each rank."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

VARIABLE: Final = "OVERLAPSCOPE_TRIAL"
"""Holds a `Task` as JSON."""


class Setting(msgspec.Struct, frozen=True):
    """A change that is made, with its value: `workers` 6, `graph` compile; the value is empty where it has none."""

    change: str
    value: str = ""

    @property
    def text(self) -> str:
        """As a person reads it: `workers (6)`."""
        return f"{self.change} ({self.value})" if self.value else self.change


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Events that end the steps of a program without marks and optimizer."""

    kind: str
    """Name of a `step_choice.Kind`."""
    name: str
    """Name of their source; empty for all of the kind."""
    each: int
    """Events in a step."""
    label: str
    """Words for them: `calls of ResNet.forward`."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do."""

    directory: str
    """Each rank writes its `RankOutcome` there, as `rank0.json`."""
    changes: tuple[Setting, ...] = ()
    warmup_steps: int = 0
    """Steps before those that are timed."""
    steps: int | None = None
    """Steps that are timed; then results are kept and the program is ended. None: nothing is timed, and it goes on."""
    survey: bool = False
    """Find out what the program does (`Facts`), which costs time."""
    steps_by: Steps | None = None
    """Events that end steps; None for the program's marks or its optimizer."""
    rounded: bool = False
    """Change each parameter by its last bit before the first step: what rounding alone does to the results."""
    seed: int = 0


# -- what it tells -----------------------------------------------------------------------------------


class Site(msgspec.Struct, frozen=True):
    """The innermost line of the program's own that leads to a call; of a library's if there is none."""

    path: str
    """Absolute."""
    line: int
    library: str = ""
    """The package, outside of torch, whose code makes the call: `transformers`; empty where the program does itself."""


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader that steps took batches from."""

    site: Site
    """Where it was made."""
    loop: Site | None
    """Where it is iterated over."""
    dataset: str
    """Its class."""
    iterable: bool
    num_workers: int
    pin_memory: bool
    on_gpu: bool
    """Its batches are made of tensors on a GPU."""
    batches: int
    """Taken from it."""


class Uploads(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from the host to a GPU within steps, of one line and kind."""

    site: Site
    method: Literal["to", "cuda", "copy_"]
    pinned: bool
    non_blocking: bool
    count: int
    bytes: int
    from_loader: bool
    """They move tensors of a DataLoader's batch."""


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """Values of GPU tensors that the host waits for within steps, by `.item()` or `float()`."""

    site: Site
    method: Literal["item", "float"]
    count: int


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    site: Site
    """Where it was made."""
    name: str
    """Its class."""
    takes_fused: bool
    """Its class has the option, and all its parameters can be used with it."""
    fused: bool


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """The outermost module with parameters that steps call."""

    site: Site
    """Where it is called."""
    name: str
    """Its class."""
    compiled: bool
    of_torch: bool = False
    """Its class is one of torch's own, as `Sequential` is, with which `compile()` does nothing."""
    capturable: str = ""
    """Why `make_graphed_callables` does not fit it, in a clause; empty where it does."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the program does in its steps, of rank 0."""

    cuda: bool
    """It uses a GPU."""
    device_name: str | None = None
    """Of the GPU that is current at the end."""
    cpus: int
    """That its process may use."""
    loaders: tuple[Loader, ...] = ()
    uploads: tuple[Uploads, ...] = ()
    reads: tuple[Reads, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    modules: tuple[Module, ...] = ()
    began_ns: int | None = None
    """When the program was begun to be looked at, since the epoch: lines are those of its files at that time."""


BUCKETS: Final = 32
"""Sums that a sketch has: each of a tensor's elements is added to one of them, or taken from it.

The square of the distance of two sketches has the square of the tensors' distance as its mean, and a standard deviation
of at most sqrt(2 / 32) = 25 % of it (Charikar, Chen, Farach-Colton: Finding frequent items in data streams, 2002).
"""


class Sketch(msgspec.Struct, frozen=True):
    """A tensor in a few numbers, from which the distance of two can be told (see `fingerprint`)."""

    name: str
    norm: float
    sums: tuple[float, ...]


class RankResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the program has computed after its last timed step."""

    digest: str
    """SHA-256 over checksums of every parameter and of the optimizers' state, or of the last output where there is no
    optimizer; empty where there is neither."""
    sketches: tuple[Sketch, ...]
    loss: float | None
    """Of the last step."""


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells at its end."""

    rank: int
    ranks: int
    all_steps: int
    """That it made, timed or not."""
    complete: bool
    """It made all the steps that it was to make, and was ended then."""
    host_ns: tuple[int, ...] = ()
    """Of each timed step, from mark to mark."""
    device_ns: tuple[int, ...] = ()
    """The same by the device's clock; empty without a GPU."""
    results: RankResults | None = None
    facts: Facts | None = None
    steps_by: Steps | None = None
    """Events that the survey took for steps; None for the program's marks or its optimizer."""
    made: dict[str, int] = {}
    """How often each change did something, by its id."""
    refused: dict[str, str] = {}
    """Why a change could not be made after all, a sentence each, by its id."""
