"""Weights & Biases: metrics with a step of their own, and the report as an artifact."""

from __future__ import annotations

from typing import Any

from overlapscope.errors import UsageError
from overlapscope.watching.sinks import Send, SentFigures, named

_STEP = "overlap/step"


def bind_active() -> Send:
    """Bind the current run."""
    import wandb

    if wandb.run is None:
        raise UsageError("no run is active; call wandb.init() first")
    return bind(wandb.run)


def bind(run: Any) -> Send:
    """Bind a run."""

    def send(figures: SentFigures) -> None:
        import wandb

        run.define_metric(_STEP, hidden=True)
        run.define_metric("overlap/*", step_metric=_STEP)
        # Without `commit`, the figures join the program's next row. A row of ours would count as a step of the program,
        # whose figures for its present step would then be refused.
        run.log(named(figures) | {_STEP: figures.step}, commit=False)
        if figures.report is not None:
            artifact = wandb.Artifact(f"overlap-report-{run.id}", type="report")
            artifact.add_file(str(figures.report), name="report.html")
            run.log_artifact(artifact)

    return send
