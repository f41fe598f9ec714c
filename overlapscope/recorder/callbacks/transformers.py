"""A callback that records a training with the Trainer of Hugging Face.

from overlapscope.recorder.callbacks.transformers import Recorder

Trainer(..., callbacks=[Recorder("x.trace.json.gz", wait=10, active=5)])
"""

from __future__ import annotations

import importlib.util
from typing import Any

from overlapscope.errors import MissingPackage
from overlapscope.recorder.callbacks import TrainingRecorder

if importlib.util.find_spec("transformers") is None:
    raise MissingPackage("this callback needs Hugging Face Transformers: pip install transformers.")

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

__all__ = ["Recorder", "TrainerCallback"]


class TransformersRecorder(TrainingRecorder, TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records each `train`, with a step for every optimizer step.

    The Trainer does not report exceptions to callbacks. The recording of a training that failed is written when the
    program ends, or when the next training begins.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark a step."""
        self.recording.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the trace."""
        self.recording.end()


Recorder = TransformersRecorder
