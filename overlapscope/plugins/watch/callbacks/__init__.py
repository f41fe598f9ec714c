"""Callbacks for training frameworks, one optional module each, which watch a training and feed its loggers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from overlapscope.base.output import tell
from overlapscope.plugins.watch.continuous import Continuous, settings


class TrainingWatcher:
    """Watches each training. The options are those of `overlapscope.watch`; `log` names further tools."""

    def __init__(
        self,
        every: str,
        *,
        steps: int = 3,
        keep: str = "200 MB",
        job: str | None = None,
        history: Any = None,
        log: Any = (),
    ) -> None:
        """Prepare to watch. Raises UsageError for options that make no sense."""
        self._options = {"steps": steps, "keep": keep, "job": job, "history": history}
        self._every, self._log = every, log if isinstance(log, list | tuple) else [log]
        settings(every, **self._options, log=log)
        self._watching: Continuous | None = None

    def _begin(self, loggers: Callable[[], Sequence[Any]]) -> None:
        """Begin to watch. If the training's `loggers` are unusable, the training goes on without them."""
        from overlapscope.plugins.watch.api import watch_continuously

        chosen = settings(self._every, **self._options, log=self._log)
        try:
            chosen = settings(self._every, **self._options, log=[*loggers(), *self._log])
        except Exception as error:
            tell(f"overlapscope: the training's own loggers get no figures: {error}")
        self._watching = watch_continuously(chosen)

    def _end(self) -> None:
        if self._watching is not None:
            self._watching.finish()
            self._watching = None
