"""Six ways to send a thousand tensors to the GPU, by the place of pinning and by waits of the host.

From the PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()": a thousand tensors of a million
floats (4 GB) come from pageable memory, from memory that was pinned beforehand, or are pinned just before their copy,
each with and without `non_blocking=True` and a single synchronize at the end.

Look at the memory kind of the copies and at the idle time between them. Memory pinned beforehand is the fastest source,
pinning on the way the slowest, because the host's copy comes before the GPU's. `non_blocking` helps least with pageable
memory, because the call blocks anyway. Nothing computes, so no copy can be hidden.
"""

from __future__ import annotations

from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant


def prepare(
    tensors: int,
    elements: int,
    recorded_tensors: int,
    memory: Literal["pageable", "pinned", "pin_then_copy"],
    non_blocking: bool,
) -> Program:
    # The published figures were taken with a single CPU thread, by torch.utils.benchmark's Timer.
    torch.set_num_threads(1)
    sources = [torch.ones(elements, pin_memory=memory == "pinned") for _ in range(tensors)]

    def copy(count: int) -> None:
        copies = []
        for source in sources[:count]:
            if memory == "pin_then_copy":
                source = source.pin_memory()
            copies.append(source.to("cuda", non_blocking=non_blocking))
        if non_blocking:
            torch.cuda.synchronize()

    return Program(lambda: copy(tensors), recorded_step=lambda: copy(recorded_tensors))


PAGEABLE = Truth(
    exposed_copy="pageable-memory",
    hidden_copy_pct=(0.0, 0.0),
    findings=("pageable-memory",),
    no_findings=("pin-in-loop", "blocking-copy"),
    least_share=0.95,
)

EXPERIMENT = Experiment(
    name="pin_strategies",
    title="Pageable, pinned, or pinned on the way",
    shows="Memory pinned beforehand is the fastest source; pinning right before each copy is the slowest.",
    sizes={
        "small": {"tensors": 250, "elements": 1_000_000, "recorded_tensors": 100},
        "paper": {"tensors": 1000, "elements": 1_000_000, "recorded_tensors": 100},
    },
    prepare=prepare,
    variants=(
        Variant(
            "pageable_blocking",
            {"memory": "pageable", "non_blocking": False},
            shows="The driver stages every copy, and the host waits for it.",
            truth=PAGEABLE,
            published={"wall_ms": 616.8},
        ),
        Variant(
            "pageable_non_blocking",
            {"memory": "pageable", "non_blocking": True},
            shows="The driver stages every copy inside the call, which blocks whatever was asked for.",
            truth=PAGEABLE,
            published={"wall_ms": 544.1},
        ),
        Variant(
            "pinned_blocking",
            {"memory": "pinned", "non_blocking": False},
            shows="The copies are fast, and between them the GPU waits for the host, which has waited for it.",
            truth=Truth(
                exposed_copy="no-compute",
                idle="host-sync",
                hidden_copy_pct=(0.0, 0.0),
                findings=("blocking-copy",),
                no_findings=("pageable-memory", "pin-in-loop"),
            ),
            published={"wall_ms": 371.1},
        ),
        Variant(
            "pinned_non_blocking",
            {"memory": "pinned", "non_blocking": True},
            shows="Copies follow one another at the link's rate.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 0.0),
                no_findings=("pageable-memory", "blocking-copy", "pin-in-loop"),
                least_share=0.95,
            ),
            published={"wall_ms": 345.9},
        ),
        Variant(
            "pin_then_copy_blocking",
            {"memory": "pin_then_copy", "non_blocking": False},
            shows="The host copies, then the GPU does: every tensor goes twice, one after the other.",
            # Between the end of a copy and the next call, the host pins memory, which takes a copy of the same size.
            truth=Truth(
                exposed_copy="no-compute",
                idle="host-staging",
                hidden_copy_pct=(0.0, 0.0),
                findings=("pin-in-loop",),
                no_findings=("pageable-memory",),
            ),
            published={"wall_ms": 996.5},
        ),
        Variant(
            "pin_then_copy_non_blocking",
            {"memory": "pin_then_copy", "non_blocking": True},
            shows="The host pins the next tensor while the GPU copies this one; the slower of the two sets the pace.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 0.0),
                no_findings=("pageable-memory", "blocking-copy"),
                least_share=0.95,
            ),
            published={"wall_ms": 678.0},
        ),
    ),
    published_on="PyTorch tutorial, GPU not stated",
    faster=(
        ("pinned_non_blocking", "pinned_blocking"),
        ("pinned_blocking", "pageable_non_blocking"),
        ("pageable_non_blocking", "pageable_blocking"),
        ("pageable_blocking", "pin_then_copy_non_blocking"),
        ("pin_then_copy_non_blocking", "pin_then_copy_blocking"),
    ),
    warmup_steps=1,
    recorded_steps=2,
    recorded="an iteration sends 100 of the tensors",
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
