"""Callbacks for training frameworks, one optional module each: a training is watched, and its own loggers are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from overlapscope.base.output import tell
from overlapscope.watching.continuous import Continuous, settings


class TrainingWatcher:
    """Watches each training. `options` are those of `overlapscope.watch`; what `log` names is told, too."""

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
        """Raises UsageError for options that make no sense."""
        self._options = {"steps": steps, "keep": keep, "job": job, "history": history}
        self._every, self._log = every, log if isinstance(log, list | tuple) else [log]
        settings(every, **self._options, log=log)
        self._watching: Continuous | None = None

    def _begin(self, loggers: Callable[[], Sequence[Any]]) -> None:
        """`loggers` are the training's own. Whatever they are, the training goes on."""
        from overlapscope.watching.api import watch_continuously

        asked = settings(self._every, **self._options, log=self._log)
        try:
            asked = settings(self._every, **self._options, log=[*loggers(), *self._log])
        except Exception as error:
            tell(f"overlapscope: the training's own loggers get no figures: {error}")
        self._watching = watch_continuously(asked)

    def _end(self) -> None:
        if self._watching is not None:
            self._watching.finish()
            self._watching = None
