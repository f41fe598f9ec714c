"""Records a PyTorch Lightning training:

from overlapscope.recorder.callbacks.lightning import Recorder

Trainer(callbacks=[Recorder("x.trace.json.gz", wait=10, active=5)])
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from overlapscope.errors import MissingPackage
from overlapscope.recorder.recording import Recording

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found, unused-ignore]
elif importlib.util.find_spec("pytorch_lightning") is not None:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found, assignment, unused-ignore]
else:
    raise MissingPackage("this recorder needs PyTorch Lightning: pip install lightning.")


class Recorder(Callback):  # type: ignore[misc,unused-ignore]
    """Records each `fit`, with a step for every training batch. `options` are those of `overlapscope.record`."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Raises UsageError for options that make no sense."""
        self._path, self._options = path, options
        self.recording = Recording(path, **options)
        """The recording of this `fit`, or of the last."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self.recording = Recording(self._path, **self._options)
        self.recording.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Mark a step."""
        self.recording.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the trace."""
        self.recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what led there."""
        self.recording.end_after(exception)
