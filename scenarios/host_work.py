"""Work for the CPU between the copy and the model call, or after the model call.

The usual example of posts on `pin_memory` and `non_blocking`, without figures: a million int64 go to the GPU, a small
model runs on them, and the CPU has something else to do. Between the two, that work runs while the copy does, if the
call has returned by then: that takes both pinned memory and `non_blocking=True`. A call that blocks has made the host
wait for the copy before the work begins, wherever the work is.

`copy_call_ms` is the time of the copy call on the host; with both options it returns at once. The host's work takes far
longer than all work of the GPU, so the GPU waits for `cpu-ops` everywhere. The variants differ in how much of the
copy happens in the meantime.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

COLUMNS = 1000
TIMED_CALLS = 20


def prepare(numbers: int, cpu_matrix: int, between: bool, pinned: bool, non_blocking: bool) -> Program:
    source = torch.arange(numbers, dtype=torch.int64, pin_memory=pinned)
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
    matrix = torch.ones(cpu_matrix, cpu_matrix)
    product = torch.empty_like(matrix)

    def cpu_work() -> None:
        torch.mm(matrix, matrix, out=product)

    def copy() -> torch.Tensor:
        return source.to("cuda", non_blocking=non_blocking)

    @torch.no_grad()
    def step() -> float:
        batch = copy()
        if between:
            cpu_work()
        result = model(batch.view(-1, COLUMNS).float()).mean()
        if not between:
            cpu_work()
        return float(result)  # Waits for the model.

    def figures() -> dict[str, float]:
        held = []
        for _ in range(TIMED_CALLS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            copy()
            held.append(time.perf_counter() - begin)
        return {"copy_call_ms": 1e3 * statistics.median(held)}

    return Program(step, figures=figures)


# Copies outlast the small model on the same stream. A matrix product on the CPU keeps the GPU waiting for milliseconds.
PINNED = Truth(
    exposed_copy="no-compute",
    idle="cpu-ops",
    hidden_copy_pct=(0.0, 0.5),
    findings=("cpu-ops",),
    no_findings=("pageable-memory", "pin-in-loop"),
)
PINNED_NON_BLOCKING = replace(PINNED, no_findings=(*PINNED.no_findings, "blocking-copy"))
PAGEABLE = replace(
    PINNED,
    exposed_copy="pageable-memory",
    findings=("cpu-ops", "pageable-memory"),
    no_findings=("pin-in-loop", "blocking-copy"),
)


def variants(place: str, between: bool, shows: tuple[str, str, str, str]) -> tuple[Variant, ...]:
    none, pinned, non_blocking, both = (
        {"between": between, "pinned": pinned, "non_blocking": non_blocking}
        for non_blocking in (False, True)
        for pinned in (False, True)
    )
    return (
        Variant(f"{place}_none", none, shows=shows[0], truth=PAGEABLE),
        Variant(f"{place}_pinned", pinned, shows=shows[1], truth=PINNED),
        Variant(f"{place}_non_blocking", non_blocking, shows=shows[2], truth=PAGEABLE),
        Variant(f"{place}_both", both, shows=shows[3], truth=PINNED_NON_BLOCKING),
    )


EXPERIMENT = Experiment(
    name="host_work",
    title="Work for the CPU, before or after the model call",
    shows="Work between the copy and the model call runs while the copy does, if the call does not block.",
    sizes={
        "small": {"numbers": 1_000_000, "cpu_matrix": 1024},
        "paper": {"numbers": 1_000_000, "cpu_matrix": 1024},
    },
    prepare=prepare,
    variants=(
        *variants(
            "after",
            False,
            (
                "The call copies and blocks; the work runs beside the model only.",
                "The copy is faster, but the call waits for it.",
                "Pageable memory makes the call block whatever was asked for.",
                "The call returns at once; the work runs beside the copy and the model.",
            ),
        ),
        *variants(
            "between",
            True,
            (
                "The copy is done before the work begins, so nothing runs beside it.",
                "The copy is faster, but the work begins only when it is done.",
                "Pageable memory makes the call block whatever was asked for.",
                "The call returns at once and the work runs while the copy does.",
            ),
        ),
    ),
    faster=(("after_both", "after_none"), ("between_both", "between_none")),
    warmup_steps=2,
    recorded_steps=3,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
