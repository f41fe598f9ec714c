"""The cost of pinning: a copy from pageable memory, a copy from pinned memory, and pinning first.

One tensor of a million floats, as in the PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()". The
copy from pinned memory is faster, but pinning takes a copy on the host, so that `tensor.pin_memory().to("cuda")` takes
longer than the plain `tensor.to("cuda")` that it is meant to speed up.

Look at `pin_memory_to`: the GPU is idle while the host pins (`pin-in-loop`). `pin_memory` alone leaves no trace on the
GPU. PyTorch keeps and reuses freed pinned memory, so the time here is that of the host's copy; page-locking new memory
takes even longer.
"""

from __future__ import annotations

from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

RECORDED_CALLS = 50


def prepare(elements: int, pinned: bool, call: Literal["to", "pin_memory", "pin_memory_to"]) -> Program:
    # The published figures were taken with a single CPU thread, by torch.utils.benchmark's Timer.
    torch.set_num_threads(1)
    tensor = torch.randn(elements, pin_memory=pinned)

    def step() -> torch.Tensor:
        if call == "to":
            return tensor.to("cuda")
        if call == "pin_memory":
            return tensor.pin_memory()
        return tensor.pin_memory().to("cuda")

    def recorded_step() -> None:
        for _ in range(RECORDED_CALLS):
            step()

    return Program(step, recorded_step)


EXPERIMENT = Experiment(
    name="pin_cost",
    title="What pinning costs",
    shows="A copy from pinned memory is faster, but pinning first costs more than it saves.",
    sizes={"small": {"elements": 1_000_000}, "paper": {"elements": 1_000_000}},
    prepare=prepare,
    variants=(
        Variant(
            "pageable_to",
            {"pinned": False, "call": "to"},
            shows="The driver copies through a pinned buffer of its own, piece by piece.",
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 0.0),
                findings=("pageable-memory",),
                no_findings=("pin-in-loop", "blocking-copy"),
                least_share=0.95,
            ),
            published={"wall_ms": 0.4667},
        ),
        Variant(
            "pinned_to",
            {"pinned": True, "call": "to"},
            shows="The copy goes at the link's rate; the host still waits for it.",
            # Nothing computes. The host waits for each copy before it calls the next.
            truth=Truth(
                exposed_copy="no-compute",
                idle="host-sync",
                hidden_copy_pct=(0.0, 0.0),
                findings=("blocking-copy",),
                no_findings=("pageable-memory", "pin-in-loop"),
            ),
            published={"wall_ms": 0.3703},
        ),
        Variant(
            "pin_memory",
            {"pinned": False, "call": "pin_memory"},
            shows="Pinning is work for the host alone: nothing happens on the GPU.",
            published={"wall_ms": 0.3607},
        ),
        Variant(
            "pin_memory_to",
            {"pinned": False, "call": "pin_memory_to"},
            shows="The host copies first, then the GPU does: both one after the other.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 0.0),
                findings=("pin-in-loop",),
                no_findings=("pageable-memory",),
                least_share=0.95,
            ),
            published={"wall_ms": 0.7238},
        ),
    ),
    published_on="PyTorch tutorial, GPU not stated",
    faster=(("pinned_to", "pageable_to"), ("pageable_to", "pin_memory_to")),
    warmup_steps=1,
    recorded_steps=3,
    recorded=f"an iteration is {RECORDED_CALLS} calls in a row",
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
