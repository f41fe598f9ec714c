"""Documents as GitHub markdown for a file, a comment or a summary; the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import singledispatch
from html import escape as escape_html

from msgspec.structs import replace

from overlapscope.base.words import clean
from overlapscope.documents import model
from overlapscope.documents.model import Block, Document, Span, Words, pieces
from overlapscope.documents.table import Table

STRIP_SLICES = 80
"""Width of a timeline in characters, narrow enough for every viewer."""
_ESCAPED = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|~&#!@$"})
# Places in escaped text where GitHub or GitLab would find a link, a mention, a reference or an emoji.
_AUTOLINK = re.compile(
    r"(?<=[A-Za-z])(?=://)|(?<=www)(?=\.)"  # addresses
    r"|(?<=@)(?=\w)"  # people
    # Issues; a step's number is none.
    r"|(?<!ProfilerStep\\#)(?<!ProfilerStep#)(?<=#)(?=\d)|(?<=[A-Za-z]-)(?=\d)"
    r"|(?<=[!%~$])(?=[\w\"])|(?<=\\&)(?=\w)|(?<=&amp;)(?=\w)|(?<=\[)(?=[a-z_\\]+:)"  # GitLab's references
    r"|(?<=:)(?!(?<=\w::)[\w\\]+::)(?=[\w+\\-]+:)",  # emojis, but not scopes of C++
    re.IGNORECASE,
)
_COMMIT = re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,64}\b", re.IGNORECASE)
_BREAK = "&#8203;"


def render(document: Document) -> str:
    """Return the document's text."""
    return "\n".join(lines(document.blocks)).rstrip("\n") + "\n"


def lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of blocks, with an empty line after each block."""
    for block in blocks:
        yield from _draw(block)


def escape(text: str) -> str:
    """Escape text from a trace so that markdown shows it literally, without cells, links, mentions or HTML."""
    return _unlinked(clean(text).translate(_ESCAPED))


def _unlinked(escaped: str) -> str:
    """Break `http://`, `@name`, `#1`, `:tada:`, a commit and so on in escaped text with a zero-width character.

    GitHub looks for links and mentions after it has removed escapes, so a backslash doesn't prevent them.

    Returns:
        The text, which looks the same.
    """
    return _COMMIT.sub(lambda commit: _BREAK.join(re.findall(".{1,6}", commit[0])), _AUTOLINK.sub(_BREAK, escaped))


def _plain_start(line: str) -> str:
    """Escape the start of a line of prose that would begin a list item, a heading or a quick action of GitLab."""
    return re.sub(
        r"^(?:([-+=/])|(\d+)(?=[.)]))", lambda start: f"\\{start[1]}" if start[1] else start[2] + _BREAK, line.lstrip()
    )


def _piece(piece: Span) -> str:
    if piece.code:
        return f"`{clean(piece.text).replace('`', chr(39))}`"
    escaped = escape(piece.text)
    return f"**{escaped}**" if piece.strong and escaped.strip() else escaped


def _lines(words: Words) -> list[str]:
    """Return the escaped lines of a paragraph."""
    split = [""]
    for piece in pieces(words):
        first, *others = (_piece(replace(piece, text=part)) for part in piece.text.split("\n"))
        split[-1] += first
        split += others
    return split


def _paragraph(words: Words) -> str:
    # Two spaces at the end of a line keep its line break.
    return "  \n".join(_plain_start(line) for line in _lines(words))


@singledispatch
def _draw(block: Block) -> Iterator[str]:
    # Markdown can't draw figures and charts; tables have the same facts.
    return iter(())


@_draw.register
def _(block: model.Heading) -> Iterator[str]:
    yield from (f"{'#' * block.level} {escape(block.text)}", "")


@_draw.register
def _(block: model.Text) -> Iterator[str]:
    text = _paragraph(block.words)
    badge = f"**{escape(block.badge.capitalize())}.** " if block.badge else ""
    yield from (f"{badge}{f'**{text}**' if block.strong else text}", "")


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
        yield from (_paragraph(table.note), "")


@_draw.register
def _(block: model.StripBlock) -> Iterator[str]:
    drawn = block.draw(model.UNICODE)
    yield from (f"### {escape(drawn.title)}", "", "```text")
    yield from (line.rstrip().replace("`", "'") for line in drawn.plain())
    yield from ("```", "")


@_draw.register
def _(block: model.Section) -> Iterator[str]:
    if block.folded:
        # Markdown inside of HTML needs the empty lines.
        yield from (f"<details><summary>{_unlinked(escape_html(clean(block.title), quote=False))}</summary>", "")
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
        yield from (_paragraph(f"{block.where[0].upper()}{block.where[1:]}."), "")
    if block.cost:
        yield from (f"**{escape(block.cost[0].upper() + block.cost[1:])}.**", "")
    for paragraph in (*block.evidence, block.place and f"At {block.place}", block.advice):
        if paragraph:
            yield from (_paragraph(paragraph), "")
    if block.proof:
        yield from (_piece(Span(block.proof, code=True)), "")
