"""SQLite files whose pages refer again and again to one page, so that a small file seems to hold billions of rows."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

_HEAD_BYTES = 100
_INTERIOR, _LEAF = 5, 13


def make_endless(path: Path, table: str, levels: int = 4) -> None:
    """Replace the only page of a table by `levels` of pages over it; `sqlite_schema` is a table, too."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        [(size,)] = database.execute("PRAGMA page_size")
        root_page = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    data = bytearray(path.read_bytes())
    root = 0 if root_page is None else (root_page[0] - 1) * size
    begin = root + (_HEAD_BYTES if not root else 0)
    leaf = data[begin : root + size]
    assert leaf[0] == _LEAF, "the table has more than one page"
    # The rows lie at the end of the page, which stays as long.
    child = _add(data, bytes(leaf[: len(leaf) // 2] + bytes(size - len(leaf)) + leaf[len(leaf) // 2 :]), size)
    for _ in range(levels - 1):
        child = _add(data, _page_over(child, size), size)
    data[begin : root + size] = _page_over(child, size, begin - root)[begin - root :]
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)


def _add(data: bytearray, page: bytes, size: int) -> int:
    data += page
    return len(data) // size


def _page_over(child: int, size: int, begin: int = 0) -> bytes:
    count = (size - begin - 12) // 8
    page, at = bytearray(size), size - 5 * count
    struct.pack_into(">BHHHBI", page, begin, _INTERIOR, 0, count, at, 0, child)
    for number in range(count):
        struct.pack_into(">H", page, begin + 12 + 2 * number, at + 5 * number)
        struct.pack_into(">IB", page, at + 5 * number, child, 1)
    return bytes(page)
