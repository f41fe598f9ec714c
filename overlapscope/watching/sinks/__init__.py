"""Where people look already: each module here sends the figures of a recording to one tool.

A sink is bound on the thread that makes the steps, where the tool's run is found, and sends on a thread of its own:
it may raise anything, and take long.
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
"""How long a sink may take before nobody waits for it any more."""


class Told(Struct, frozen=True):
    """What is sent of one recording."""

    program: str
    step: int
    """Of the program: how many it had made."""
    at_ns: int
    """When it was recorded, in nanoseconds since 1970 (UTC)."""
    scalars: Mapping[str, float]
    """`history.figures.scalars`: `efficiency_pct`, `idle_ms`."""
    report: Path | None
    """The report as an HTML file."""


Send = Callable[[Told], None]


class Sink(Struct, frozen=True):
    """One tool."""

    name: str
    """As it stands in a sentence."""
    bind: Callable[[], Send]
    """Find the tool's run. Raises UsageError where there is none, and whatever the tool raises."""


_BY_ATTRIBUTES: Final = (
    ({"add_scalar", "add_text"}, "TensorBoard", "tensorboard"),
    ({"define_metric", "log_artifact"}, "Weights & Biases", "wandb"),
    ({"log_metrics"}, "the trainer's logger", "lightning"),
)
"""What an object is known by: a writer, a run or a logger is not imported to be told from others."""


def sink(asked: Any) -> Sink:
    """What stands in `watch(log=...)`. Raises UsageError for what is none."""
    here = __name__
    if isinstance(asked, str):
        kind, _, target = asked.partition(":")
        if kind == "prometheus" and target:
            return Sink("Prometheus", load(f"{here}.prometheus:binder")(target))
        if asked in ("wandb", "mlflow"):
            name = {"wandb": "Weights & Biases", "mlflow": "MLflow"}[asked]
            return Sink(name, load(f"{here}.{asked}:bind_active"))
    else:
        # What a logger of Lightning writes to takes more than the logger.
        for found in (getattr(asked, "experiment", None), asked):
            for attributes, name, module in _BY_ATTRIBUTES:
                if all(callable(getattr(found, attribute, None)) for attribute in attributes):
                    return Sink(name, partial(load(f"{here}.{module}:bind"), found))
    raise UsageError(
        f"log={shorten(repr(asked), 60)} is nothing that takes figures; pass a SummaryWriter of TensorBoard, "
        'a run of Weights & Biases or "wandb", "mlflow", "prometheus:FILE.prom" or "prometheus:PORT".'
    )


def named(told: Told) -> dict[str, float]:
    """The figures by the names that they have in every tool."""
    return {f"overlap/{name}": value for name, value in told.scalars.items()}


class Outlet:
    """One sink, of which a call that takes too long holds up nobody."""

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self._sink = sink
        self._send: Send | None = None
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def bind(self) -> str | None:
        """On the thread that makes the steps. A sentence where it fails."""
        try:
            self._send = self._sink.bind()
        except Exception as error:
            self._send = None
            return self._failed(error)
        return None

    def send(self, told: Told) -> str | None:
        """Send, and wait for at most `PATIENCE_S`. A sentence where it fails or takes longer."""
        if self._send is None:
            return None
        if self._thread is None or not self._thread.is_alive():
            self._failure = None
            self._thread = threading.Thread(target=self._run, args=(self._send, told), name="overlapscope", daemon=True)
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return f"{self.name} did not take the figures within {PATIENCE_S:.0f} s; the program does not wait for it."
        return self._failure

    def _run(self, send: Send, told: Told) -> None:
        try:
            send(told)
        except Exception as error:
            self._failure = self._failed(error)

    def _failed(self, error: Exception) -> str:
        reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        return f"figures did not reach {self.name} ({reason})."
