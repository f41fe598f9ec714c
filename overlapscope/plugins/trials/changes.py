"""Changes that `overlapscope try` can make to a running program, in the order of the trials.

Each may build on those before it. Programs under `try` import this module, so it reads no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from overlapscope.base.registry import load
from overlapscope.base.words import capital, clean, listed
from overlapscope.plugin import Skill
from overlapscope.plugins.trials.protocol import Setting
from overlapscope.recorder.wrapping import Undo

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


# -- Changes of a running program ---------------------------------------------------------------------


class Notes(Struct):
    """Effects of the changes in this process, by their ids."""

    effects: Counter[str] = field(default_factory=Counter)
    """Number of times each change took effect."""
    refused: dict[str, str] = field(default_factory=dict)
    """Sentences on why changes could not be made."""
    stepping: bool = False
    """True once the program has made a step."""
    after_step: list[Callable[[], object]] = field(default_factory=list)
    """Functions to call at the end of each step."""

    def step(self) -> None:
        """Handle the end of a step."""
        self.stepping = True
        for call in tuple(self.after_step):
            call()


class Note(Struct, frozen=True):
    """The notes of a change."""

    change: str
    notes: Notes

    @property
    def stepping(self) -> bool:
        """True once the program has made a step."""
        return self.notes.stepping

    def count(self) -> None:
        """Count an effect of the change."""
        self.notes.effects[self.change] += 1

    def after_step(self, call: Callable[[], object]) -> Undo:
        """Call a function at the end of each step, until the returned function is called."""
        self.notes.after_step.append(call)
        return partial(self.notes.after_step.remove, call)

    def refuse(self, why: str) -> None:
        """Note a sentence on why the change could not be made."""
        self.notes.refused.setdefault(self.change, clean(why))


Shim = Callable[[str, Note], Undo]
"""Makes a change with this value, and returns a function that undoes it."""


def make(changes: Iterable[Setting], notes: Notes) -> Undo:
    """Make the changes. Later changes of the catalogue are closer to torch, so they see the effects of the earlier."""
    undo = ExitStack()
    order = list(CHANGES)
    for setting in sorted(changes, key=lambda setting: order.index(setting.change), reverse=True):
        try:
            shim: Shim = load(f"{__package__}.shims.{CHANGES[setting.change].shim}")
            undo.callback(shim(setting.value, Note(setting.change, notes)))
        except Exception as error:
            notes.refused[setting.change] = clean(f"It could not be made: {type(error).__name__}: {error}.")
    return undo.close


# -- Texts -------------------------------------------------------------------------------------------

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
