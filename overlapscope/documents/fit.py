"""What fits where a place takes only so much text, as a comment on GitHub does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from overlapscope.documents.model import Block
from overlapscope.documents.table import Table


@dataclass(frozen=True, slots=True)
class Room:
    """So many bytes of what a renderer draws."""

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
