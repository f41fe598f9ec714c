"""Pieces of a page as HTML; foreign text is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from overlapscope.views.old_tables import Column, Table, prose


def table(shown: Table, tones: Mapping[str, str] | None = None) -> str:
    """A table, without its title; cells found in `tones` get that class."""
    kinds = [_cell_class(column) for column in shown.columns]
    titles = zip(kinds, shown.columns, strict=True)
    head = "".join(f"<th{_classes(kind)}>{escape(column.title)}</th>" for kind, column in titles)
    rows = []
    for number, row in enumerate(shown.rows, 1):
        cells = "".join(
            f"<td{_classes(kind, (tones or {}).get(cell, ''))}>{escape(cell)}</td>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        total = shown.total and number == len(shown.rows)
        rows.append(f"<tr{_classes('total' if total else '')}>{cells}</tr>")
    note = f'<p class="note">{escape(shown.note)}</p>' if shown.note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>{note}'


def _classes(*names: str) -> str:
    known = " ".join(filter(None, names))
    return f' class="{known}"' if known else ""


def _cell_class(column: Column) -> str:
    if column.number:
        return "number"
    return "prose" if column.prose else "flexible" if column.flexible else ""


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
    return f"<p>{'<br>'.join(escape(line) for line in prose(text))}</p>"
