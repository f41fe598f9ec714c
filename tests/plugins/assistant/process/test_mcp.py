"""`overlapscope mcp`, asked by the SDK's own client over stdin and stdout."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from overlapscope import analyze
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.plugins.assistant.answers import MAX_BYTES
from tests.support.assistant import Assistant, ToolError, assistant
from tests.support.helpers import TRACES
from tests.support.kineto_files import kernel, memcpy, write

GPT2, TRAINING = "gpt2_train.json.gz", "recorder/overlapscope.trace.json.gz"
TOOLS = {"list_traces", "open_trace", "verdict", "findings", "explain", "whatif", "diff", "check", "ranks"}


@pytest.fixture(scope="module")
def asked() -> Iterator[Assistant]:
    with assistant(TRACES) as shared:
        yield shared


def all_traces(asked: Assistant) -> list[str]:
    return [file["path"] for file in asked.all("list_traces", "files") if file["kind"] == "trace"]


def test_every_tool_says_what_it_does_and_that_it_changes_nothing(asked: Assistant) -> None:
    tools = asked.portal.call(asked.client.list_tools).tools
    assert {tool.name for tool in tools} >= TOOLS
    for tool in tools:
        assert tool.description and tool.description.endswith(".")
        assert tool.annotations is not None and tool.annotations.read_only_hint
        for parameter in tool.input_schema["properties"].values():
            assert parameter["description"]


def test_verdicts_are_those_of_the_report(asked: Assistant) -> None:
    for path in all_traces(asked)[::20]:
        verdicts = asked.all("verdict", "verdicts", path=path)
        devices = analyze(TRACES / path).devices
        with_device = [verdict for verdict in verdicts if "device" in verdict]
        assert [item["device"] for item in with_device] == [device.device for device in devices]
        for verdict, device in zip(with_device, devices, strict=True):
            recorded = verdict["recorded_window"]
            assert recorded["span_ns"] == device.span_ns
            assert {name: recorded[f"{name}_ns"] for name in ("compute", "exposed_copy", "idle")} == {
                "compute": device.buckets.compute_ns,
                "exposed_copy": device.buckets.exposed_copy_ns,
                "idle": device.buckets.idle_ns,
            }
            assert recorded["idle_by_cause"] == {cause: ns for cause, ns in device.idle_by_cause.items() if ns}
            assert (verdict["plain_step"] or {}).get("step_ns") == (device.plain.step_ns if device.plain else None)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("open_trace", {}),
        ("verdict", {}),
        ("findings", {}),
        ("whatif", {}),
        ("whatif", {"changes": ["pin", "side-stream"]}),
        ("check", {"budgets": ["efficiency_pct >= 80%", "step_time <= 1 ms"]}),
    ],
)
@pytest.mark.parametrize("path", [GPT2, TRAINING, "known_causes/same_stream.json.gz"])
def test_an_answer_is_small_and_leaves_nothing_to_be_guessed(
    asked: Assistant, tool: str, arguments: dict[str, object], path: str
) -> None:
    text = asked.text(tool, path=path, **arguments)
    assert len(text.encode()) <= MAX_BYTES
    answer = json.loads(text)
    assert answer["figures"] and "nanoseconds" in answer["units"] and "data" in answer["names"]
    assert isinstance(answer["unknown"], list)


def test_pages_have_everything_once(asked: Assistant) -> None:
    pages = asked.ask("list_traces")["pages"]
    assert pages > 1
    with pytest.raises(ToolError, match=f"there is no page {pages + 1}; pages go from 1 to {pages}"):
        asked.ask("list_traces", page=pages + 1)
    paths = all_traces(asked)
    assert len(paths) == len(set(paths)) and all((TRACES / path).is_file() for path in paths)


def test_two_recordings_are_compared_and_ranks_joined(asked: Assistant) -> None:
    changed = asked.ask("diff", before="streamed0_pinned0.json.gz", after="streamed1_pinned1.json.gz")
    [span] = (change for change in changed["changes"] if change.get("name") == "span")
    assert (span["before"], span["after"], span["beyond_noise"]) == (4025596, 461536, None)
    ranks = asked.ask("ranks", path="laboratory/fsdp_offload/offload.traces")
    assert ranks["straggler"]["rank"] == 0 and [row["rank"] for row in ranks["ranks"]] == [0, 1]
    plain_step = asked.ask("verdict", path=GPT2, plain_step_ns=40_000_000)["verdicts"][0]["plain_step"]
    assert (plain_step["step_ns"], plain_step["origin"]) == (40_000_000, "told")


def test_words_are_explained(asked: Assistant) -> None:
    explained = asked.all("explain", "text", word="host-sync")
    assert any("synchronize" in line for line in explained)
    with pytest.raises(ToolError, match="no report uses the word"):
        asked.ask("explain", word="wibble")


@pytest.mark.parametrize(
    "path", ["../README.md", "/etc/passwd", "/etc/no-such-file", "~/x", "..", "s3://bucket/x.json", "a\0b", "-"]
)
def test_nothing_outside_is_read_and_its_existence_is_not_revealed(asked: Assistant, path: str) -> None:
    with pytest.raises(ToolError, match=r"list_traces|zero byte"):
        asked.ask("verdict", path=path)
    with pytest.raises(ToolError):
        asked.ask("diff", before=GPT2, after=path)
    with pytest.raises(ToolError):
        asked.ask("check", path=GPT2, baseline=path)


def test_links_to_files_outside_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    folder, outside = tmp_path / "traces", tmp_path / "outside.json"
    folder.mkdir()
    write(outside, [kernel(0, 5, correlation=1)])
    (folder / "link.json").symlink_to(outside)
    write(folder / "bad.json", [kernel(0, 5, correlation=1), memcpy(10, 5, correlation=2)])
    (folder / "report.json").write_bytes(encode(analyze(TRACES / GPT2)))
    before = content(tmp_path)
    with assistant(folder) as asked:
        assert "link.json" not in all_traces(asked)
        with pytest.raises(ToolError, match="not in the directories"):
            asked.ask("verdict", path="link.json")
        kinds = {file["path"]: file["kind"] for file in asked.all("list_traces", "files")}
        assert kinds == {"bad.json": "trace", "report.json": "report"}
        assert asked.ask("verdict", path="report.json")["verdicts"][0]["recorded_window"]["span_ns"] == 164_374_063
    assert content(tmp_path) == before


def test_recordings_in_a_file_are_distinguished_and_no_program_unpacks_any(tmp_path: Path) -> None:
    pytest.importorskip("overlapscope.plugins.nsys")
    (tmp_path / "two.sqlite").write_bytes(lzma.decompress((TRACES / "nsys/offload_2gpu.sqlite.xz").read_bytes()))
    (tmp_path / "x.nsys-rep").write_text("x")
    before = content(tmp_path)
    with assistant(tmp_path) as asked:
        assert all_traces(asked) == ["two.sqlite@0", "two.sqlite@1"]
        with pytest.raises(ToolError, match=r"two.sqlite: holds 2 .* one of them: two.sqlite@0 and two.sqlite@1"):
            asked.ask("open_trace", path="two.sqlite")
        assert asked.ask("open_trace", path="two.sqlite@1")["devices"]
        assert len(asked.all("verdict", "verdicts", path="two.sqlite")) == 2
        with pytest.raises(ToolError, match=r"x.nsys-rep: has to be converted to .sqlite first"):
            asked.ask("verdict", path="x.nsys-rep")
    assert content(tmp_path) == before


def test_answers_do_not_depend_on_where_links_beside_a_file_lead(tmp_path: Path) -> None:
    folder, outside = tmp_path / "traces", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "two.sqlite").write_bytes(lzma.decompress((TRACES / "nsys/offload_2gpu.sqlite.xz").read_bytes()))
    (folder / "two.sqlite-wal").symlink_to(outside / "wal")
    (folder / "y").symlink_to(outside / "wal")
    (folder / "two.sqlite@1").symlink_to(outside / "wal")
    (folder / "plugins").mkdir()
    (folder / "plugins/profile").mkdir()
    (folder / "plugins/profile/run").symlink_to(outside)

    def answers() -> list[str]:
        problems = []
        with assistant(folder) as asked:
            for path in ("two.sqlite@0", "two.sqlite@1", "y@1", "y", "."):
                try:
                    problems.append(asked.text("verdict", path=path))
                except ToolError as refused:
                    problems.append(str(refused))
        return problems

    nothing = answers()
    (outside / "wal").write_bytes(b"x" * 100)
    (outside / "host.xplane.pb").write_bytes(b"")
    assert answers() == nothing


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_other_files_in_a_folder_stop_no_command(tmp_path: Path) -> None:
    folder, outside = tmp_path / "traces", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    write(folder / "good.json", [kernel(0, 5, correlation=1)])
    (outside / "two.sqlite").write_bytes(lzma.decompress((TRACES / "nsys/offload_2gpu.sqlite.xz").read_bytes()))
    write(outside / "secret.json", [kernel(0, 5, correlation=1)])
    (folder / "two.sqlite").symlink_to(outside / "two.sqlite")
    (folder / "away").symlink_to(outside)
    (folder / "broken.json").symlink_to(folder / "nowhere.json")
    (folder / "round.json").symlink_to(folder / "round.json")
    write(folder / "new\nline.json", [kernel(0, 5, correlation=1)])
    os.mkfifo(folder / "pipe.json")
    with assistant(folder) as asked:
        assert [file["path"] for file in asked.ask("list_traces")["files"]] == ["good.json"]
        assert len(asked.ask("verdict", path=".")["verdicts"]) == 2
        links = ("two.sqlite", "two.sqlite@0", "away", "away/secret.json", "broken.json", "round.json")
        for path in (*links, "pipe.json"):
            with pytest.raises(ToolError, match="list_traces"):
                asked.ask("verdict", path=path)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("verdict", {"path": "x" * 100_000}, "cannot be a name|no such file"),
        ("verdict", {"path": "a/" * 3000}, "cannot be a name|no such file"),
        ("findings", {"path": GPT2, "rule": "nonsense"}, "there is no rule"),
        ("check", {"path": GPT2, "budgets": ["x" * 20_000]}, "is not a budget"),
        ("whatif", {"path": GPT2, "changes": ["pin " + "x" * 9000]}, "pin"),
    ],
)
def test_errors_are_short_and_say_why(asked: Assistant, tool: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ToolError, match=message) as refused:
        asked.ask(tool, **arguments)
    assert len(str(refused.value)) < 1_200


def test_many_ask_at_once(asked: Assistant) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked.text("verdict", path=GPT2), range(16)))
    assert len(set(answers)) == 1


def test_what_is_not_a_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
