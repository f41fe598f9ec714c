"""Progress on stderr: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from overlapscope.base.output import environment
from overlapscope.base.words import clean

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Shows the current activity; as a context manager, it removes the changing line at its end."""

    def __init__(self) -> None:
        self._console = Console(
            stderr=True, _environ=environment(), markup=False, highlight=False, emoji=False, soft_wrap=True
        )
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            # A low refresh rate keeps the spinner from disturbing measurements.
            self._status = self._console.status("", refresh_per_second=4)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def now(self, what: str) -> None:
        """Show what is going on, on a terminal only."""
        if self._status is not None:
            self._status.update(Text(clean(what)))

    def note(self, what: str) -> None:
        """Show what is going on, on a terminal or as a line of a log."""
        if self._status is not None:
            self.now(what)
        else:
            self.say(what)

    def say(self, sentence: str | Text) -> None:
        """Print a line that stays. The parts of a `Text` must be clean."""
        self._console.print(Text(clean(sentence)) if isinstance(sentence, str) else sentence)
        sys.stderr.flush()
