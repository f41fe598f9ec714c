"""Records a training with the Trainer of Hugging Face:

from overlapscope.recorder.callbacks.transformers import Recorder

Trainer(..., callbacks=[Recorder("x.trace.json.gz", wait=10, active=5)])
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from overlapscope.errors import MissingPackage
from overlapscope.recorder.recording import Recording

if importlib.util.find_spec("transformers") is None:
    raise MissingPackage("this recorder needs Hugging Face Transformers: pip install transformers.")

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]


class Recorder(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records each `train`, with a step for every optimizer step. `options` are those of `overlapscope.record`.

    The Trainer tells nobody of an exception: what a failed training recorded is written when the program ends, or
    when the next one begins.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Raises UsageError for options that make no sense."""
        self._path, self._options = path, options
        self.recording = Recording(path, **options)
        """The recording of this `train`, or of the last."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        self.recording.end()
        self.recording = Recording(self._path, **self._options)
        self.recording.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark a step."""
        self.recording.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the trace."""
        self.recording.end()
