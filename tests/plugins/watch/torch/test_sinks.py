"""Figures of a recording arrive where people look already: read back by the tools themselves, or as they write."""

from __future__ import annotations

import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as prometheus
from prometheus_client.openmetrics import parser as openmetrics

from overlapscope.errors import UsageError
from overlapscope.plugins.watch import sinks
from overlapscope.plugins.watch.sinks import Outlet, SentFigures, Sink, sink
from tests.support.dask_processes import wait_until

SCALARS = {"efficiency_pct": 80.5, "idle_ms": 1.5, "copy_gb_per_s": 12.0}
AT_NS = 1_795_399_082_000_000_000


@pytest.fixture
def sent(tmp_path: Path) -> SentFigures:
    report = tmp_path / "report.html"
    report.write_text("<p>a report</p>")
    return SentFigures("train.py", 40, AT_NS, SCALARS, report)


def arrived(asked: Any, sent: SentFigures) -> None:
    outlet = Outlet(sink(asked))
    assert outlet.bind() is None
    assert outlet.send(sent) is None


def test_tensorboard_reads_scalars_and_the_place_of_the_report(sent: SentFigures, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "runs") as writer:
        arrived(writer, sent)
    events = EventAccumulator(str(tmp_path / "runs")).Reload()
    assert {tag.removeprefix("overlap/") for tag in events.Tags()["scalars"]} == SCALARS.keys()
    (event,) = events.Scalars("overlap/efficiency_pct")
    assert (event.step, event.value, event.wall_time) == (40, 80.5, AT_NS / 1e9)
    (text,) = events.Tensors("overlap/report/text_summary")
    assert str(sent.report) in text.tensor_proto.string_val[0].decode()


