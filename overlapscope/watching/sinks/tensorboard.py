"""TensorBoard: scalars, and the path of the report. A SummaryWriter accepts both on any thread."""

from __future__ import annotations

from typing import Any

from overlapscope.watching.sinks import Send, SentFigures, named


def bind(writer: Any) -> Send:
    """Bind a SummaryWriter of torch or tensorboardX."""

    def send(figures: SentFigures) -> None:
        at_s = figures.at_ns / 1e9
        for name, value in named(figures).items():
            writer.add_scalar(name, value, figures.step, at_s)
        if figures.report is not None:
            writer.add_text("overlap/report", f"`{figures.report}`", figures.step, at_s)
        writer.flush()

    return send
