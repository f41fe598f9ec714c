"""A progress bar on stderr for what takes over a second, and silence everywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_S = 1.0


class ReadingBar:
    """Shows how much of a file has been read. Use as a context manager and call `at` now and then."""

    def __init__(self, label: str, total_bytes: int, *, enabled: bool) -> None:
        """`enabled` False, or a stderr that is no terminal, makes every call do nothing."""
        self._label = label
        self._total = total_bytes
        self._enabled = enabled and sys.stderr is not None and sys.stderr.isatty()
        self._begin = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def at(self, done_bytes: int) -> None:
        """Bytes read so far."""
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

    def _show(self) -> tuple[Progress, TaskID]:
        # Imported here because most reads are over before the import would be.
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("reading {task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._label, total=self._total)
