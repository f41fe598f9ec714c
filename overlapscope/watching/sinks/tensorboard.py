"""TensorBoard: scalars, and where the report lies. A SummaryWriter takes both from any thread."""

from __future__ import annotations

from typing import Any

from overlapscope.watching.sinks import Send, Told, named


def bind(writer: Any) -> Send:
    """For a SummaryWriter, of torch or tensorboardX."""

    def send(told: Told) -> None:
        at_s = told.at_ns / 1e9
        for name, value in named(told).items():
            writer.add_scalar(name, value, told.step, at_s)
        if told.report is not None:
            writer.add_text("overlap/report", f"`{told.report}`", told.step, at_s)
        writer.flush()

    return send
