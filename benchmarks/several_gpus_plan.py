"""Programs of `benchmarks.several_gpus`, their variants, and the results."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "scenarios" / "jobs"
PORTS = "SEVERAL_GPUS_PORTS"
"""Environment variable with a port for each program of a job: the last one's may still be in use."""
LATE_MS = "{late_ms}"
"""Stands for a time on the host that costs about 30% of a step, because launched work can't hide it."""
SLEEP = ("--sleep-rank", "1", "--sleep-ms", LATE_MS)


class JobProgram(Struct, frozen=True):
    """A program of `scenarios/jobs` with some sizes, and its variants."""

    module: str
    variants: dict[str, tuple[str, ...]]
    """Options of each variant, without the sizes. The first is unchanged."""
    small: tuple[str, ...]
    """Sizes for the CPU."""
    large: tuple[str, ...] = ()
    """Sizes for GPUs, where the program's own don't fit."""
    stacks: tuple[str, ...] = ()
    """Variants to record with Python stacks, too."""


_CAUSES = (
    *("same-stream", "host-sync", "late-compute", "late-issue", "waiting-for-input", "straggler", "transfer"),
    "no-compute",
)
_SMALL_BLOCKS = ("--blocks", "2", "--width", "64", "--batch", "64")
PROGRAMS: dict[str, JobProgram] = {
    "ddp": JobProgram(
        "ddp",
        {
            "base": (),
            "sleep": SLEEP,
            "large-buckets": ("--bucket-mb", "10000"),
            "slow-loader": ("--slow-loader-rank", "1", "--loader-ms", LATE_MS),
            "norms": ("--norms", "keep"),
            "item": ("--norms", "read"),
        },
        ("--layers", "4", "--width", "128", "--batch", "64"),
        stacks=("sleep", "slow-loader", "item"),
    ),
    "ddp-narrow": JobProgram(
        "ddp",
        {"base": (), "small-buckets": ("--bucket-mb", "1")},
        ("--layers", "8", "--width", "64", "--batch", "64"),
        ("--layers", "64", "--width", "1024", "--batch", "4096"),
    ),
    "fsdp2": JobProgram(
        "fsdp2",
        {"base": (), "no-prefetch": ("--no-prefetch",), "sleep": SLEEP},
        _SMALL_BLOCKS,
        stacks=("no-prefetch", "sleep"),
    ),
    "tensor_parallel": JobProgram(
        "tensor_parallel",
        {"base": (), "means": ("--means", "keep"), "item": ("--means", "read"), "sleep": SLEEP},
        _SMALL_BLOCKS,
        stacks=("item", "sleep"),
    ),
    "two_collectives": JobProgram(
        "two_collectives",
        {"base": (), "one-communicator": ("--one-communicator",)},
        ("--width", "64", "--batch", "64", "--large-mb", "1"),
    ),
    "pipeline": JobProgram(
        "pipeline",
        {
            "base": (),
            "sleep": SLEEP,
            "gpipe": ("--schedule", "gpipe"),
            "zero-bubble": ("--schedule", "zero-bubble"),
        },
        ("--blocks", "4", "--width", "64", "--batch", "64", "--microbatches", "4"),
        stacks=("sleep",),
    ),
    "experts": JobProgram(
        "experts",
        {"base": (), "skew": ("--skew-pct", "20"), "sleep": SLEEP},
        ("--blocks", "2", "--width", "64", "--tokens", "64"),
        stacks=("sleep",),
    ),
    "exposed": JobProgram(
        "exposed",
        {"base": (), **{cause: ("--cause", cause) for cause in _CAUSES}},
        ("--width", "64", "--batch", "64", "--large-mb", "1"),
        stacks=("host-sync", "late-compute", "late-issue", "straggler"),
    ),
    "pipeline-interleaved": JobProgram(
        "pipeline",
        {"base": ("--schedule", "interleaved")},
        ("--blocks", "4", "--width", "64", "--batch", "64", "--microbatches", "4"),
    ),
}
"""Programs in the order in which they are measured."""


class ProgramResult(Struct, frozen=True, omit_defaults=True):
    """Figures of a variant or a job."""

    job: str
    world: int
    program: str
    variant: str = ""
    options: tuple[str, ...] = ()
    plain_ns: list[list[int]] = []
    """Mean step of each round, of each rank."""
    launch_ns: list[int] = []
    """Time in which each rank's host launches a step of the base; empty for other variants."""
    trace: str = ""
    again: str = ""
    """Second recording of the same program, in the same processes."""
    stacks: str = ""
    """Recording with Python stacks."""
    figures: list[dict[str, float | str]] = []
    error: str = ""
    seconds: float = 0.0


class DistributedJob(Struct, frozen=True):
    """Processes that belong together, with their programs."""

    name: str
    gpus: tuple[int, ...]
    programs: tuple[str, ...]
    stacks: bool = False
    """Record the variants of `JobProgram.stacks` a second time."""


class LauncherRun(Struct, frozen=True):
    """A script that `overlapscope run` records under torchrun."""

    name: str
    arguments: tuple[str, ...]
    """Script or module with its arguments, for GPUs."""
    small: tuple[str, ...] | None = None
    """Arguments for the CPU instead; None if it needs GPUs."""
    recorder: tuple[str, ...] = ("--active", "3")


def _job(program: str, *options: str) -> tuple[str, ...]:
    return (str(JOBS / f"{PROGRAMS[program].module}.py"), "--steps", "60", *options)


def _run_of(program: str) -> LauncherRun:
    return LauncherRun(program, _job(program), _job(program, *PROGRAMS[program].small))


def _checked(name: str, program: str, *options: str) -> LauncherRun:
    small = _job(program, *PROGRAMS[program].small, *options)
    return LauncherRun(name, _job(program, *options), small, ("--check-hazards", "--active", "3"))


def _laboratory(experiment: str, variant: str) -> LauncherRun:
    return LauncherRun(f"{experiment}-{variant}", ("-m", "benchmarks.laboratory_steps", experiment, variant))


RUNS = (
    _laboratory("ddp_training", "ddp"),
    _laboratory("fsdp_offload", "offload"),
    _run_of("fsdp2"),
    _run_of("pipeline"),
    _checked("race", "two_collectives", "--race"),
    _checked("no-race", "two_collectives"),
    _laboratory("ddp_training", "no_overlap"),
    _laboratory("fsdp_offload", "resident"),
    _run_of("experts"),
    _run_of("tensor_parallel"),
    *(
        _checked(f"checked-{program}", program)
        for program in ("ddp", "fsdp2", "tensor_parallel", "pipeline", "experts", "exposed")
    ),
)
"""Runs in the order in which they are made, as long as there is time."""
