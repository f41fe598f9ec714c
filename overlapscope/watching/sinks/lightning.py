"""Any other logger of PyTorch Lightning: metrics."""

from __future__ import annotations

from typing import Any

from overlapscope.watching.sinks import Send, Told, named


def bind(logger: Any) -> Send:
    """For a logger of a trainer."""

    def send(told: Told) -> None:
        logger.log_metrics(named(told), told.step)
        logger.save()

    return send
