"""A timeline strip as characters: one line for each stream, one character for each slice of time."""

from __future__ import annotations

from msgspec import Struct

from overlapscope.trace.model import Kind

LABEL_WIDTH = 14
"""Columns to the left of the drawing."""


class Glyphs(Struct, frozen=True):
    """The characters of a drawing."""

    compute: str
    """From little to full."""
    level: str
    """From little to full, for the two lines of totals."""
    empty: str
    rule: str


UNICODE = Glyphs(compute="░▒▓█", level="▁▂▃▄▅▆▇█", empty="·", rule="─")
ASCII = Glyphs(compute="-+=#", level=".:-=+*#", empty=".", rule="-")


class Line(Struct, frozen=True):
    """A label and its characters, each with the kind it stands for (None for none)."""

    label: str
    text: str
    kinds: tuple[Kind | None, ...]


class Drawing(Struct, frozen=True):
    """A strip as text."""

    title: str
    lanes: tuple[Line, ...]
    totals: tuple[Line, ...]
    """Where exposed copies and idle time are, all streams together."""
    scale: str
    legend: str

    def plain(self) -> list[str]:
        """All lines without colour, the title left out."""
        lines = [f"{line.label:<{LABEL_WIDTH}}{line.text}" for line in (*self.lanes, *self.totals)]
        tail = [self.scale, f"{'':<{LABEL_WIDTH}}{self.legend}"]
        return [*lines, *(line for line in tail if line.strip())]
