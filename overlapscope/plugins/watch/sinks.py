"""Tools that figures of recordings are sent to.

A sink is bound on the thread of the steps, which knows the tool's run. It sends on another thread, since it may raise
any exception and take long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from overlapscope.base import disk
from overlapscope.base.words import clean, shorten
from overlapscope.budgets.formats import CONTENT_TYPE, family, text
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


def sink(destination: Any) -> Sink:
    """Return the sink for an argument of `watch(log=...)`. Raises UsageError for other objects."""
    if isinstance(destination, str):
        kind, _, target = destination.partition(":")
        if kind == "prometheus" and target:
            return Sink("Prometheus", _binder(target))
        if destination in _ACTIVE:
            return Sink(*_ACTIVE[destination])
    else:
        # The run that a logger of Lightning writes to accepts more than the logger.
        for tool in (getattr(destination, "experiment", None), destination):
            for attributes, name, bind in _BY_ATTRIBUTES:
                if all(callable(getattr(tool, attribute, None)) for attribute in attributes):
                    return Sink(name, partial(bind, tool))
    raise UsageError(
        f"log={shorten(repr(destination), 60)} is nothing that takes figures; pass a SummaryWriter of TensorBoard, "
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


# -- Tools ------------------------------------------------------------------------------------------


def _bind_writer(writer: Any) -> Send:
    """Bind a SummaryWriter of torch or tensorboardX, which accepts scalars and the path of the report on any thread."""

    def send(figures: SentFigures) -> None:
        at_s = figures.at_ns / 1e9
        for name, value in named(figures).items():
            writer.add_scalar(name, value, figures.step, at_s)
        if figures.report is not None:
            writer.add_text("overlap/report", f"`{figures.report}`", figures.step, at_s)
        writer.flush()

    return send


def _bind_logger(logger: Any) -> Send:
    """Bind a logger of a trainer."""

    def send(figures: SentFigures) -> None:
        logger.log_metrics(named(figures), figures.step)
        logger.save()

    return send


def _bind_mlflow() -> Send:
    """Bind the run that is active on this thread, since MLflow keeps it by thread."""
    import mlflow

    run = mlflow.active_run()
    if run is None:
        raise UsageError("no run is active on the thread that makes the steps; call mlflow.start_run() first")
    client, run_id = mlflow.MlflowClient(), run.info.run_id

    def send(figures: SentFigures) -> None:
        at_ms = figures.at_ns // 1_000_000
        metrics = [mlflow.entities.Metric(name, value, at_ms, figures.step) for name, value in named(figures).items()]
        client.log_batch(run_id, metrics=metrics)
        if figures.report is not None:
            client.log_artifact(run_id, str(figures.report), "overlap")

    return send


def _bind_wandb() -> Send:
    """Bind the current run."""
    import wandb

    if wandb.run is None:
        raise UsageError("no run is active; call wandb.init() first")
    return _bind_run(wandb.run)


def _bind_run(run: Any) -> Send:
    """Bind a run."""

    def send(figures: SentFigures) -> None:
        import wandb

        step = "overlap/step"
        run.define_metric(step, hidden=True)
        run.define_metric("overlap/*", step_metric=step)
        # Without `commit`, the figures join the program's next row. A row of ours would count as a step of the program,
        # whose figures for its present step would then be refused.
        run.log(named(figures) | {step: figures.step}, commit=False)
        if figures.report is not None:
            artifact = wandb.Artifact(f"overlap-report-{run.id}", type="report")
            artifact.add_file(str(figures.report), name="report.html")
            run.log_artifact(artifact)

    return send


_ACTIVE: Final = {"wandb": ("Weights & Biases", _bind_wandb), "mlflow": ("MLflow", _bind_mlflow)}
"""Tools whose active run is bound."""
_BY_ATTRIBUTES: Final[tuple[tuple[set[str], str, Callable[[Any], Send]], ...]] = (
    ({"add_scalar", "add_text"}, "TensorBoard", _bind_writer),
    ({"define_metric", "log_artifact"}, "Weights & Biases", _bind_run),
    ({"log_metrics"}, "the trainer's logger", _bind_logger),
)
"""Methods by which a writer, a run or a logger is recognized without an import of its tool."""


# -- Prometheus: a file for the textfile collector of node_exporter, or a port of this machine's own -----

_UNITS: Final = (
    ("_pct", "ratio", 100),
    ("_ms", "seconds", 1000),
    ("_gb_per_s", "bytes_per_second", 1e-9),
)
"""Endings of names of figures, each with its base unit and the divisor for it."""
_PATIENCE_S = 10.0
"""Timeout of a connection, in seconds."""


def _binder(target: str) -> Callable[[], Send]:
    """Return a function that binds a port or a file. Raises UsageError for other targets."""
    if target.isdecimal():
        if not 0 < int(target) < 1 << 16:
            raise UsageError(f"prometheus:{target} is not a port; ports are from 1 to 65535.")
        return lambda: _port(int(target))
    path = Path(target).expanduser().absolute()
    if path.suffix != ".prom":
        raise UsageError(f"prometheus:{target} is neither a port nor a file that ends in .prom.")
    return lambda: lambda figures: disk.write(path, [exposition(figures).encode()])


def exposition(figures: SentFigures) -> str:
    """Return the figures as text, in base units."""
    labels = {"program": clean(figures.program, 200)}
    lines = [
        *family(
            "overlapscope_steps_made", "Steps made before the end of the last recording.", [(labels, figures.step)]
        ),
        *family(
            "overlapscope_recorded_seconds",
            "When the last recording was made, in seconds since 1970.",
            [(labels, figures.at_ns / 1e9)],
            unit="seconds",
        ),
    ]
    for name, value in figures.scalars.items():
        stem, unit, divisor = _base(name)
        full = f"overlapscope_{stem}" + (f"_{unit}" if unit else "")
        lines += family(full, f"{name} of a step in the last recording.", [(labels, value / divisor)], unit=unit)
    return text(lines)


def _base(name: str) -> tuple[str, str | None, float]:
    for ending, unit, divisor in _UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending), unit, divisor
    return name, None, 1.0


_pages: dict[int, _Page] = {}
"""Pages of this process, by port."""


def _port(number: int) -> Send:
    page = _pages.get(number)
    if page is None:
        page = _pages[number] = _Page(number)
    return page.show


class _Page:
    """A server on 127.0.0.1 that answers with the figures of the latest recording."""

    def __init__(self, port: int) -> None:
        """Start the server. Raises OSError if the port is in use."""
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        page = self
        self._body = text([]).encode()

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                body = page._body
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        # A forked child would keep the port in use after the end of this process.
        os.register_at_fork(after_in_child=server.socket.close)
        threading.Thread(target=server.serve_forever, name="overlapscope", daemon=True).start()

    def show(self, figures: SentFigures) -> None:
        """Show these figures."""
        self._body = exposition(figures).encode()
