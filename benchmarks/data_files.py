"""CSV files beside the pages of `docs/evaluation`: a page has the summary, its file has every row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"\*\*|`|\\(?=[^\w\s])")
"""Markdown around the text of a cell."""


def csv_text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as CSV, its cells without Markdown."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(map(csv_cells, rows))
    return written.getvalue()


def csv_cells(cells: Iterable[str]) -> list[str]:
    """Return the cells of a Markdown table as text."""
    return [_MARKUP.sub("", cell).replace("<br>", "; ") for cell in cells]


def csv_line(cells: Iterable[str]) -> str:
    """Return one row as it stands in a file, without the end of its line."""
    return csv_text(csv_cells(cells), ()).rstrip("\n")
