"""Calls that interrupt the main thread."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import pytest

from overlapscope.recorder.main_thread import Interruption


def test_a_call_waits_until_the_main_thread_has_what_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_slowly.py").write_text("import sys\nsys.begun.set()\nsys.goes_on.wait(10)\nsys.ask()\n")
    (tmp_path / "imported_by_the_call.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    called, begun, goes_on = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        importlib.import_module("imported_by_the_call")
        called.set()

    interruption = Interruption(call)
    for name, value in {"begun": begun, "goes_on": goes_on, "ask": interruption.request}.items():
        monkeypatch.setattr(sys, name, value, raising=False)
    thread = threading.Thread(target=importlib.import_module, args=("imported_slowly",))
    thread.start()
    assert begun.wait(10)
    threading.Timer(0.1, goes_on.set).start()
    importlib.import_module("imported_slowly")
    thread.join()
    assert called.wait(10)
