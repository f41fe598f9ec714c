"""MLflow: metrics, and the report as an artifact that the next report replaces."""

from __future__ import annotations

from overlapscope.errors import UsageError
from overlapscope.watching.sinks import Send, SentFigures, named

_NS_PER_MS = 1_000_000


def bind_active() -> Send:
    """Bind the run that is active on this thread, since MLflow keeps it by thread."""
    import mlflow

    run = mlflow.active_run()
    if run is None:
        raise UsageError("no run is active on the thread that makes the steps; call mlflow.start_run() first")
    client, run_id = mlflow.MlflowClient(), run.info.run_id

    def send(figures: SentFigures) -> None:
        at_ms = figures.at_ns // _NS_PER_MS
        metrics = [mlflow.entities.Metric(name, value, at_ms, figures.step) for name, value in named(figures).items()]
        client.log_batch(run_id, metrics=metrics)
        if figures.report is not None:
            client.log_artifact(run_id, str(figures.report), "overlap")

    return send
