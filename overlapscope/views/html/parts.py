"""Pieces of a page as HTML; foreign text is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from overlapscope.analysis.results import Device
from overlapscope.views import tables
from overlapscope.views.colors import bucket_color
from overlapscope.views.headline import headlines
from overlapscope.views.html.document import variable
from overlapscope.views.page import Section
from overlapscope.views.tables import Column, Table
from overlapscope.words import bare_shares


def table(shown: Table) -> str:
    """A table, without its title."""
    kinds = [_cell_class(column) for column in shown.columns]
    head = "".join(f"<th{kind}>{escape(column.title)}</th>" for kind, column in zip(kinds, shown.columns, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in shown.rows
    )
    note = f'<p class="note">{escape(shown.note)}</p>' if shown.note else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _cell_class(column: Column) -> str:
    if column.number:
        return ' class="number"'
    return ' class="prose"' if column.prose else ' class="flexible"' if column.flexible else ""


def panel(title: str, *content: str, kind: str = "") -> str:
    """A box with a title."""
    classes = f"panel {kind}".strip()
    return f'<section class="{classes}"><h3>{escape(title)}</h3>{"".join(content)}</section>'


def items(texts: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def level(word: str) -> str:
    """How it stands, as a badge; the word says what its colour does."""
    return f'<span class="level {escape(word)}">{escape(word.capitalize())}</span>'


def paragraphs(text: str) -> str:
    """Prose with line breaks of its own."""
    return f"<p>{'<br>'.join(escape(line) for line in tables.prose(text))}</p>"


def bucket_bar(section: Section, device: Device) -> str:
    """The partition of the window as one bar, with its key."""
    buckets = device.buckets.named()
    shares = bare_shares(list(buckets.values()), device.span_ns)
    drawn, key = [], []
    for (word, ns), part in zip(buckets.items(), shares, strict=True):
        if not ns:
            continue
        color = f"var(--{variable(bucket_color(word))})"
        title = f"{word}: {section.unit.text(ns)} ({part} %)"
        drawn.append(f'<span style="flex:{ns} 0 0;background:{color}" title="{escape(title)}"></span>')
        key.append(
            f'<li><i style="background:{color}"></i>{escape(word)} <b>{escape(section.unit.text(ns))}</b> '
            f'<span class="muted">{escape(part)} %</span></li>'
        )
    return f'<div class="bar" aria-hidden="true">{"".join(drawn)}</div><ul class="key">{"".join(key)}</ul>'


def figures(section: Section, device: Device) -> str:
    """The headline figures, each with the words that say what it is of."""
    cards = "".join(
        f'<div title="{escape(one.meaning)}"><dt>{escape(one.name)}</dt>'
        f"<dd><b>{escape(one.value)}</b><span>{escape(one.beside)}</span></dd></div>"
        for one in headlines(section, device)
    )
    return f'<dl class="figures">{cards}</dl>'
