"""How a result shows itself, where Python or a notebook shows it unasked: not as all its numbers."""

from __future__ import annotations

from typing import ClassVar

from overlapscope.base.registry import load

_drawn_by = ""


def bind(module: str) -> None:
    """Name the module whose `sentence` and `screen` draw results; it is loaded when one is shown."""
    global _drawn_by  # noqa: PLW0603 - said once, by the package itself
    _drawn_by = module


class Shown:
    """A result that shows itself by its verdict, and in a notebook by the beginning of what the command line prints."""

    __slots__ = ()

    said_by: ClassVar[str] = ""
    """Where the function is that has the verdict and the document of a result that drawing knows nothing of."""

    def __repr__(self) -> str:
        text: str = load(f"{_drawn_by}:sentence")(self)
        return text

    def _repr_html_(self) -> str:
        text: str = load(f"{_drawn_by}:screen")(self)
        return text
