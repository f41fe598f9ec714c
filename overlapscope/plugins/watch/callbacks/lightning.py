"""A callback that watches a PyTorch Lightning training, with figures for the trainer's loggers.

from overlapscope.plugins.watch.callbacks.lightning import Watcher

Trainer(callbacks=[Watcher(every="10 min")])
"""

from __future__ import annotations

from typing import Any

from overlapscope.plugins.watch.callbacks import TrainingWatcher
from overlapscope.recorder.callbacks.lightning import Callback


class LightningWatcher(TrainingWatcher, Callback):  # type: ignore[misc,unused-ignore]
    """Watches each `fit`, whose steps are those of its optimizer."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._begin(lambda: trainer.loggers if trainer.is_global_zero else [])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End."""
        self._end()


Watcher = LightningWatcher
