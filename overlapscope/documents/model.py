"""The document model: each result is built once as a document, which every renderer draws as well as it can.

Reports, diffs, checks, predictions, ranks and the laboratory each build a document. `render` draws it for a terminal,
as markdown and as HTML, and the dashboard draws it as components. Text from a trace has gone through `clean` before it
gets here; renderers escape the characters that are special in their syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import Unit, listed, shares_of
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.documents.table import Table, Tone
from overlapscope.trace.model import Kind

Figure = dict[str, Any]
"""A Plotly figure: `data` and `layout`."""


class Span(Struct, frozen=True):
    """A highlighted piece of a sentence."""

    text: str
    tone: Tone = ""
    strong: bool = False
    code: bool = False
    detail: bool = False
    """Marks the span as a detail, which `brief` leaves out."""


Words = str | tuple[str | Span, ...]
"""A sentence or several; line breaks are kept."""


def pieces(words: Words) -> tuple[Span, ...]:
    """Return the words as spans."""
    parts = (words,) if isinstance(words, str) else words
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def with_code(text: str) -> Words:
    """Return text whose parts in backticks are code."""
    return tuple(Span(part, code=True) if number % 2 else part for number, part in enumerate(text.split("`")) if part)


class Heading(Struct, frozen=True):
    """A title: level 1 for the document, 2 for a chapter, 3 for a part."""

    text: str
    level: Literal[1, 2, 3] = 2
    tone: Tone = ""


class Text(Struct, frozen=True):
    """A paragraph."""

    words: Words
    tone: Tone = ""
    strong: bool = False
    badge: str = ""
    """A level such as `good`. Files print it before the text; a terminal shows its color, unless `tone` sets another.
    """


class Items(Struct, frozen=True):
    """A list of sentences."""

    items: tuple[Words, ...]
    sign: str = "-"
    """Sign before each item in a terminal."""
    tone: Tone = ""
    few: int | None = None
    """Number of items that belong to the answer, the rest being details; None if all do."""


class Code(Struct, frozen=True):
    """Text shown verbatim, such as a program."""

    text: str
    title: str = ""
    language: str = "python"
    """Name of the language in markdown."""


class Links(Struct, frozen=True):
    """Table of contents of a long HTML file."""

    texts: dict[str, str]
    """Text of each link by the `id` of its target."""


class Chart(Struct, frozen=True):
    """A figure, for renderers that can draw it. Other blocks give the same facts to those that can't."""

    id: str
    """Id of the element that holds it, unique in the document."""
    title: str
    figure: Callable[[bool], Figure]
    """Makes the figure for a dark or light background; only renderers that can show it call this."""
    note: str = ""
    wide: bool = False


class Part(Struct, frozen=True):
    """A part of a whole; `share` is a percentage without its sign, `color` a name of the palette."""

    name: str
    amount: int
    text: str
    share: str
    color: str


class Bar(Struct, frozen=True):
    """Parts of a whole side by side. A terminal leaves it out, since its tables have the figures."""

    parts: tuple[Part, ...]
    rest: int = 0
    """Amount by which the longest of several bars is longer."""


LABEL_WIDTH = 14
"""Width of the labels to the left of a timeline in characters."""


class Glyphs(Struct, frozen=True):
    """Characters to draw a timeline with."""

    compute: str
    """From nearly empty to full."""
    level: str
    """From nearly empty to full, for the two lines of totals."""
    empty: str
    rule: str


UNICODE = Glyphs(compute="░▒▓█", level="▁▂▃▄▅▆▇█", empty="·", rule="─")
ASCII = Glyphs(compute="-+=#", level=".:-=+*#", empty=".", rule="-")


class StripLine(Struct, frozen=True):
    """A line of a timeline in characters, each with the kind that it stands for, if any."""

    label: str
    text: str
    kinds: tuple[Kind | None, ...]


class Drawing(Struct, frozen=True):
    """A timeline in characters."""

    title: str
    lanes: tuple[StripLine, ...]
    totals: tuple[StripLine, ...]
    """Exposed copies and idle time over all streams."""
    scale: str
    legend: str

    def plain(self) -> list[str]:
        """Return all lines except the title, without color."""
        lines = [f"{line.label:<{LABEL_WIDTH}}{line.text}" for line in (*self.lanes, *self.totals)]
        tail = [self.scale, f"{'':<{LABEL_WIDTH}}{self.legend}"]
        return [*lines, *(line for line in tail if line.strip())]


class StripBlock(Struct, frozen=True):
    """A timeline drawn in characters."""

    draw: Callable[[Glyphs], Drawing]


class TimelineBlock(Struct, frozen=True):
    """A timeline to zoom into, in an HTML file only."""

    id: str
    data: Any
    """JSON that its scripts draw."""
    scripts: Sequence[str] = ()
    styles: Sequence[str] = ()


class Example(Struct, frozen=True):
    """An example in a timeline of the document, relative to its origin, and the view to show around it."""

    timeline: str
    start_ns: int
    end_ns: int
    view_start_ns: int
    view_end_ns: int


class FindingBlock(Struct, frozen=True):
    """A finding: its cost, the evidence for it, and the change to make."""

    severity: Literal["error", "warning", "info"]
    rule: str
    title: str
    cost: str
    """`saves about 3.2 ms (4.1%), by replay`; empty for what costs nothing."""
    evidence: tuple[str, ...]
    line: str
    """The line of code that it is about; empty if unknown."""
    call: str
    """The op and the call there; empty if unknown."""
    advice: str
    """The change to make in the first line, how to make it in the lines after."""
    proof: str = ""
    """The command that shows what the fix saves."""
    number: int = 0
    """Position among all findings, from 1; 0 if they are not numbered."""
    where: str = ""
    """`on rank 0, also on rank 1`, in a document of several ranks."""
    example: Example | None = None

    @property
    def place(self) -> str:
        """The line, op and call, as far as they are known."""
        return ", ".join(filter(None, (self.line, self.call)))


