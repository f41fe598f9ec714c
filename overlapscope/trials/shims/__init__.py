"""The changes of `catalog.changes`, made to torch while a program runs: each in a module of its own.

A shim replaces functions of torch by ours around them, as long as it is on. Where it does not fit, the program goes on
as it is, and a note says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from msgspec import Struct, field

from overlapscope.base.registry import Registry
from overlapscope.base.words import clean
from overlapscope.catalog.changes import CHANGES
from overlapscope.recorder.wrapping import Undo
from overlapscope.trials.protocol import Setting


class Notes(Struct):
    """What became of the changes in this process, by their ids."""

    made: Counter[str] = field(default_factory=Counter)
    """How often each did something."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why one could not be made, a sentence each."""
    stepping: bool = False
    """The program has made its first step."""
    after_step: list[Callable[[], object]] = field(default_factory=list)
    """Called at the end of each."""

    def step(self) -> None:
        """The program has made a step."""
        self.stepping = True
        for call in tuple(self.after_step):
            call()


class Note(Struct, frozen=True):
    """Those of one change."""

    change: str
    notes: Notes

    @property
    def stepping(self) -> bool:
        """The program has made its first step."""
        return self.notes.stepping

    def made(self) -> None:
        """It did something."""
        self.notes.made[self.change] += 1

    def after_step(self, call: Callable[[], object]) -> Undo:
        """Have it called at the end of each step, until that is undone."""
        self.notes.after_step.append(call)
        return partial(self.notes.after_step.remove, call)

    def refuse(self, why: str) -> None:
        """It could not be made: a sentence."""
        self.notes.refused.setdefault(self.change, clean(why))


Shim = Callable[[str, Note], Undo]
"""Makes a change with this value from now on. What it returns unmakes it."""

SHIMS: Registry[Shim] = Registry("overlapscope.trials.shims", "start", CHANGES)


def make(changes: Iterable[Setting], notes: Notes) -> Undo:
    """Make them. Those that come later in the catalogue are nearer to torch: what one does, they see."""
    undo = ExitStack()
    order = list(CHANGES)
    for setting in sorted(changes, key=lambda setting: order.index(setting.change), reverse=True):
        try:
            undo.callback(SHIMS[setting.change](setting.value, Note(setting.change, notes)))
        except Exception as error:
            notes.refused[setting.change] = clean(f"It could not be made: {type(error).__name__}: {error}.")
    return undo.close
