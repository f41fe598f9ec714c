"""Recorders for training frameworks, one optional module each, which begin, step and end a `Recording`."""

from __future__ import annotations

import os
from typing import Any

from overlapscope.recorder.automatic_steps import MARKS
from overlapscope.recorder.recording import record


class TrainingRecorder:
    """Records each training anew. `options` are those of `overlapscope.record`."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Prepare to record. Raises UsageError for options that make no sense."""
        self._path, self._options = path, {"steps_by": MARKS} | options
        self.recording = record(path, **self._options)
        """Recording of this training, or of the last one."""

    def _begin(self) -> None:
        self.recording.end()
        self.recording = record(self._path, **self._options)
        self.recording.begin()
