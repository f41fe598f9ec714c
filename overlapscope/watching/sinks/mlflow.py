"""MLflow: metrics, and the report as an artifact that the next one replaces."""

from __future__ import annotations

from overlapscope.errors import UsageError
from overlapscope.watching.sinks import Send, Told, named

_NS_PER_MS = 1_000_000


def bind_active() -> Send:
    """For the run that is active on this thread: other threads have none."""
    import mlflow

    run = mlflow.active_run()
    if run is None:
        raise UsageError("no run is active on the thread that makes the steps; call mlflow.start_run() first")
    client, run_id = mlflow.MlflowClient(), run.info.run_id

    def send(told: Told) -> None:
        at_ms = told.at_ns // _NS_PER_MS
        metrics = [mlflow.entities.Metric(name, value, at_ms, told.step) for name, value in named(told).items()]
        client.log_batch(run_id, metrics=metrics)
        if told.report is not None:
            client.log_artifact(run_id, str(told.report), "overlap")

    return send
