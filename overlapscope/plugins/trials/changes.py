"""Changes that `overlapscope try` can make to a running program, in the order of the trials.

Later changes build on earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from overlapscope.base.words import capital, listed
from overlapscope.plugin import Skill

if TYPE_CHECKING:
    from overlapscope.glossary import GlossaryEntry


@dataclass(frozen=True, slots=True)
class Change:
    """A change, with its texts."""

    id: str
    title: str
    """Phrase for its effect: `load batches in worker processes`."""
    predicted_by: tuple[str, ...]
    """Interventions of `whatif` that predict it; empty if there are none."""
    advice: str
    """How to make it by hand if no edit can be shown: sentences, with code in backticks."""
    unpredicted: tuple[str, ...] = ()
    """Values that `predicted_by` does not fit."""

    def interventions(self, value: str) -> tuple[str, ...]:
        """Return the interventions that predict the change with a value; empty if there are none."""
        return () if value in self.unpredicted else self.predicted_by


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
        "compile the model",
        ("graph",),
        'Call `model.compile(mode="reduce-overhead")` or `model.compile()`.',
        unpredicted=("fuse",),
    ),
    Change("fused", "use a fused optimizer", ("fused",), "Pass `fused=True` to the optimizer."),
    Change(
        "gc",
        "exempt long-lived objects from garbage collection",
        ("no-gc",),
        "Call `gc.collect()` and `gc.freeze()` once, before the loop.",
    ),
    Change(
        "threads",
        "use as many threads as there are CPUs",
        (),
        "Call `torch.set_num_threads(N)`, or set the variable `OMP_NUM_THREADS=N`.",
    ),
)

COMPILE_MODES: Final = {"compile": "reduce-overhead", "fuse": "default"}
"""Modes of `torch.compile` by values of `graph`."""

CHANGES: Final = {change.id: change for change in _ALL}


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
