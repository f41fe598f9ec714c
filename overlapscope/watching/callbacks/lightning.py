"""Watches a PyTorch Lightning training, and tells the trainer's loggers:

from overlapscope.watching.callbacks.lightning import Watcher

Trainer(callbacks=[Watcher(every="10 min")])
"""

from __future__ import annotations

import importlib.util
from typing import Any

from overlapscope.errors import MissingPackage
from overlapscope.watching.callbacks import TrainingWatcher

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found, unused-ignore]
elif importlib.util.find_spec("pytorch_lightning") is not None:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found, assignment, unused-ignore]
else:
    raise MissingPackage("this callback needs PyTorch Lightning: pip install lightning.")


class Watcher(TrainingWatcher, Callback):  # type: ignore[misc,unused-ignore]
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

