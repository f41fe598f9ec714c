"""A clock for Hugging Face's Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tests.programs.trials.options import Clock


class Ticking(TrainerCallback):
    """Tells the clock of each step's end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._clock.step()
