"""A history, asked by an assistant: it is listed, and only read, without what links beside it lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.assistant import ToolError, assistant
from tests.support.helpers import TRACES

pytest.importorskip("overlapscope.plugins.assistant")


def test_a_history_is_listed_and_read_unless_there_are_links_beside_it(tmp_path: Path) -> None:
    folder, outside = tmp_path / "traces", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    file = folder / "h.sqlite"
    assert main(["history", "add", str(TRACES / "gpt2_train.json.gz"), "--history", str(file), "--job", "train"]) == 0
    (folder / "bad.json").write_text("{}")
    kept = file.read_bytes()
    with assistant(folder) as asked:
        assert {each["path"]: each["kind"] for each in asked.all("list_traces", "files")}["h.sqlite"] == "history"
        assert asked.ask("history", path="h.sqlite")["job"] == "train"
        with pytest.raises(ToolError, match="is not a history"):
            asked.ask("history", path="bad.json")
        (folder / "h.sqlite-wal").symlink_to(outside / "wal")
        for _ in range(2):
            with pytest.raises(ToolError, match=r"h\.sqlite-wal beside it is a link"):
                asked.ask("history", path="h.sqlite")
            (outside / "wal").write_bytes(b"x" * 100)
    assert file.read_bytes() == kept