def test_mlflow_has_metrics_and_the_newest_report_in_the_run_of_the_stepping_thread(
    sent: SentFigures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(str(tmp_path / "mlruns"))
    try:
        outlet = Outlet(sink("mlflow"))
        assert "mlflow.start_run()" in (outlet.bind() or "")
        with mlflow.start_run() as run:
            arrived("mlflow", sent)
            arrived("mlflow", sent)
        client = mlflow.MlflowClient()
        metric = client.get_metric_history(run.info.run_id, "overlap/idle_ms")[0]
        assert (metric.value, metric.step, metric.timestamp) == (1.5, 40, AT_NS // 1_000_000)
        assert [file.path for file in client.list_artifacts(run.info.run_id, "overlap")] == ["overlap/report.html"]
    finally:
        mlflow.set_tracking_uri("")


def test_a_run_of_wandb_has_metrics_the_report_and_its_own_steps_undisturbed(
    sent: SentFigures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert "wandb.init()" in (Outlet(sink("wandb")).bind() or "")
    run = wandb.init(project="p", mode="offline", settings=wandb.Settings(console="off", x_disable_stats=True))
    run.log({"loss": 0.9}, step=40)
    arrived("wandb", sent)
    run.log({"accuracy": 0.5}, step=40)
    run.log({"loss": 0.8}, step=41)
    arrived(run, sent)
    run.finish()

    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")

    def written() -> list[Any]:
        return list(wandb_records(file.read_bytes()))

    # Its process goes on writing when `finish` has returned.
    wait_until(lambda: any(record.WhichOneof("record_type") == "exit" for record in written()), "the run is written")
    records = written()
    rows = [
        {item.nested_key[0]: item.value_json for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["_step"] for row in rows] == ["40", "41"]
    assert rows[0]["loss"] == "0.9" and rows[0]["accuracy"] == "0.5", "what the program logs for its step is kept"
    for row in rows:
        assert (row["overlap/step"], row["overlap/efficiency_pct"]) == ("40", "80.5")
    artifacts = [record.artifact for record in records if record.WhichOneof("record_type") == "artifact"]
    assert [entry.path for entry in artifacts[0].manifest.contents] == ["report.html"]


def wandb_records(data: bytes) -> Iterator[Any]:
    """Yield the records of a run's file: a head of 7 bytes, then the blocks of a log of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    at, whole = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined, unused-ignore]
            record.ParseFromString(whole)
            yield record
            whole = b""


def read(text: str, parser: Any = openmetrics) -> dict[str, tuple[dict[str, str], float]]:
    """By name: labels and value."""
    families = parser.text_string_to_metric_families(text)
    return {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}


EXPECTED = {
    "overlapscope_efficiency_ratio": 0.805,
    "overlapscope_idle_seconds": 0.0015,
    "overlapscope_copy_bytes_per_second": 12e9,
    "overlapscope_steps_made": 40,
    "overlapscope_recorded_seconds": AT_NS / 1e9,
}


def test_a_textfile_is_read_by_prometheus_in_both_formats(sent: SentFigures, tmp_path: Path) -> None:
    arrived(f"prometheus:{tmp_path}/overlap.prom", sent)
    text = (tmp_path / "overlap.prom").read_text()
    for parser in (prometheus, openmetrics):
        contents = read(text, parser)
        assert {name: value for name, (_, value) in contents.items()} == EXPECTED
        assert all(labels == {"program": "train.py"} for labels, _ in contents.values())
    assert [path.name for path in tmp_path.glob("*.prom*")] == ["overlap.prom"], "nothing unfinished beside it"


def test_a_port_of_this_machine_answers_with_the_newest_figures(sent: SentFigures) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outlet = Outlet(sink(f"prometheus:{port}"))
    assert outlet.bind() is None
    where = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(where) as answer:
        assert read(answer.read().decode()) == {}
    assert outlet.send(sent) is None
    with urllib.request.urlopen(where) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        contents = read(answer.read().decode())
    assert {name: value for name, (_, value) in contents.items()} == EXPECTED


def test_a_port_that_is_taken_is_reported(sent: SentFigures) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outlet = Outlet(sink(f"prometheus:{taken.getsockname()[1]}"))
        assert "did not reach Prometheus" in (outlet.bind() or "")
        assert outlet.send(sent) is None, "said once"


def test_names_of_programs_are_escaped(sent: SentFigures, tmp_path: Path) -> None:
    hostile = SentFigures('a"b\\\n\x1b[31m.py', 1, AT_NS, {}, None)
    arrived(f"prometheus:{tmp_path}/overlap.prom", hostile)
    text = (tmp_path / "overlap.prom").read_text()
    contents = read(text)
    assert "\x1b" not in text and contents["overlapscope_steps_made"][0]["program"].startswith('a"b')


def test_a_logger_of_lightning_takes_metrics(sent: SentFigures, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    arrived(logger, sent)
    assert re.search(r"80\.5", Path(logger.log_dir, "metrics.csv").read_text())


@pytest.mark.parametrize("asked", ["", "wandb ", "prometheus", "prometheus:", "prometheus:0", "prometheus:x", 3])
def test_what_is_not_a_sink_is_refused_in_a_sentence(asked: object) -> None:
    with pytest.raises(UsageError, match=r"prometheus:|log="):
        sink(asked)


def test_a_sink_that_raises_is_reported_and_one_that_hangs_is_not_waited_for(
    sent: SentFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SentFigures) -> None:
        raise RuntimeError("no such project")

    failing = Outlet(Sink("a tool", lambda: fail))
    assert failing.bind() is None
    assert failing.send(sent) == "figures did not reach a tool (RuntimeError: no such project)."

    monkeypatch.setattr(sinks, "PATIENCE_S", 0.01)
    released, calls = threading.Event(), list[SentFigures]()

    def hang(sent: SentFigures) -> None:
        calls.append(sent)
        released.wait()

    hanging = Outlet(Sink("a tool", lambda: hang))
    assert hanging.bind() is None
    assert "does not wait" in (hanging.send(sent) or "")
    assert "does not wait" in (hanging.send(sent) or "")
    assert calls == [sent], "what hangs is not asked again"
    released.set()
