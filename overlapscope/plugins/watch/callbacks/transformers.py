"""A callback that watches a training with the Trainer of Hugging Face, with figures for its reporting tools.

from overlapscope.plugins.watch.callbacks.transformers import Watcher

Trainer(..., callbacks=[Watcher(every="10 min")])
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from overlapscope.plugins.watch.callbacks import TrainingWatcher
from overlapscope.recorder.callbacks.transformers import TrainerCallback


class TransformersWatcher(TrainingWatcher, TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Watches each `train`, whose steps are those of its optimizer.

    The runs of Weights & Biases and MLflow in `report_to` receive figures. The Trainer's writer for TensorBoard is out
    of reach, so another writes into the directory `overlapscope`, which TensorBoard shows as a separate run.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        self._begin(lambda: _tools_of(args) if state.is_world_process_zero else [])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self._end()


def _tools_of(args: Any) -> list[Any]:
    tools: list[Any] = [tool for tool in args.report_to if tool in ("wandb", "mlflow")]
    if "tensorboard" in args.report_to:
        from torch.utils.tensorboard import SummaryWriter

        place = os.environ.get("TENSORBOARD_LOGGING_DIR") or getattr(args, "logging_dir", None)
        tools.append(SummaryWriter(Path(place or Path(args.output_dir, "runs"), "overlapscope")))
    return tools


Watcher = TransformersWatcher
