"""Tests of the hook that runs at the start of a program's Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.recorder import imports

ROOT = Path(imports.__file__).parents[2]


def run(code: str, hook: dict[str, str]) -> str:
    script = [sys.executable, "-c", code]
    return subprocess.run(script, env=os.environ | hook, capture_output=True, text=True, check=True).stdout


def test_the_hook_imports_no_module_that_could_hide_one_of_the_program() -> None:
    code = "import sys; print(*sys.modules)"
    with_hook, without = (set(run(code, hook).split()) for hook in (imports.start_environment("os:getcwd"), {}))
    assert "sitecustomize" in with_hook and with_hook - without <= {"sitecustomize", "__future__"}


@pytest.mark.parametrize("places", [[], ["/first", "/second"], ["/first", str(ROOT), "/second"]])
def test_a_program_finds_modules_where_it_would_without_the_hook(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    code = "import sys; print(sys.path)"
    assert run(code, imports.start_environment("os:getcwd")) == run(code, {})
