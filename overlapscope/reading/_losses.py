"""Losses while reading a file."""

from __future__ import annotations

from msgspec import Struct, field

_MOST_EXAMPLES = 3


class Losses(Struct):
    """Losses while reading a file; they become `trace.Damage`."""

    truncated: bool = False
    """True if the file ends too early."""
    lost_bytes: int = 0
    lost_events: int = 0
    repaired_events: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few losses, in words."""

    def remember(self, example: str) -> None:
        """Keep an example, unless there are enough."""
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(example)

    def lose(self, text: str) -> None:
        """Count the text of an event that cannot be read."""
        self.lost_events += 1
        self.lost_bytes += len(text.encode("utf-8", "surrogateescape"))
        self.remember(f"lost: {_shortened(text)}")

    def repair(self, text: str) -> None:
        """Count the text of an event that could be read after a repair."""
        self.repaired_events += 1
        self.remember(f"repaired: {_shortened(text)}")

    def skip_bracket(self, text: str) -> None:
        """Count a bracket between the events, with the text that it begins."""
        self.lost_bytes += 1
        self.remember(f"lost: a bracket amid the events: {_shortened(text)}")


def _shortened(text: str) -> str:
    return " ".join(text[:200].split())[:100]
