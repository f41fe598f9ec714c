"""Functions of the program that figures of recordings are sent to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

PATIENCE_S: Final = 10.0
"""Time that the program waits for a function at its end, in seconds."""


class SentFigures(Struct, frozen=True):
    """Figures of a recording."""

    program: str
    step: int
    """Number of steps that the program had made."""
    at_ns: int
    """Time of the recording, in nanoseconds since 1970 (UTC)."""
    scalars: Mapping[str, float]
    """Figures (`analyser.scalars`), such as `efficiency_pct` and `idle_ms`."""
    report: Path | None
    """Report as an HTML file."""


class Outlet:
    """A function that takes figures, and does not delay the program if it takes too long or raises."""

    def __init__(self, function: Callable[[SentFigures], object]) -> None:
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        self._function = function
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def send(self, figures: SentFigures) -> str | None:
        """Send, and wait for at most `PATIENCE_S`. Returns a sentence if this fails or takes longer."""
        if self._thread is None or not self._thread.is_alive():
            self._failure = None
            self._thread = threading.Thread(target=self._run, args=(figures,), name="overlapscope", daemon=True)
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self.name} did not take the figures within {PATIENCE_S:.0f} s; the program does not wait for it."
        return self._failure

    def _run(self, figures: SentFigures) -> None:
        try:
            self._function(figures)
        except Exception as error:
            self._failure = f"figures did not reach {self.name} ({type(error).__name__}: {error})."
