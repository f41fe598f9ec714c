"""Words of `overlapscope try`, for `overlapscope explain` and for assistants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from overlapscope.base.words import capital, listed
from overlapscope.glossary import GlossaryEntry, titled
from overlapscope.plugin import Skill
from overlapscope.plugins.trials.changes import CHANGES

_SKILL: Final = """\
## Trying changes

If the program can be run, `try` finds the changes that pay, measures them, and shows the edits. Its changes:
"""


def words() -> Iterator[GlossaryEntry]:
    """Yield the changes."""
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
                    f"`overlapscope try --only {change.id} SCRIPT` tries it alone."
                    if change.unasked
                    else f"It is tried only if asked for: `overlapscope try --with {change.id} SCRIPT`.",
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
