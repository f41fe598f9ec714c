"""Storing activations on the host: `.cpu()`, `.cpu().pin_memory()`, or a pinned buffer allocated in advance.

From the offload article (A800): 30 layers with two float16 tensors of (1, 16800, 1536) each, 49.22 MiB, are stored on
the host and loaded back, 2953 MiB either way. `.cpu()` takes new pageable memory every time. Pinning its result makes
the way back fast, but page-locks new memory and copies once more. With buffers allocated in advance, both ways run at
the link's rate.

The figures are of the first pass, tensor by tensor with a wait after each, and of a second one with all at once
(`bulk`). "Per layer" is per tensor, as in the article. PyTorch keeps freed pinned memory, so page-locking shows in the
first pass only. All later passes, including the timed and recorded ones, find pinned memory ready, and
`.cpu().pin_memory()` is faster there. Look at `pageable-memory` and `pin-in-loop`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

TENSORS_PER_LAYER = 2
SHAPE = (1, 16800, 1536)


def elapsed_ms(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def prepare(layers: int, how: Literal["cpu", "cpu_pin_memory", "preallocated"]) -> Program:
    numbers = range(layers * TENSORS_PER_LAYER)
    tensors = [torch.ones(SHAPE, dtype=torch.float16, device="cuda") for _ in numbers]
    pinned = how == "preallocated"
    buffers = [torch.ones(SHAPE, dtype=torch.float16, pin_memory=True) for _ in numbers if pinned]
    stored: dict[int, torch.Tensor] = {}

    def store(number: int) -> None:
        if how == "preallocated":
            stored[number] = buffers[number].copy_(tensors[number], non_blocking=True)
        elif how == "cpu":
            stored[number] = tensors[number].cpu()
        else:
            stored[number] = tensors[number].cpu().pin_memory()

    def load(number: int) -> None:
        tensors[number].copy_(stored[number], non_blocking=True)

    def store_all() -> None:
        for number in numbers:
            store(number)

    def load_all() -> None:
        for number in numbers:
            load(number)

    def step() -> None:
        store_all()
        torch.cuda.synchronize()
        load_all()
        torch.cuda.synchronize()
        stored.clear()

    stores = [elapsed_ms(partial(store, number)) for number in numbers]
    loads = [elapsed_ms(partial(load, number)) for number in numbers]
    figures = {
        "store_ms": sum(stores),
        "load_ms": sum(loads),
        "per_layer_store_ms": statistics.mean(stores),
        "per_layer_store_std_ms": statistics.stdev(stores),
        "per_layer_load_ms": statistics.mean(loads),
        "per_layer_load_std_ms": statistics.stdev(loads),
    }
    stored.clear()
    figures["bulk_store_ms"] = elapsed_ms(store_all)
    figures["bulk_load_ms"] = elapsed_ms(load_all)
    stored.clear()
    return Program(step, figures=lambda: figures)


EXPERIMENT = Experiment(
    name="offload_store",
    title="Storing activations on the host and loading them back",
    shows="A pinned buffer made beforehand is by far the fastest place to store activations.",
    sizes={"small": {"layers": 4}, "paper": {"layers": 30}},
    prepare=prepare,
    variants=(
        Variant(
            "cpu",
            {"how": "cpu"},
            shows="New pageable memory for every tensor: slow both ways.",
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 0.0),
                findings=("pageable-memory",),
                no_findings=("pin-in-loop", "blocking-copy"),
                least_share=0.95,
            ),
            published={"store_ms": 1595.6, "load_ms": 314.4, "per_layer_store_ms": 26.59},
        ),
        Variant(
            "cpu_pin_memory",
            {"how": "cpu_pin_memory"},
            shows="Stored twice, into pageable and then into pinned memory; the way back is fast.",
            # Stores go from the GPU into pageable memory, far slower than the loads from pinned memory.
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 0.0),
                findings=("pageable-memory", "pin-in-loop"),
            ),
            published={"store_ms": 3327.3, "load_ms": 121.0, "per_layer_store_ms": 55.45},
        ),
        Variant(
            "preallocated",
            {"how": "preallocated"},
            shows="Both ways at the link's rate.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 0.0),
                no_findings=("pageable-memory", "pin-in-loop", "blocking-copy"),
                least_share=0.95,
            ),
            published={"store_ms": 137.9, "load_ms": 116.5, "per_layer_store_ms": 2.30},
        ),
    ),
    published_on="A800, offload article",
    faster=(("preallocated", "cpu"), ("preallocated", "cpu_pin_memory")),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
