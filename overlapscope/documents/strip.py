"""A timeline strip in characters: a line per stream, a character per slice of time."""

from __future__ import annotations

from msgspec import Struct

from overlapscope.trace.model import Kind

LABEL_WIDTH = 14
"""Width of the labels to the left of the drawing, in characters."""


class Glyphs(Struct, frozen=True):
    """Characters of a drawing."""

    compute: str
    """From nearly empty to full."""
    level: str
    """From nearly empty to full, for the two lines of totals."""
    empty: str
    rule: str


UNICODE = Glyphs(compute="░▒▓█", level="▁▂▃▄▅▆▇█", empty="·", rule="─")
ASCII = Glyphs(compute="-+=#", level=".:-=+*#", empty=".", rule="-")


class Line(Struct, frozen=True):
    """A label and its characters, each with the kind that it stands for, if any."""

    label: str
    text: str
    kinds: tuple[Kind | None, ...]


class Drawing(Struct, frozen=True):
    """A strip as text."""

    title: str
    lanes: tuple[Line, ...]
    totals: tuple[Line, ...]
    """Exposed copies and idle time over all streams."""
    scale: str
    legend: str

    def plain(self) -> list[str]:
        """Return all lines except the title, without color."""
        lines = [f"{line.label:<{LABEL_WIDTH}}{line.text}" for line in (*self.lanes, *self.totals)]
        tail = [self.scale, f"{'':<{LABEL_WIDTH}}{self.legend}"]
        return [*lines, *(line for line in tail if line.strip())]
