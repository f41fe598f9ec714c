"""Definition of an experiment: variants of a program, what each must show, and published figures.

A scenario file is a plain script with a function that prepares the program and an `EXPERIMENT`:

    from overlapscope.plugins.laboratory.experiment import Experiment, Truth, Variant

    def prepare(megabytes: int, pinned: bool) -> Step:
        source = torch.ones(megabytes << 18, pin_memory=pinned)
        return lambda: source.to("cuda", non_blocking=True)

    EXPERIMENT = Experiment(
        name="pinned",
        title="Pinned or pageable",
        shows="A copy from pinned memory is faster.",
        sizes={"small": {"megabytes": 64}, "paper": {"megabytes": 512}},
        prepare=prepare,
        variants=(
            Variant("pageable", {"pinned": False}, shows="The driver stages it.", published={"wall_ms": 2.0}),
            Variant("pinned", {"pinned": True}, shows="The copy goes at the link's rate.", published={"wall_ms": 1.0}),
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
"""Scales: `paper` has the published sizes, `small` fits a card of 8 GB."""


@dataclass(frozen=True, slots=True)
class WrongResults:
    """Number of wrong results of a deterministic program."""

    wrong: int
    tries: int


@dataclass(frozen=True, slots=True)
class Program:
    """Result of `prepare` for programs that need more than one function. All functions run in one process."""

    step: Step
    """One iteration, which is timed. It may leave work on the GPU, which the timing waits for."""
    recorded_step: Step | None = None
    """Shorter step for the recording, if an iteration is too long; `Experiment.recorded` describes the difference."""
    figures: Callable[[], Mapping[str, float]] | None = None
    """Further figures measured by the program, called after the timing. Names have units (`h2d_ms`)."""
    count_wrong: Callable[[], WrongResults] | None = None
    """Function that counts wrong results, called after the timing, for experiments on correctness."""
    close: Callable[[], None] | None = None
    """Function that releases what garbage collection doesn't: worker processes, process groups."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Requirements on a recording, derived from the program's code, never from an analyzer's output."""

    exposed_copy: str | None = None
    """Cause of most of the exposed copy time."""
    idle: str | None = None
    """Cause of most of the idle time."""
    hidden_copy_pct: tuple[float, float] | None = None
    """Minimum and maximum percentage of the copy time that runs under compute."""
    findings: tuple[str, ...] = ()
    """Rules that must fire."""
    no_findings: tuple[str, ...] = ()
    """Rules that must not fire."""
    least_share: float = 0.5
    """Minimum share of the time that an expected cause must explain."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to write the program."""

    name: str
    """Name of letters, digits and `_.+-`, also used for the trace file."""
    parameters: Mapping[str, Any]
    """Keyword arguments of `prepare`, in addition to the experiment's sizes."""
    shows: str
    """Expected result, as a sentence."""
    truth: Truth = Truth()
    published: Mapping[str, float] = field(default_factory=dict)
    """Published figures by name: `wall_ms` for the time of an iteration, others as in `Program.figures`."""
    wrong_results: Literal["none", "some"] | None = None
    """`none` if its results must be right, `some` if they may be wrong; None where they aren't counted."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Variants of a program, measured side by side."""

    name: str
    """Name of its file, without `.py`."""
    title: str
    shows: str
    """Result of the whole experiment, as a sentence."""
    sizes: Mapping[str, Mapping[str, Any]]
    """Keyword arguments of `prepare` for each scale (`SCALES`)."""
    prepare: Callable[..., Program | Step]
    variants: tuple[Variant, ...]
    published_on: str = ""
    """Hardware and source of the published figures."""
    faster: tuple[tuple[str, str], ...] = ()
    """Pairs of variants, the faster one first, as published."""
    gpus: int = 1
    """Number of GPUs, with one process each; 0 for experiments on the CPU."""
    processes: int | None = None
    """Number of processes, as `torchrun` would start them, if it isn't one for each GPU."""
    warmup_steps: int = 2
    """Number of iterations recorded but not judged."""
    recorded_steps: int = 3
    """Number of iterations recorded and judged."""
    recorded: str = ""
    """Parts of the timed program that the recording leaves out, as half a sentence."""
    recorder: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `overlapscope.record`, such as `stacks`."""

    @property
    def ranks(self) -> int:
        """Number of processes that run it side by side."""
        return max(1, self.gpus) if self.processes is None else self.processes


def main(experiment: Experiment) -> None:
    """Run the experiment of a scenario file that is run as a script, and exit.

    This does the same as `overlapscope scenarios run FILE`, with the script's arguments.

    Raises:
        RuntimeError: The script is not a file.
    """
    import runpy
    import sys

    # The experiment is named by its file, because the process that runs the variants reads that again.
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise RuntimeError(f"{experiment.name} is in no file; `main` is for scripts.")
    sys.argv[1:1] = ["scenarios", "run", file]
    runpy.run_module("overlapscope", run_name="__main__", alter_sys=True)
