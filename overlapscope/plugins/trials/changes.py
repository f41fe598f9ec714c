"""Changes that `overlapscope try` can make to a running program, from `changes.toml`, in the order of the trials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from overlapscope.base.words import capital, listed, read_texts
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

_ALL: Final = read_texts(Path(__file__).with_suffix(".toml"), dict[str, tuple[Change, ...]])
CHANGES: Final = {change.id: change for change in _ALL["change"]}


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
