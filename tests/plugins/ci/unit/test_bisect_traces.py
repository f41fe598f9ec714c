"""`overlapscope bisect` among stored traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.helpers import TRACES

KEEPS, LOSES = (TRACES / f"further/training/{name}.json.gz" for name in ("prefetched", "late"))


def nights(folder: Path, *recordings: Path | bytes) -> list[str]:
    paths = []
    for number, recording in enumerate(recordings):
        path = folder / f"night{number}.json.gz"
        path.write_bytes(recording) if isinstance(recording, bytes) else shutil.copy(recording, path)
        paths.append(str(path))
    return paths


def test_the_first_night_is_found_and_unreadable_ones_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    paths = nights(tmp_path, KEEPS, KEEPS, KEEPS, b"damaged", LOSES, LOSES, LOSES)
    assert main(["bisect", "--format", "json", paths[0], *paths[2:]]) == 1
    possible = json.loads(capsys.readouterr().out)["possible"]
    assert [each["id"] for each in possible] == paths[3:5]
    assert main(["bisect", *paths[:3], *paths[4:]]) == 0
    shown = capsys.readouterr()
    assert "night4.json.gz is the first that loses what" in shown.out
    assert "overlap lost: H2D" in shown.out


@pytest.mark.parametrize(
    ("recordings", "said"),
    [
        ((KEEPS, KEEPS), "nothing is lost by order. If it is slower, `overlapscope diff` of both says why."),
        ((KEEPS, b"damaged"), "can't be judged"),
        ((KEEPS,), "name two traces or more"),
    ],
)
def test_without_a_loss_there_is_nothing_to_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recordings: tuple[Path | bytes, ...], said: str
) -> None:
    assert main(["bisect", *nights(tmp_path, *recordings)]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_that_is_named_twice_has_no_place_in_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = nights(tmp_path, KEEPS, LOSES, KEEPS)
    assert main(["bisect", *paths, paths[0]]) == 2
    assert main(["bisect", paths[2], str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("is named twice") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name traces that exist, or two commits and a program"),
        (["v1", "v2"], "name traces that exist, or two commits and a program"),
        (["v1", "--", "python", "train.py"], "name two commits and a program"),
        (["v1", "v2", "--"], "name two commits and a program"),
        (["a.json", "b.json", "--by", "step-time"], "stored traces are judged by order"),
        (["v1", "v2", "python", "train.py", "--lr", "1"], "unrecognized arguments: --lr"),
        (["v1", "v2", "--timeout", "soon", "--", "python", "train.py"], "is not a length of time"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_wrong_usage_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", *words]) == 2
    assert said in capsys.readouterr().err
