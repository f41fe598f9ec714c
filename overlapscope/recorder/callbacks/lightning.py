"""A callback that records a PyTorch Lightning training.

from overlapscope.recorder.callbacks.lightning import Recorder

Trainer(callbacks=[Recorder("x.trace.json.gz", wait=10, active=5)])
"""

from __future__ import annotations

import importlib.util
from typing import Any

from overlapscope.errors import MissingPackage
from overlapscope.recorder.callbacks import TrainingRecorder

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found, unused-ignore]
elif importlib.util.find_spec("pytorch_lightning") is not None:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found, assignment, unused-ignore]
else:
    raise MissingPackage("this callback needs PyTorch Lightning: pip install lightning.")

__all__ = ["Callback", "Recorder"]


class LightningRecorder(TrainingRecorder, Callback):  # type: ignore[misc,unused-ignore]
    """Records each `fit`, with a step for every training batch."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Mark a step."""
        self.recording.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the trace."""
        self.recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the trace of the steps before the exception."""
        self.recording.end_after(exception)


Recorder = LightningRecorder
