"""Modules of the program that are named like modules of Python's library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from overlapscope.recorder import imports


@pytest.mark.parametrize(("file", "apart"), [("queue.py", True), ("python/lib/queue.py", False)])
@pytest.mark.parametrize("named", [True, False], ids=["script", "-c"])
def test_a_module_that_is_loaded_is_the_programs_only_if_it_is_in_its_folder(
    file: str, apart: bool, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("")
    module = ModuleType("queue")
    module.__file__ = str(tmp_path / file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "queue", module)
    monkeypatch.setattr(sys, "meta_path", finders := [*sys.meta_path])
    before = len(finders)
    imports.keep_apart(str(tmp_path) if named else "")
    assert len(finders) - before == apart


def test_a_program_may_wrap_the_finders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    imports.when_torch_is_imported(lambda: None)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=finder.find_spec) for finder in sys.meta_path])
    importlib.util.find_spec("torch")
