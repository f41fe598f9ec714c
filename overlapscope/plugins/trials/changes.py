"""Changes that `overlapscope try` can make to a running program, in the order of the trials.

Each may build on those before it. Programs under `try` import this module, so it reads no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from overlapscope.base.words import capital, listed
from overlapscope.plugin import Skill

if TYPE_CHECKING:
    from overlapscope.glossary import GlossaryEntry


class Change(Struct, frozen=True):
    """A change, with its texts."""

    id: str
    shim: str
    """Place of its `Shim` in `shims`, which is imported when it is made: `options:start_workers`."""
    title: str
    """Phrase for its effect: `load batches in worker processes`."""
    advice: str
    """How to make it by hand if no edit can be shown: sentences, with code in backticks."""
    predicted_by: tuple[str, ...] = ()
    """Interventions of `whatif` that predict it; empty if there are none."""
    unpredicted: tuple[str, ...] = ()
    """Values that `predicted_by` does not fit."""

    def interventions(self, value: str) -> tuple[str, ...]:
        """Return the interventions that predict the change with a value; empty if there are none."""
        return () if value in self.unpredicted else self.predicted_by


COMPILE_MODES: Final = {"compile": "reduce-overhead", "fuse": "default"}
"""Modes of `torch.compile` by values of `graph`."""

CHANGES: Final = {
    each.id: each
    for each in (
        Change(
            "workers",
            "options:start_workers",
            "load batches in worker processes",
            "Pass `num_workers=N, persistent_workers=True` to the DataLoader.",
            predicted_by=("faster-loader",),
        ),
        Change(
            "pin",
            "copies:start_pin",
            "upload from pinned memory",
            "Pass `pin_memory=True` to the DataLoader, or write `x.pin_memory().to(device, non_blocking=True)`.",
            predicted_by=("pin",),
        ),
        Change(
            "non-blocking",
            "copies:start_non_blocking",
            "upload without blocking the host",
            "Pass `non_blocking=True` to `.to()`, `.cuda()` and `.copy_()` where the source is pinned.",
            predicted_by=("non-blocking",),
        ),
        Change(
            "prefetch",
            "copies:start_ahead",
            "copy each batch to the GPU one step ahead",
            "Take the next batch before the step, copy it on a CUDA stream of its "
            "own, let the current stream wait for that stream, and call `record_stream` on its tensors.",
            predicted_by=("side-stream", "prefetch"),
        ),
        Change(
            "graph",
            "options:start_graph",
            "compile the model",
            'Call `model.compile(mode="reduce-overhead")` or `model.compile()`.',
            predicted_by=("graph",),
            unpredicted=("fuse",),
        ),
        Change(
            "fused",
            "options:start_fused",
            "use a fused optimizer",
            "Pass `fused=True` to the optimizer.",
            predicted_by=("fused",),
        ),
        Change(
            "gc",
            "options:start_gc",
            "exempt long-lived objects from garbage collection",
            "Call `gc.collect()` and `gc.freeze()` once, before the loop.",
            predicted_by=("no-gc",),
        ),
        Change(
            "threads",
            "options:start_threads",
            "use as many threads as there are CPUs",
            "Call `torch.set_num_threads(N)`, or set the variable `OMP_NUM_THREADS=N`.",
        ),
    )
}


_SKILL: Final = """\
## Changes of `try`

It makes these in the running program:
"""


def words() -> Iterator[GlossaryEntry]:
    """Yield the changes, for `overlapscope explain`."""
    from overlapscope.glossary import GlossaryEntry, titled

    for change in CHANGES.values():
        predicted = [f"`--{words}`" for words in change.predicted_by]
        yield GlossaryEntry(
            change.id,
            "change of try",
            f"{capital(change.title)}.",
            (
                *titled("The code to change", change.advice),
                *titled(
                    "Related",
                    f"`overlapscope try --only {change.id} SCRIPT` tries it alone.",
                    f"`overlapscope whatif` predicts it with {listed(predicted)}." if predicted else "",
                ),
            ),
        )


def skill() -> Skill:
    """Return the section on `try` in the skill file."""
    return Skill(
        (("Which changes pay, measured on the program itself?", "overlapscope try --format json train.py"),),
        "\n".join((_SKILL, *(f"- `{change.id}`: {change.title}" for change in CHANGES.values()))),
    )
