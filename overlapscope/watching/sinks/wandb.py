"""Weights & Biases: metrics with a step of their own, and the report as an artifact."""

from __future__ import annotations

from typing import Any

from overlapscope.errors import UsageError
from overlapscope.watching.sinks import Send, Told, named

_STEP = "overlap/step"


def bind_active() -> Send:
    """For the current run."""
    import wandb

    if wandb.run is None:
        raise UsageError("no run is active; call wandb.init() first")
    return bind(wandb.run)


def bind(run: Any) -> Send:
    """For a run."""

    def send(told: Told) -> None:
        import wandb

        run.define_metric(_STEP, hidden=True)
        run.define_metric("overlap/*", step_metric=_STEP)
        # Without `commit` it goes into the row that the program writes next: a row of ours would count as one of its
        # steps, and what it logs for the step it is at would be refused.
        run.log(named(told) | {_STEP: told.step}, commit=False)
        if told.report is not None:
            artifact = wandb.Artifact(f"overlap-report-{run.id}", type="report")
            artifact.add_file(str(told.report), name="report.html")
            run.log_artifact(artifact)

    return send
