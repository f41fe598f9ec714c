"""What any result of ours consists of when it is shown: one document, which every renderer draws as well as it can.

A report, a diff, a check, a prediction, ranks or the laboratory say once what they have to say, and in which order.
`render` draws that for a terminal, as markdown and as HTML, the dashboard as its components. Text from a trace has been
made harmless by `clean` before it gets here; what a syntax gives a meaning to is escaped by its renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import listed
from overlapscope.documents.strip import Drawing, Glyphs
from overlapscope.documents.table import Table, Tone

Figure = dict[str, Any]
"""A Plotly figure: `data` and `layout`."""


class Span(Struct, frozen=True):
    """A piece of a sentence that stands out."""

    text: str
    tone: Tone = ""
    strong: bool = False
    code: bool = False
    detail: bool = False
    """It is more than the answer (`brief`)."""


Words = str | tuple[str | Span, ...]
"""A sentence or several; line breaks are kept."""


def pieces(words: Words) -> tuple[Span, ...]:
    """The same as spans."""
    parts = (words,) if isinstance(words, str) else words
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def with_code(text: str) -> Words:
    """Text in which what stands in backticks is code."""
    return tuple(Span(part, code=True) if number % 2 else part for number, part in enumerate(text.split("`")) if part)


class Heading(Struct, frozen=True):
    """A title above what follows: 1 is the document's, 2 a chapter's, 3 a part's."""

    text: str
    level: Literal[1, 2, 3] = 2
    id: str = ""
    """What links within an HTML file lead to."""
    tone: Tone = ""


class Text(Struct, frozen=True):
    """A paragraph."""

    words: Words
    tone: Tone = ""
    strong: bool = False
    badge: str = ""
    """How it stands, in one word (`good`), which files put before the text and a terminal shows by its colour: that of
    the tone, where there is one."""


class Items(Struct, frozen=True):
    """Sentences one below the other."""

    items: tuple[Words, ...]
    sign: str = "-"
    """What stands before each in a terminal."""
    tone: Tone = ""
    few: int | None = None
    """So many are the answer, the others a detail; None: all are."""


class Code(Struct, frozen=True):
    """Text as it is, such as a program."""

    text: str
    title: str = ""
    language: str = "python"
    """As markdown names it."""


class Links(Struct, frozen=True):
    """What a long HTML file holds, to jump to."""

    texts: dict[str, str]
    """Of each link, by the `id` of the part that it leads to."""


class Chart(Struct, frozen=True):
    """A figure, for whatever can draw it; there are others for the same facts where nothing can."""

    id: str
    """Of its place in the page, unique in the document."""
    title: str
    figure: Callable[[bool], Figure]
    """Drawn for dark ground or light; called by no renderer that cannot show it."""
    note: str = ""
    wide: bool = False


class Card(Struct, frozen=True):
    """One figure and the words for it."""

    name: str
    value: str
    beside: str = ""
    """What share it is, or of what."""
    meaning: str = ""


class Cards(Struct, frozen=True):
    """The figures at the head of a page: not for a terminal, whose tables have them."""

    cards: tuple[Card, ...]


class Part(Struct, frozen=True):
    """A part of a whole, with the palette's name of its colour."""

    name: str
    amount: int
    text: str
    share: str
    color: str


class Bar(Struct, frozen=True):
    """Parts of a whole side by side: not for a terminal, whose tables have them."""

    parts: tuple[Part, ...]


class StripBlock(Struct, frozen=True):
    """A timeline in characters."""

    draw: Callable[[Glyphs], Drawing]


class TimelineBlock(Struct, frozen=True):
    """A timeline to zoom into, in an HTML file only."""

    id: str
    data: Any
    """What its scripts draw it from: JSON."""
    scripts: Sequence[str] = ()
    styles: Sequence[str] = ()


class Example(Struct, frozen=True):
    """A case in a timeline of the document, relative to its origin, and what to show around it."""

    timeline: str
    start_ns: int
    end_ns: int
    view_start_ns: int
    view_end_ns: int


class FindingBlock(Struct, frozen=True):
    """Advice: what costs how much, how that is known, and what to change."""

    severity: Literal["error", "warning", "info"]
    rule: str
    title: str
    cost: str
    """`saves about 3.2 ms (4.1%), by replay`; empty for what costs nothing."""
    evidence: tuple[str, ...]
    places: tuple[str, ...]
    advice: str
    """What to change, in one line; how to, in the lines behind it."""
    proof: str = ""
    """The command that shows what the fix saves."""
    number: int = 0
    """Among all findings, from 1; 0 where they are not counted."""
    where: str = ""
    """`on rank 0, also on rank 1`, where the document is of several."""
    meaning: str = ""
    """Of the rule, in general."""
    wrong: str = ""
    right: str = ""
    """Programs, before and after."""
    example: Example | None = None


