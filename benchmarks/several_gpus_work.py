"""Processes of a job of `benchmarks.several_gpus`: each program's variants are timed in turn, then recorded."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from benchmarks.several_gpus_links import bandwidth, peer
from benchmarks.several_gpus_plan import JOBS, LATE_MS, PORTS, PROGRAMS, ProgramResult
from benchmarks.several_gpus_recording import launch_ns, mean_ns, record

T = TypeVar("T")
ROUNDS = 4
WARM_UP = 5
LATE_SHARE = 0.3
"""Share of a step by which a rank that sleeps makes it longer."""


def work(out: Path, name: str, programs: Sequence[str], *, stacks: bool) -> None:
    """Measure and record programs, one process of several."""
    sys.path.insert(0, str(JOBS))
    links = {"bandwidth": bandwidth, "peer": peer}
    for program, port in zip(programs, os.environ[PORTS].split(), strict=True):
        os.environ["MASTER_PORT"] = port
        begin = time.monotonic()
        _append(out, ProgramResult(name, int(os.environ["WORLD_SIZE"]), program, variant="begun"))
        for result in links.get(program, partial(variants, stacks=stacks))(out, name, program):
            _append(out, msgspec.structs.replace(result, seconds=round(time.monotonic() - begin, 1)))
        if dist.is_initialized():
            dist.destroy_process_group()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _append(out: Path, result: ProgramResult) -> None:
    if os.environ["RANK"] == "0":
        with (out / f"{result.job}.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(result) + b"\n")


def variants(out: Path, name: str, program: str, *, stacks: bool) -> Iterator[ProgramResult]:
    """Time the variants of a program in turn, and record them: the first once more at the end."""
    import job

    plan = PROGRAMS[program]
    module = importlib.import_module(plan.module)
    device = job.begin()
    sizes = plan.large if device.type == "cuda" else plan.small
    world = dist.get_world_size()

    def prepared(options: Sequence[str]) -> Callable[[], object]:
        torch.manual_seed(0)
        step: Callable[[], object] = module.prepare(module.options().parse_args([*sizes, *options]), device)
        for _ in range(WARM_UP):
            step()
        return step

    first = next(iter(plan.variants))
    steps = {first: prepared(plan.variants[first])}
    launches, late = _late(steps[first], device)
    chosen = {
        variant: tuple(f"{late:.1f}" if option == LATE_MS else option for option in options)
        for variant, options in plan.variants.items()
    }
    steps |= {variant: prepared(options) for variant, options in chosen.items() if variant != first}
    rounds = [{variant: mean_ns(step, device) for variant, step in steps.items()} for _ in range(ROUNDS)]

    def trace(variant: str, kind: str = "") -> Path:
        return out / name / f"{program}-{variant}{kind}.trace.json.gz"

    for variant, step in steps.items():
        plain: list[list[int]] = _changes_on_ranks([times[variant] for times in rounds])
        result = ProgramResult(name, world, program, variant, (*sizes, *chosen[variant]), plain)
        result = msgspec.structs.replace(result, trace=record(trace(variant), step))
        if variant == first:
            again = record(trace(variant, "-again"), step)
            result = msgspec.structs.replace(result, again=again, launch_ns=launches)
        if stacks and variant in plan.stacks:
            result = msgspec.structs.replace(result, stacks=record(trace(variant, "-stacks"), step, stacks=True))
        yield result


def _late(step: Callable[[], object], device: torch.device) -> tuple[list[int], float]:
    """Return how long each rank takes to launch a step, and the milliseconds of sleep on rank 1 that cost a step 30%.

    While the GPU works, a host may sleep for what launching leaves of the step.
    """
    launches: list[int] = _changes_on_ranks(launch_ns(step, device))
    length_ns = min(max(_changes_on_ranks(mean_ns(step, device))) for _ in range(2))
    return launches, (max(0, length_ns - launches[1]) + LATE_SHARE * length_ns) / 1e6


def _changes_on_ranks(mine: T) -> list[T]:
    found: list[T] = [mine] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found
