"""Tests of reports of Nsight Systems with several ranks, and through a pipe."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [("train_2gpu", 2, "holds 2 processes; write it to a file"), ("one_copy", 0, "GPU is idle")],
)
def test_a_report_can_come_through_a_pipe(name: str, status: int, says: str) -> None:
    content = lzma.decompress((TRACES / "nsys" / f"{name}.sqlite.xz").read_bytes())
    command = [sys.executable, "-m", "overlapscope", "analyze", "-"]
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    assert done.returncode == status
    assert says in " ".join((done.stdout + done.stderr).decode().split())