class Section(Struct, frozen=True):
    """Blocks that belong together."""

    blocks: tuple[Block, ...]
    title: str = ""
    kind: Literal["", "panel", "columns", "verdict", "article"] = ""
    """How HTML sets it apart: in a box, side by side, as the answer, as a chapter. A terminal sets short tables that
    are `columns` side by side where there is room."""
    tone: Tone = ""
    folded: bool = False
    """Shown by a click, where there are any."""
    id: str = ""
    detail: str = ""
    """What is in it, in a word or two, where it is more than the answer: `brief` leaves it out and names it."""


Block = (
    Heading
    | Text
    | Items
    | Code
    | Links
    | Table
    | Chart
    | Cards
    | Bar
    | StripBlock
    | TimelineBlock
    | FindingBlock
    | Section
)


class Document(Struct, frozen=True):
    """All there is to show of a result."""

    title: str
    """Of the window or tab that it is shown in."""
    blocks: tuple[Block, ...]


def columns(tables: Iterable[Table]) -> tuple[Block, ...]:
    """The tables that have rows, side by side."""
    shown = tuple(table for table in tables if table.rows)
    return (Section(shown, kind="columns"),) if shown else ()


def panel(title: str, *blocks: Block, folded: bool = False, tone: Tone = "") -> Section:
    """A box with a title."""
    return Section(blocks, title, "panel", tone=tone, folded=folded)


# -- the answer, and what there is besides --------------------------------------------------------


EVIDENCE = "evidence"
"""What findings rest on, as a detail."""


def detail(what: str, blocks: Iterable[Block]) -> tuple[Section, ...]:
    """Blocks that are more than the answer, named in a word or two; nothing where there are none."""
    found = tuple(blocks)
    return (Section(found, detail=what),) if found else ()


def brief(document: Document) -> Document:
    """The document without its details, of findings the first line of advice alone, and what `-v` adds as its end."""
    left_out: dict[str, None] = {}
    blocks = tuple(_without_detail(document.blocks, left_out))
    if left_out:
        blocks += (Text(f"Add -v for {listed(left_out)}.", "muted"),)
    return replace(document, blocks=blocks)


def _without_detail(blocks: Iterable[Block], left_out: dict[str, None]) -> Iterator[Block]:
    """What stays; what is left out is noted, each thing once."""
    for block in blocks:
        if isinstance(block, Section) and block.detail:
            left_out[block.detail] = None
        elif isinstance(block, Section):
            yield replace(block, blocks=tuple(_without_detail(block.blocks, left_out)))
        elif isinstance(block, FindingBlock):
            left_out[EVIDENCE] = None
            yield replace(block, evidence=(), places=(), advice=block.advice.partition("\n")[0])
        elif isinstance(block, Items):
            items = tuple(_without_spans(item) for item in block.items[: block.few])
            if items != block.items:
                left_out[EVIDENCE] = None
            yield replace(block, items=items)
        elif isinstance(block, Table) and block.few is not None and len(block.rows) > block.few:
            left_out["all rows"] = None
            yield replace(block, rows=block.rows[: block.few])
        else:
            yield block


def _without_spans(words: Words) -> Words:
    """Without those that are details."""
    return (
        words if isinstance(words, str) else tuple(part for part in words if isinstance(part, str) or not part.detail)
    )


# -- what fits ------------------------------------------------------------------------------------


class Room(Struct, frozen=True):
    """So many bytes of what a renderer draws, where a place takes only so much text, as a comment on GitHub does."""

    drawn: Callable[[Iterable[Block]], Iterable[str]]
    """Blocks as lines."""
    size: int

    def less(self, blocks: Iterable[Block]) -> Room:
        """What is left of it behind some blocks."""
        return replace(self, size=self.size - self._bytes(blocks))

    def part(self, parts: int) -> Room:
        """One of so many equal parts of it."""
        return replace(self, size=self.size // parts)

    def fitting(self, blocks: Sequence[Block]) -> int:
        """How many of the blocks there is room for, from the first on."""
        left = self.size
        for number, block in enumerate(blocks):
            left -= self._bytes([block])
            if left < 0:
                return number
        return len(blocks)

    def rows(self, table: Table) -> int:
        """How many of a table's rows there is room for, from the first on."""
        head = self._bytes([replace(table, rows=table.rows[:1])])
        left = self.size
        for number, row in enumerate(table.rows):
            left -= self._bytes([replace(table, rows=(table.rows[0], row))]) - head
            if left < 0:
                return number
        return len(table.rows)

    def _bytes(self, blocks: Iterable[Block]) -> int:
        return sum(len(line.encode("utf-8", "replace")) + 1 for line in self.drawn(blocks))
