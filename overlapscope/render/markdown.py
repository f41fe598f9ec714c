"""A document as GitHub markdown, the same on every machine: for a file, a comment or a summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import singledispatch
from html import escape as escape_html

from overlapscope.base.words import clean
from overlapscope.documents import model, strip
from overlapscope.documents.model import Block, Document, Span, Words, pieces
from overlapscope.documents.table import Table

STRIP_SLICES = 80
"""Of a timeline in markdown: as wide as it is read everywhere."""
_ESCAPED = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|~&#!@$"})
# A link, a mention of a person or an issue; the number of a step is none.
_AUTOLINK = re.compile(
    r"(?<=[A-Za-z])(?=://)|(?<=www)(?=\.)|(?<=@)(?=\w)|(?<!ProfilerStep\\#)(?<!ProfilerStep#)(?<=#)(?=\d)",
    re.IGNORECASE,
)


def render(document: Document) -> str:
    """The document as text."""
    return "\n".join(lines(document.blocks)).rstrip("\n") + "\n"


def lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Blocks as lines, with an empty line behind each."""
    for block in blocks:
        yield from _draw(block)


def escape(text: str) -> str:
    """Foreign text as markdown that shows it literally: no cell, link, mention or HTML of its own."""
    return _unlinked(clean(text).translate(_ESCAPED))


def _unlinked(escaped: str) -> str:
    """Text already escaped, for markdown or HTML, with a zero-width break in `http://`, `www.`, `@name` and `#1`.

    GitHub looks for those when the escapes are gone, so that a backslash keeps no one from being called.
    """
    return _AUTOLINK.sub("&#8203;", escaped)


def _plain_start(line: str) -> str:
    """A line of prose that begins like a list item, a quotation or code must not become one."""
    return re.sub(r"^([-+]|\d+(?=[.)]))", r"\\\1" if line.lstrip()[:1] in ("-", "+") else r"\1&#8203;", line.lstrip())


def _piece(piece: Span) -> str:
    if piece.code:
        return f"`{clean(piece.text).replace('`', chr(39))}`"
    said = escape(piece.text)
    return f"**{said}**" if piece.strong and said.strip() else said


def _lines(words: Words) -> list[str]:
    """The lines of a paragraph, escaped."""
    split: list[list[str]] = [[]]
    for piece in pieces(words):
        first, *others = piece.text.split("\n")
        for number, part in enumerate((first, *others)):
            if number:
                split.append([])
            split[-1].append(_piece(Span(part, piece.tone, piece.strong, piece.code)))
    return ["".join(parts) for parts in split]


def _paragraph(words: Words) -> str:
    # Two spaces at the end of a line keep its line break.
    return "  \n".join(_plain_start(line) for line in _lines(words))


@singledispatch
def _draw(block: Block) -> Iterator[str]:
    # Figures and charts are for those who can draw them; tables say the same.
    return iter(())


@_draw.register
def _(block: model.Heading) -> Iterator[str]:
    yield from (f"{'#' * block.level} {escape(block.text)}", "")


@_draw.register
def _(block: model.Text) -> Iterator[str]:
    said = _paragraph(block.words)
    badge = f"**{escape(block.badge.capitalize())}.** " if block.badge else ""
    yield from (f"{badge}{f'**{said}**' if block.strong else said}", "")


@_draw.register
def _(block: model.Items) -> Iterator[str]:
    if block.items:
        # Two spaces at the end of a line keep its line break, two at a line's start keep it in its item.
        yield from ("- " + "  \n  ".join(map(_plain_start, _lines(item))) for item in block.items)
        yield ""


@_draw.register
def _(block: model.Code) -> Iterator[str]:
    if block.title:
        yield from (escape(block.title), "")
    yield from (f"```{block.language}", block.text.strip().replace("```", "'''"), "```", "")


@_draw.register
def _(block: Table) -> Iterator[str]:
    if not block.rows:
        return
    if block.title:
        yield from (f"### {escape(block.title)}", "")
    yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    table = table.read()
    yield f"| {' | '.join(escape(column.title) for column in table.columns)} |"
    yield f"| {' | '.join('---:' if column.number else '---' for column in table.columns)} |"
    for row in table.texts():
        yield f"| {' | '.join(map(escape, row))} |"
    yield ""
    if table.note:
        yield from (escape(table.note), "")


@_draw.register
def _(block: model.StripBlock) -> Iterator[str]:
    drawn = block.draw(strip.UNICODE)
    yield from (f"### {escape(drawn.title)}", "", "```text")
    yield from (line.rstrip().replace("`", "'") for line in drawn.plain())
    yield from ("```", "")


@_draw.register
def _(block: model.Section) -> Iterator[str]:
    if block.folded:
        # Markdown inside of HTML needs the empty lines.
        yield from (f"<details><summary>{_unlinked(escape_html(clean(block.title)))}</summary>", "")
        yield from lines(block.blocks)
        yield from ("</details>", "")
        return
    if block.title:
        yield from (f"{'##' if block.kind == 'article' else '###'} {escape(block.title)}", "")
    yield from lines(block.blocks)


@_draw.register
def _(block: model.FindingBlock) -> Iterator[str]:
    number = f"{block.number}. " if block.number else ""
    yield from (f"### {number}{escape(block.rule)} ({block.severity}): {escape(block.title)}", "")
    if block.where:
        yield from (f"{escape(block.where[0].upper() + block.where[1:])}.", "")
    if block.cost:
        yield from (f"**{escape(block.cost[0].upper() + block.cost[1:])}.**", "")
    for paragraph in (*block.evidence, *(f"At {place}" for place in block.places), block.advice):
        if paragraph:
            yield from (_paragraph(paragraph), "")
    if block.proof:
        yield from (_piece(Span(block.proof, code=True)), "")
