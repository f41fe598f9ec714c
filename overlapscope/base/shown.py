"""How a result shows itself, where Python or a notebook shows it unasked: not as all its numbers."""

from __future__ import annotations


class Shown:
    """A result that `views.notebook` knows."""

    __slots__ = ()

    def __repr__(self) -> str:
        from overlapscope.render import notebook

        return notebook.sentence(self)

    def _repr_html_(self) -> str:
        from overlapscope.render import notebook

        return notebook.screen(self)
