"""The file for speedscope has every sample of every thread once, in its format."""

from __future__ import annotations

import os
from pathlib import Path

import flask
import msgspec
import pytest

from overlapscope.commands import main
from overlapscope.commands.dashboard import recent
from overlapscope.dashboard import routes
from overlapscope.dashboard.library import Library
from overlapscope.export import speedscope
from overlapscope.reading import load
from tests.support.helpers import TRACES

SAMPLED = TRACES.parent / "tests" / "host_samples.trace.json.gz"


def test_every_sample_of_a_thread_is_in_its_profile() -> None:
    trace = load(SAMPLED, cache=False)
    activity = trace.host_activity
    written = msgspec.json.decode(speedscope.render([trace]))
    frames = written["shared"]["frames"]
    threads = {stack.thread for stack in activity.stacks}
    assert len(written["profiles"]) == len(threads)
    assert "(steps)" in written["profiles"][0]["name"]
    for profile in written["profiles"]:
        assert profile["type"] == "sampled" and len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        assert all(0 <= number < len(frames) for stack in profile["samples"] for number in stack)
    assert sum(profile["endValue"] for profile in written["profiles"]) == sum(s.samples for s in activity.stacks)
    [first] = [s for s in activity.stacks if s.thread == activity.thread][:1]
    names = [frames[number]["name"] for number in written["profiles"][0]["samples"][0]]
    assert names == [activity.frames[number].function for number in first.frames]


def test_it_is_a_format_of_analyze(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stacks.speedscope.json"
    assert main(["analyze", str(SAMPLED), "--format", "speedscope", "-o", str(file)]) == 0
    assert msgspec.json.decode(file.read_bytes())["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert main(["analyze", str(TRACES / "gpt2_train.json.gz"), "--format", "speedscope"]) != 0
    assert "no stacks of the host were sampled" in capsys.readouterr().err


def test_the_dashboard_sends_it(tmp_path: Path) -> None:
    for path in (SAMPLED, TRACES / "gpt2_train.json.gz"):
        (tmp_path / path.name).symlink_to(path)
    server = flask.Flask(__name__)
    routes.register(server, Library([tmp_path]), "/")
    sent, refused = (
        server.test_client().get("/api/speedscope", query_string={"trace": id}) for id in ("host_samples", "gpt2_train")
    )
    assert sent.data == speedscope.render([load(tmp_path / SAMPLED.name, cache=False)])
    assert sent.headers["Content-Disposition"] == "attachment; filename=host_samples.speedscope.json"
    assert refused.status_code == 409 and "no stacks of the host were sampled" in refused.get_json()["error"]


def test_the_dashboard_finds_the_latest_recordings_of_a_directory(tmp_path: Path) -> None:
    for number, name in enumerate(("old.trace.json.gz", "new.trace.json", "other.json", "notes.trace.json.txt")):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "folder.trace.json").mkdir()
    assert [path.name for path in recent(tmp_path)] == ["new.trace.json", "old.trace.json.gz"]
