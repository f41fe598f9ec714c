"""Tests of the hook that runs at the start of a program's Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.recorder import imports

ROOT = Path(imports.__file__).parents[2]


@pytest.mark.parametrize("places", [[], ["/first", "/second"], ["/first", str(ROOT), "/second"]])
def test_a_program_finds_modules_where_it_would_without_the_hook(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def path() -> str:
        script = [sys.executable, "-c", "import sys; print(sys.path)"]
        return subprocess.run(script, env=os.environ | hook, capture_output=True, text=True, check=True).stdout

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    hook: dict[str, str] = {}
    without = path()
    hook = imports.start_environment("os:getcwd")
    assert path() == without