class Section(Struct, frozen=True):
    """A group of blocks."""

    blocks: tuple[Block, ...]
    title: str = ""
    kind: Literal["", "panel", "columns", "verdict", "article"] = ""
    """Layout in HTML: a box, columns, the answer, a chapter. A terminal shows short tables of `columns` side by side if
    there is room."""
    tone: Tone = ""
    folded: bool = False
    """True if readers have to click to open it."""
    id: str = ""
    """Id of the element, unique in the document."""
    detail: str = ""
    """Its name in `-v`'s hint if it is a detail, in a word or two; `brief` leaves details out."""


Block = (
    Heading | Text | Items | Code | Links | Table | Chart | Bar | StripBlock | TimelineBlock | FindingBlock | Section
)


class Document(Struct, frozen=True):
    """A result to be shown."""

    title: str
    """Title of the window or tab."""
    blocks: tuple[Block, ...]


def columns(tables: Iterable[Table]) -> tuple[Block, ...]:
    """Return the tables that have rows, side by side."""
    shown = tuple(table for table in tables if table.rows)
    return (Section(shown, kind="columns"),) if shown else ()


def panel(title: str, *blocks: Block, folded: bool = False, tone: Tone = "") -> Section:
    """Return a box with a title."""
    return Section(blocks, title, "panel", tone=tone, folded=folded)


def bar_of(parts: Mapping[str, int], unit: Unit, most_ns: int = 0) -> Bar:
    """Return times by the name of their bucket as a bar, whose shares add up to 100.

    Args:
        parts: The times in nanoseconds.
        unit: Their unit.
        most_ns: Length of the longest of several bars, beside which this one is drawn to scale.
    """
    whole_ns = sum(parts.values())
    shares = shares_of(parts, whole_ns)
    amounts = ((name, ns) for name, ns in parts.items() if ns)
    drawn = (Part(name, ns, unit.text(ns), shares[name], BUCKETS[name].id) for name, ns in amounts)
    return Bar(tuple(drawn), max(0, most_ns - whole_ns))


# -- Answer and details ----------------------------------------------------------------------------


EVIDENCE = "evidence"
"""Name of the detail that has the evidence for findings."""


def detail(what: str, blocks: Iterable[Block]) -> tuple[Section, ...]:
    """Return blocks as a detail with a name of a word or two; nothing if there are none."""
    parts = tuple(blocks)
    return (Section(parts, detail=what),) if parts else ()


def brief(document: Document) -> Document:
    """Return the document without its details, ending with a hint of what `-v` adds.

    Findings keep their first line of advice.
    """
    left_out: dict[str, None] = {}
    blocks = tuple(_without_detail(document.blocks, left_out))
    if left_out:
        blocks += (Text(f"Add -v for {listed(left_out)}.", "muted"),)
    return replace(document, blocks=blocks)


def _without_detail(blocks: Iterable[Block], left_out: dict[str, None]) -> Iterator[Block]:
    """Yield the blocks that stay, and add the name of each detail to `left_out`."""
    for block in blocks:
        if isinstance(block, Section) and block.detail:
            left_out[block.detail] = None
        elif isinstance(block, Section):
            yield replace(block, blocks=tuple(_without_detail(block.blocks, left_out)))
        elif isinstance(block, FindingBlock):
            left_out[EVIDENCE] = None
            yield replace(block, evidence=(), call="", advice=block.advice.partition("\n")[0])
        elif isinstance(block, Items):
            items = tuple(
                item
                if isinstance(item, str)
                else tuple(part for part in item if isinstance(part, str) or not part.detail)
                for item in block.items[: block.few]
            )
            if items != block.items:
                left_out[EVIDENCE] = None
            yield replace(block, items=items)
        elif isinstance(block, Table) and block.few is not None and len(block.rows) > block.few:
            left_out["all rows"] = None
            yield replace(block, rows=block.rows[: block.few])
        else:
            yield block


# -- Limited room ----------------------------------------------------------------------------------


class Room(Struct, frozen=True):
    """Number of bytes that a place has for drawn blocks, such as a comment on GitHub."""

    drawn: Callable[[Iterable[Block]], Iterable[str]]
    """Draws blocks as lines."""
    size: int

    def less(self, blocks: Iterable[Block]) -> Room:
        """Return the room that remains after some blocks."""
        return replace(self, size=self.size - self._bytes(blocks))

    def part(self, parts: int) -> Room:
        """Return one of `parts` equal parts."""
        return replace(self, size=self.size // parts)

    def fitting(self, blocks: Sequence[Block]) -> int:
        """Return how many of the first blocks fit."""
        remaining = self.size
        for number, block in enumerate(blocks):
            remaining -= self._bytes([block])
            if remaining < 0:
                return number
        return len(blocks)

    def rows(self, table: Table) -> int:
        """Return how many of a table's first rows fit."""
        head = self._bytes([replace(table, rows=table.rows[:1])])
        remaining = self.size
        for number, row in enumerate(table.rows):
            remaining -= self._bytes([replace(table, rows=(table.rows[0], row))]) - head
            if remaining < 0:
                return number
        return len(table.rows)

    def _bytes(self, blocks: Iterable[Block]) -> int:
        return sum(len(line.encode("utf-8", "replace")) + 1 for line in self.drawn(blocks))
