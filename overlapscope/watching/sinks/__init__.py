"""Tools that figures of recordings are sent to, one module each.

A sink is bound on the thread of the steps, which knows the tool's run. It sends on another thread, since it may raise
any exception and take long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from overlapscope.base.registry import load
from overlapscope.base.words import shorten
from overlapscope.errors import UsageError

PATIENCE_S: Final = 10.0
"""Time that the program waits for a sink, in seconds."""


class SentFigures(Struct, frozen=True):
    """Figures of a recording that are sent to tools."""

    program: str
    step: int
    """Number of steps that the program had made."""
    at_ns: int
    """Time of the recording, in nanoseconds since 1970 (UTC)."""
    scalars: Mapping[str, float]
    """Figures (`analyser.scalars`), such as `efficiency_pct` and `idle_ms`."""
    report: Path | None
    """Report as an HTML file."""


Send = Callable[[SentFigures], None]


class Sink(Struct, frozen=True):
    """A tool that figures are sent to."""

    name: str
    """Name of the tool in a sentence."""
    bind: Callable[[], Send]
    """Function that finds the tool's run. Raises UsageError without a run, and any exception of the tool."""


_BY_ATTRIBUTES: Final = (
    ({"add_scalar", "add_text"}, "TensorBoard", "tensorboard"),
    ({"define_metric", "log_artifact"}, "Weights & Biases", "wandb"),
    ({"log_metrics"}, "the trainer's logger", "lightning"),
)
"""Methods by which a writer, a run or a logger is recognized without an import of its tool."""


def sink(asked: Any) -> Sink:
    """Return the sink for an argument of `watch(log=...)`. Raises UsageError for other objects."""
    here = __name__
    if isinstance(asked, str):
        kind, _, target = asked.partition(":")
        if kind == "prometheus" and target:
            return Sink("Prometheus", load(f"{here}.prometheus:binder")(target))
        if asked in ("wandb", "mlflow"):
            name = {"wandb": "Weights & Biases", "mlflow": "MLflow"}[asked]
            return Sink(name, load(f"{here}.{asked}:bind_active"))
    else:
        # The run that a logger of Lightning writes to accepts more than the logger.
        for tool in (getattr(asked, "experiment", None), asked):
            for attributes, name, module in _BY_ATTRIBUTES:
                if all(callable(getattr(tool, attribute, None)) for attribute in attributes):
                    return Sink(name, partial(load(f"{here}.{module}:bind"), tool))
    raise UsageError(
        f"log={shorten(repr(asked), 60)} is nothing that takes figures; pass a SummaryWriter of TensorBoard, "
        'a run of Weights & Biases or "wandb", "mlflow", "prometheus:FILE.prom" or "prometheus:PORT".'
    )


def named(figures: SentFigures) -> dict[str, float]:
    """Return the figures by their names in all tools."""
    return {f"overlap/{name}": value for name, value in figures.scalars.items()}


class Outlet:
    """A sink, whose calls do not delay the program if they take too long."""

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self._sink = sink
        self._send: Send | None = None
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def bind(self) -> str | None:
        """Bind the sink, on the thread of the steps. Returns a sentence if this fails."""
        try:
            self._send = self._sink.bind()
        except Exception as error:
            self._send = None
            return self._failed(error)
        return None

    def send(self, figures: SentFigures) -> str | None:
        """Send, and wait for at most `PATIENCE_S`. Returns a sentence if this fails or takes longer."""
        if self._send is None:
            return None
        if self._thread is None or not self._thread.is_alive():
            self._failure = None
            self._thread = threading.Thread(
                target=self._run, args=(self._send, figures), name="overlapscope", daemon=True
            )
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self.name} did not take the figures within {PATIENCE_S:.0f} s; the program does not wait for it."
        return self._failure

    def _run(self, send: Send, figures: SentFigures) -> None:
        try:
            send(figures)
        except Exception as error:
            self._failure = self._failed(error)

    def _failed(self, error: Exception) -> str:
        reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        return f"figures did not reach {self.name} ({reason})."
