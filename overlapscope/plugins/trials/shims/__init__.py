"""The changes of `changes.CHANGES`, made to torch in a running program.

A shim wraps functions of torch while it is active. If it does not fit, the program continues unchanged, and a note has
the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from msgspec import Struct, field

from overlapscope.base.registry import load
from overlapscope.base.words import clean
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.protocol import Setting
from overlapscope.recorder.wrapping import Undo


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
            shim: Shim = load(f"{__name__}.{CHANGES[setting.change].shim}")
            undo.callback(shim(setting.value, Note(setting.change, notes)))
        except Exception as error:
            notes.refused[setting.change] = clean(f"It could not be made: {type(error).__name__}: {error}.")
    return undo.close
