"""Recorders for training frameworks, one optional module each; they begin, step and end a `Recording`."""

from __future__ import annotations

import os
from typing import Any

from overlapscope.recorder.automatic_steps import MARKS
from overlapscope.recorder.recording import Recording


class TrainingRecorder:
    """Records each training anew. `options` are those of `overlapscope.record`."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Raises UsageError for options that make no sense."""
        self._path, self._options = path, {"steps_by": MARKS} | options
        self.recording = Recording(path, **self._options)
        """The recording of this training, or of the last."""

    def _begin(self) -> None:
        self.recording.end()
        self.recording = Recording(self._path, **self._options)
        self.recording.begin()
