"""Tests of messages about missing optional packages: the command in them works for this installation."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from overlapscope.base import extras

ROOT = Path(__file__).parents[3]


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        name: {re.split(r"[<>=]", package)[0] for package in packages}
        for name, packages in project["optional-dependencies"].items()
        if name != "all"
    }
    packages = metadata.packages_distributions()
    assert {name: declared[name] for name in extras.extras()} == {
        name: {*(packages[module][0].replace("_", "-") for module in extra.modules), *extra.programs}
        for name, extra in extras.extras().items()
    }


CHECKOUT = ROOT.as_uri()


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install -e '.[record]'"),
        ({"url": CHECKOUT, "dir_info": {"editable": True}}, f"pip install -e '{ROOT}[record]'"),
        ({"url": CHECKOUT, "dir_info": {}}, f"pip install '{ROOT}[record]'"),
        ({"url": "file:///no/such/place", "dir_info": {}}, "pip install -e '.[record]'"),
        (
            {"url": "https://host/it.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'overlapscope[record] @ git+https://host/it.git@abc'",
        ),
        (
            {"url": "https://host/it.whl", "archive_info": {}},
            "pip install 'overlapscope[record] @ https://host/it.whl'",
        ),
    ],
)
def test_the_line_is_for_where_this_installation_came_from(
    origin: dict[str, Any] | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "overlapscope-9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: overlapscope\nVersion: 9\n")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert extras.install_line("record") == line


def test_a_path_with_blanks_is_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "my code"
    about = place / "overlapscope-9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: overlapscope\nVersion: 9\n")
    (about / "direct_url.json").write_text(json.dumps({"url": place.as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(place)
    assert extras.install_line("cluster") == f"pip install '{place}[cluster]'"


def test_a_checkout_that_was_never_installed_is_installed_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert extras.install_line("cluster") == f"pip install -e '{ROOT}[cluster]'"


def test_what_is_large_is_reported_before_it_is_installed() -> None:
    assert "2.8 GB" in extras.how_to_install("record") and extras.CPU_TORCH in extras.how_to_install("record")
