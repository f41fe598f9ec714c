"""Any other logger of PyTorch Lightning: metrics."""

from __future__ import annotations

from typing import Any

from overlapscope.watching.sinks import Send, SentFigures, named


def bind(logger: Any) -> Send:
    """Bind a logger of a trainer."""

    def send(figures: SentFigures) -> None:
        logger.log_metrics(named(figures), figures.step)
        logger.save()

    return send
