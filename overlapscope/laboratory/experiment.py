"""What an experiment is: variants of one program, what each must show, and what others measured.

A scenario file is a plain script with a function that prepares the program and an `EXPERIMENT`:

    from overlapscope.laboratory.experiment import Experiment, Truth, Variant

    def prepare(megabytes: int, pinned: bool) -> Step:
        source = torch.ones(megabytes << 18, pin_memory=pinned)
        return lambda: source.to("cuda", non_blocking=True)

    EXPERIMENT = Experiment(
        name="pinned",
        title="Pinned or pageable",
        shows="a copy from pinned memory is faster",
        sizes={"small": {"megabytes": 64}, "paper": {"megabytes": 512}},
        prepare=prepare,
        variants=(
            Variant("pageable", {"pinned": False}, shows="the driver stages it", published={"wall_ms": 2.0}),
            Variant("pinned", {"pinned": True}, shows="goes at the link's rate", published={"wall_ms": 1.0}),
        ),
        faster=(("pinned", "pageable"),),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Step = Callable[[], object]

SMALL, PAPER = "small", "paper"
SCALES = (SMALL, PAPER)
"""`paper` has the published sizes, `small` fits a card of 8 GB."""


@dataclass(frozen=True, slots=True)
class WrongResults:
    """How often a program that must always compute the same thing did not."""

    wrong: int
    tries: int


@dataclass(frozen=True, slots=True)
class Program:
    """What `prepare` returns where one function does not say it all. Everything is called in one process."""

    step: Step
    """One iteration, which is timed. It may leave work on the GPU: whoever times it waits for that."""
    recorded_step: Step | None = None
    """What to record instead where an iteration is too long to be kept; `Experiment.recorded` says what differs."""
    figures: Callable[[], Mapping[str, float]] | None = None
    """Further figures of the program's own measuring, names with units (`h2d_ms`), called after the timing."""
    count_wrong: Callable[[], WrongResults] | None = None
    """Counts wrong results, called after the timing. For experiments on correctness."""
    close: Callable[[], None] | None = None
    """Gives back what garbage collection does not: worker processes, process groups."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a recording must show, as follows from how the program is written, never from an analyser's output."""

    exposed_copy: str | None = None
    """The cause that explains most of the exposed copy time."""
    idle: str | None = None
    """The cause that explains most of the idle time."""
    hidden_copy_pct: tuple[float, float] | None = None
    """Least and most share of the copy time that runs under compute."""
    findings: tuple[str, ...] = ()
    """Rules that must fire."""
    no_findings: tuple[str, ...] = ()
    """Rules that must not fire."""
    least_share: float = 0.5
    """The share of the time that an expected cause must explain."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to write the program."""

    name: str
    """Of letters, digits and `_.+-`: it names the trace file too."""
    parameters: Mapping[str, Any]
    """Keyword arguments of `prepare`, besides the experiment's sizes."""
    shows: str
    """What it should show, as half a sentence."""
    truth: Truth = Truth()
    published: Mapping[str, float] = field(default_factory=dict)
    """Published figures by name: `wall_ms` for the time of one iteration, others as in `Program.figures`."""
    wrong_results: Literal["none", "some"] | None = None
    """Whether its results must be right or may be wrong; None where nothing is counted."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Variants of one program, measured side by side."""

    name: str
    """The name of its file, without `.py`."""
    title: str
    shows: str
    """What the experiment as a whole shows, in one sentence."""
    sizes: Mapping[str, Mapping[str, Any]]
    """Keyword arguments of `prepare` for each scale (`SCALES`)."""
    prepare: Callable[..., Program | Step]
    variants: tuple[Variant, ...]
    published_on: str = ""
    """Hardware and source of the published figures."""
    faster: tuple[tuple[str, str], ...] = ()
    """Pairs of variants of which the first is the faster, as published."""
    gpus: int = 1
    """How many GPUs it needs, one process for each; 0 where it runs on the CPU alone."""
    processes: int | None = None
    """How many processes run it, as `torchrun` would start them, where that is not one for each GPU."""
    warmup_steps: int = 2
    """Iterations recorded but not judged."""
    recorded_steps: int = 3
    """Iterations recorded and judged."""
    recorded: str = ""
    """What the recording leaves out of the timed program, as half a sentence."""
    recorder: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `overlapscope.record`, such as `stacks`."""

    @property
    def ranks(self) -> int:
        """How many processes run it side by side."""
        return max(1, self.gpus) if self.processes is None else self.processes
