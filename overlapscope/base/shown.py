"""Display of results in Python and in notebooks, instead of all their numbers."""

from __future__ import annotations

from typing import ClassVar

from overlapscope.base.registry import load

_drawn_by = ""


def bind(module: str) -> None:
    """Set the module whose `sentence` and `screen` draw results. It is loaded when a result is shown."""
    global _drawn_by  # noqa: PLW0603 - said once, by the package itself
    _drawn_by = module


class Shown:
    """A result that Python shows by its verdict, and a notebook by the beginning of the command line's output."""

    __slots__ = ()

    shown_by: ClassVar[str] = ""
    """`package.module:name` of a function that returns verdict and document, if the drawing module has none."""

    def __repr__(self) -> str:
        text: str = load(f"{_drawn_by}:sentence")(self)
        return text

    def _repr_html_(self) -> str:
        text: str = load(f"{_drawn_by}:screen")(self)
        return text
