"""Tells on stderr what is going on: a line that changes where that is a terminal, else plain lines."""

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
    """Is told what happens; a context, so that the changing line is taken away again."""

    def __init__(self) -> None:
        self._console = Console(
            stderr=True, _environ=environment(), markup=False, highlight=False, emoji=False, soft_wrap=True
        )
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            # Drawn seldom, so that it takes nothing from what is being timed.
            self._status = self._console.status("", refresh_per_second=4)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def now(self, what: str) -> None:
        """What is going on, for whoever watches."""
        if self._status is not None:
            self._status.update(Text(clean(what)))

    def note(self, what: str) -> None:
        """The same, which a log has as well."""
        if self._status is not None:
            self.now(what)
        else:
            self.say(what)

    def say(self, sentence: str | Text) -> None:
        """What stays on the screen; the parts of a `Text` are harmless."""
        self._console.print(Text(clean(sentence)) if isinstance(sentence, str) else sentence)
        sys.stderr.flush()
