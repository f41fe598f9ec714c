"""Ranks of one report of Nsight Systems."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.helpers import TRACES


def test_ranks_joins_the_processes_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train_2gpu.sqlite"
    path.write_bytes(lzma.decompress((TRACES / "nsys" / "train_2gpu.sqlite.xz").read_bytes()))
    assert main(["ranks", "--format", "json", str(path)]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert [(rank["rank"], Path(rank["source"]).name) for rank in ranks] == [
        (0, "train_2gpu.sqlite@0"),
        (1, "train_2gpu.sqlite@1"),
    ]
