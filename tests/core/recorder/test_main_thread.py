"""Calls that interrupt the main thread."""

from __future__ import annotations

import _thread
import importlib
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from overlapscope.recorder import main_thread
from overlapscope.recorder.main_thread import Interruption
from overlapscope.recorder.options import Options
from overlapscope.recorder.program import ProgramRecording


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


def test_a_recording_begins_while_the_main_thread_waits_for_another_that_imports_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    # The module below is forgotten at the end.
    monkeypatch.setitem(sys.modules, "torch", None)
    del sys.modules["torch"]
    begun, waited = threading.Event(), list[bool]()

    class NotedBegin(ProgramRecording):
        def begin(self) -> None:
            begun.set()

    NotedBegin(tmp_path / "x.trace.json", Options(), overwrites=True, stops=False).begin_with_torch()

    def work() -> None:
        importlib.import_module("torch")
        waited.append(begun.wait(5))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert waited == [True]
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


class RaisedByHandler(Exception):
    pass


def stop(number: int, frame: object) -> None:
    raise RaisedByHandler


@pytest.mark.parametrize(
    ("handler", "error"), [(signal.default_int_handler, KeyboardInterrupt), (stop, RaisedByHandler)]
)
def test_what_a_handler_raises_as_a_call_begins_reaches_the_program(
    handler: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    former, called = signal.signal(signal.SIGINT, handler), threading.Event()

    def held() -> object:
        monkeypatch.undo()
        _thread.interrupt_main()
        return main_thread.held()

    def work() -> None:
        interruption.request()
        called.wait(10)

    monkeypatch.setattr(main_thread, "held", held)
    interruption = Interruption(called.set)
    with pytest.raises(error):
        work()
    signal.signal(signal.SIGINT, former)
    assert not called.is_set() and not interruption.under_way
    interruption.request()
    assert called.wait(10)
