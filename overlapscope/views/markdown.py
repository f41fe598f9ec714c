"""A report as GitHub markdown: the content of the terminal's, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlapscope.base.words import clean
from overlapscope.views.old_tables import Table

STRIP_SLICES = 80
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#!@$])")
# A link, a mention of a person or an issue; the number of a step is none.
_AUTOLINK = re.compile(
    r"(?<=[A-Za-z])(?=://)|(?<=www)(?=\.)|(?<=@)(?=\w)|(?<!ProfilerStep\\#)(?<!ProfilerStep#)(?<=#)(?=\d)",
    re.IGNORECASE,
)


def escape(text: str) -> str:
    """Foreign text as markdown that shows it literally: no cell, link, mention or HTML of its own."""
    return unlinked(_SPECIAL.sub(r"\\\1", clean(text)))


def unlinked(escaped: str) -> str:
    """Text already escaped, for markdown or HTML, with a zero-width break in `http://`, `www.`, `@name` and `#1`.

    GitHub looks for those when the escapes are gone, so that a backslash keeps no one from being called.
    """
    return _AUTOLINK.sub("&#8203;", escaped)


def table_lines(table: Table) -> Iterator[str]:
    """A table, with an empty line behind it."""
    yield f"| {' | '.join(escape(column.title) for column in table.columns)} |"
    yield f"| {' | '.join('---:' if column.number else '---' for column in table.columns)} |"
    for row in table.rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
    if table.note:
        yield escape(table.note)
        yield ""


def plain_start(line: str) -> str:
    """A line of prose that begins like a list item, a quotation or code must not become one."""
    return re.sub(r"^\s*([-+]|\d+(?=[.)]))", r"\\\1" if re.match(r"\s*[-+]", line) else r"\1&#8203;", line)
