"""Tests of `overlapscope record --url` with a small real server (`tests/programs/server.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import RecordingFailed
from overlapscope.plugins.serving.client import record_server
from overlapscope.trace.servers import batches
from tests.support.outcomes import ROOT
from tests.support.recorded import names

pytest.importorskip("torch", reason="the server runs a model")
pytest.importorskip("overlapscope.plugins.watch", reason="the command belongs to that plugin")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def url(traces: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.programs.server", "--traces", str(traces)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.fixture
def _asked(url: str) -> Iterator[None]:
    """Three clients that ask until the test ends."""
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            content = json.dumps({"prompt": [*range(5 + number)], "max_tokens": 8}).encode()
            with urlopen(Request(f"{url}/v1/completions", data=content, method="POST")) as answer:
                answered: dict[str, Any] = json.load(answer)
            assert len(answered["tokens"]) == 8

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for client in clients:
        client.start()
    yield
    over.set()
    for client in clients:
        client.join()


@pytest.mark.usefixtures("_asked")
def test_a_server_records_itself_and_its_steps_have_phases(
    url: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--url", url, "--traces", str(traces), "--seconds", "0.3"]) == 0
    printed = capsys.readouterr()
    path = min(traces.glob("*.json.gz"))
    assert path.name in printed.out and path.name in printed.err
    steps = batches(names(path))
    assert {batch.phase for batch in steps.values()} == {"prefill", "decode"}
    (result,) = ov.analyze(path).traces
    assert result.step_source == "marks of vLLM"


@pytest.mark.usefixtures("_asked")
def test_stacks_and_captures_are_those_that_the_user_asks_for(
    url: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures, before = str(ROOT / "tests/graphs/served-capture.json.gz"), {*traces.iterdir()}
    asked = ["record", "--url", url, "--traces", str(traces), "--seconds", "0.1", "--capture", captures]
    assert main([*asked, "--stacks"]) == 0
    assert f" --capture {captures}` shows the report again." in capsys.readouterr().err
    (path,) = {*traces.iterdir()} - before
    frames = ov.load(path).python_frames
    assert frames.named(lambda name: name.endswith(": _step")).any()
    (path,) = record_server(url, traces, 0.1)
    assert not len(ov.load(path).python_frames)


@pytest.mark.usefixtures("_asked")
def test_an_interrupted_recording_leaves_a_server_that_can_be_recorded_again(url: str, traces: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_server(url, traces, 0.1, begun=interrupt)
    assert len(record_server(url, traces, 0.1)) == 1


@pytest.mark.usefixtures("_asked")
def test_traces_that_come_elsewhere_are_a_sentence(url: str, tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match="no trace has come into"):
        record_server(url, tmp_path, 0.1, patience_s=0.5)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{url}/elsewhere", "404 (Not Found). It has no profiler: start vLLM with"),
        ("http://127.0.0.1:9", "cannot be reached"),
        ("127.0.0.1:8000", "is no address of a server"),
        ("file:///etc/passwd", "is no address of a server"),
    ],
)
def test_an_address_that_is_no_server_is_a_sentence(
    address: str, said: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--url", address.format(url=url), "--traces", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--url", "http://a"], ["--traces", "."], ["7", "--url", "http://a"], []])
def test_a_server_is_named_with_its_directory_and_without_a_process(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *arguments]) == 2
    assert "--url" in capsys.readouterr().err
