"""A progress bar on stderr for work that takes over a second on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_PATIENCE_S = 1.0

Progress = bool | Callable[[int, int], None]
"""True to show a bar, or a function to call instead with the bytes read so far and in total."""


class ReadingBar:
    """Progress of reading a file. Use it as a context manager and call `at` now and then."""

    def __init__(self, label: str, total_bytes: int, progress: Progress) -> None:
        """Make a bar. If `progress` is False or stderr is not a terminal, calls do nothing."""
        self._label = label
        self._total = total_bytes
        self._listener = progress if callable(progress) else None
        self._enabled = progress is True and sys.stderr is not None and sys.stderr.isatty()
        self._begin = time.monotonic()
        self._shown: tuple[RichProgress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def at(self, done_bytes: int) -> None:
        """Show the number of bytes read so far."""
        if self._listener is not None:
            self._listener(done_bytes, self._total)
        if not self._enabled:
            return
        if self._shown is None:
            if time.monotonic() - self._begin < _PATIENCE_S:
                return
            self._shown = self._show()
        progress, task = self._shown
        progress.update(task, completed=done_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def _show(self) -> tuple[RichProgress, TaskID]:
        # Imported here because most reads are over before the import would be.
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from overlapscope.base.output import environment

        progress = Progress(
            TextColumn("reading {task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, _environ=environment()),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._label, total=self._total)
