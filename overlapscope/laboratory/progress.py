"""Tells on stderr what the laboratory is at: a line that changes where that is a terminal, else plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from overlapscope.base.output import environment
from overlapscope.base.words import clean
from overlapscope.laboratory.tables import digits

if TYPE_CHECKING:
    from rich.status import Status

    from overlapscope.laboratory.results import VariantResult

_STYLE = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


class Progress:
    """Is told what the runner does; a context, so that the changing line is taken away again."""

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

    def note(self, what: str) -> None:
        """What is going on now."""
        if self._status is not None:
            self._status.update(Text(clean(what)))
        else:
            self.say(what)

    def say(self, sentence: str) -> None:
        """What stays on the screen."""
        self._print(Text(clean(sentence)))

    def phase(self, experiment: str, variant: str, phase: str) -> None:
        """Something begins."""
        self.note(f"{phase} {experiment}/{variant}")

    def finished(self, experiment: str, result: VariantResult) -> None:
        """A variant is done, in whichever way."""
        line = Text.assemble((f"{result.status:<7}", _STYLE[result.status]), f" {experiment}/{result.name}: ")
        line.append(clean(_outcome(result)))
        self._print(line)

    def _print(self, line: Text) -> None:
        self._console.print(line)
        sys.stderr.flush()


def _outcome(result: VariantResult) -> str:
    if result.status != "ok" or result.wall_ms is None:
        return result.error or ""
    wall = result.wall_ms
    time = f"{digits(wall.median)} ms (IQR {digits(wall.iqr, like=wall.median)}, n = {wall.n:,})"
    wrong = result.wrong_results
    counted = [f"{wrong.wrong} of {wrong.tries} results wrong"] if wrong else []
    return ", ".join([time, *counted, *(analysis.verdict.text for analysis in result.analyses[:1])])
