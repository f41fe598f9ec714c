"""Changes that `overlapscope try` can make to a running program, in the order of the trials: later changes build on
earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Change:
    """A change, with its words."""

    id: str
    title: str
    """Phrase for its effect: `load batches in worker processes`."""
    predicted_by: tuple[str, ...]
    """Interventions of `whatif` that predict it; empty if there are none."""
    advice: str
    """How to make it by hand if no edit can be shown: sentences, with code in backticks."""
    unasked: bool = True
    """True if it is tried by default."""


_ALL: Final = (
    Change(
        "workers",
        "load batches in worker processes",
        ("faster-loader",),
        "Pass `num_workers=N, persistent_workers=True` to the DataLoader.",
    ),
    Change(
        "pin",
        "upload from pinned memory",
        ("pin",),
        "Pass `pin_memory=True` to the DataLoader, or write `x.pin_memory().to(device, non_blocking=True)`.",
    ),
    Change(
        "non-blocking",
        "upload without blocking the host",
        ("non-blocking",),
        "Pass `non_blocking=True` to `.to()`, `.cuda()` and `.copy_()` where the source is pinned.",
    ),
    Change(
        "prefetch",
        "copy each batch to the GPU one step ahead",
        ("side-stream", "prefetch"),
        "Take the next batch before the step, copy it on a CUDA stream of its own, let the current stream wait for "
        "that stream, and call `record_stream` on its tensors.",
    ),
    Change(
        "graph",
        "launch kernels as a CUDA graph",
        ("graph",),
        'Call `model.compile(mode="reduce-overhead")`, or use `torch.cuda.make_graphed_callables`.',
    ),
    Change("fused", "use a fused optimizer", (), "Pass `fused=True` to the optimizer."),
    Change(
        "late-item",
        "read values one step later",
        ("no-sync aten::item",),
        "Copy the value with `non_blocking=True` into pinned memory, and read it a step later.",
        unasked=False,
    ),
)

CHANGES: Final = {change.id: change for change in _ALL}
