"""Asynchronous copies that give wrong results: reading, or overwriting, host memory before the copy is done.

From the PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()": 100 rows of 1 to 999,999 as float64
are copied from the GPU with `non_blocking=True`, and their mean, which must be 500,000, is computed at once. It is
wrong at the first try (the 0th), because nothing waits for the copy; with `torch.cuda.synchronize()` before the read it
never is. The other direction has the same trap: a pinned source that is refilled while its copy is still running.

The result is the number of wrong tries out of 100. Every try begins with zeros in the target, because the right numbers
of the previous try would hide that the new ones have not arrived. The GPU has work before the copy, as in a program
that fetches a result it has just computed. `overlapscope run --check-hazards` names both lines of each race.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 100


def fetch(rows: int, columns: int, wait: bool) -> Callable[[], float]:
    """Compute on the GPU, copy the result to pinned memory and return its mean there."""
    row = torch.arange(1, columns + 1, dtype=torch.float64, device="cuda")
    values = torch.empty(rows, columns, dtype=torch.float64, device="cuda")
    fetched = torch.empty(rows, columns, dtype=torch.float64, pin_memory=True)

    def step() -> float:
        torch.cuda.synchronize()  # The previous try must be over, whatever it left.
        fetched.zero_()
        torch.mul(row.expand(rows, columns), 1.0, out=values)
        fetched.copy_(values, non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        return fetched.mean().item()

    return step


def send(rows: int, columns: int, wait: bool) -> Callable[[], float]:
    """Copy batches to the GPU from pinned memory that is reused for each, and return the mean there."""
    batch = torch.arange(1, columns + 1, dtype=torch.float64).expand(rows, columns)
    source = torch.empty(rows, columns, dtype=torch.float64, pin_memory=True)
    values = torch.empty(rows, columns, dtype=torch.float64, device="cuda")
    copied = torch.cuda.Event()

    def step() -> float:
        torch.cuda.synchronize()
        source.copy_(batch)
        values.zero_()
        values.copy_(source, non_blocking=True)
        if wait:
            copied.record()
            copied.synchronize()
        source.zero_()
        return values.mean().item()

    return step


def prepare(rows: int, columns: int, download: bool, wait: bool) -> Program:
    step = (fetch if download else send)(rows, columns, wait)
    right = (columns + 1) / 2

    @functools.cache
    def wrong_tries() -> list[int]:
        return [number for number in range(TRIES) if not math.isclose(step(), right, rel_tol=1e-7)]

    def figures() -> dict[str, float]:
        return {"first_wrong_try": wrong_tries()[0]} if wrong_tries() else {}

    return Program(step, figures=figures, count_wrong=lambda: WrongResults(len(wrong_tries()), TRIES))


# All ops are on one stream. A copy of many megabytes over the link takes many times as long as the one pass over them
# on the GPU. The host's own passes, for which the GPU waits at every try, are work of their own.
TRUTH = Truth(
    exposed_copy="no-compute",
    idle="cpu-ops",
    hidden_copy_pct=(0.0, 1.0),
    findings=("cpu-ops",),
    no_findings=("pageable-memory",),
)

EXPERIMENT = Experiment(
    name="d2h_hazard",
    title="Wrong results from copies that nothing waits for",
    shows="Host memory that an asynchronous copy reads or writes is not to be touched before the copy is done.",
    sizes={"small": {"rows": 10, "columns": 999_999}, "paper": {"rows": 100, "columns": 999_999}},
    prepare=prepare,
    variants=(
        Variant(
            "no_sync",
            {"download": True, "wait": False},
            shows="The host reads while the copy is still under way, and sees zeros.",
            truth=TRUTH,
            published={"first_wrong_try": 0},
            wrong_results="some",
        ),
        Variant(
            "synchronize",
            {"download": True, "wait": True},
            shows="The host waits before it reads.",
            truth=TRUTH,
            wrong_results="none",
        ),
        Variant(
            "source_overwritten",
            {"download": False, "wait": False},
            shows="The host fills the source anew while the copy still reads it.",
            truth=TRUTH,
            wrong_results="some",
        ),
        Variant(
            "source_kept",
            {"download": False, "wait": True},
            shows="The host waits for the copy's event before it touches the source.",
            truth=TRUTH,
            wrong_results="none",
        ),
    ),
    published_on="PyTorch tutorial, GPU not stated",
    warmup_steps=1,
    recorded_steps=3,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
