"""Figures of a recording are sent to functions of the program."""

from __future__ import annotations

import threading

import pytest

from overlapscope.errors import UsageError
from overlapscope.plugins.watch import continuous
from overlapscope.plugins.watch.continuous import Outlet, SentFigures, settings

FIGURES = SentFigures("train.py", 40, 1_795_399_082_000_000_000, {"efficiency_pct": 80.5}, None)


@pytest.mark.parametrize("asked", ["wandb", 3, [print, 3]])
def test_what_is_not_a_function_is_refused_in_a_sentence(asked: object) -> None:
    with pytest.raises(UsageError, match="is not a function that takes figures"):
        settings("1h", steps=1, keep="0", job=None, history=None, log=asked)


def test_a_function_gets_the_figures_on_another_thread() -> None:
    got = list[tuple[SentFigures, int]]()
    assert Outlet(lambda figures: got.append((figures, threading.get_ident()))).send(FIGURES) is None
    ((figures, thread),) = got
    assert figures == FIGURES and thread != threading.get_ident()


def test_one_that_raises_is_reported_and_one_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def tool(_: SentFigures) -> None:
        raise RuntimeError("no such project")

    failing = Outlet(tool)
    assert (failing.send(FIGURES) or "").endswith("tool (RuntimeError: no such project).")

    monkeypatch.setattr(continuous, "PATIENCE_S", 0.01)
    released, calls = threading.Event(), list[SentFigures]()

    def hang(figures: SentFigures) -> None:
        calls.append(figures)
        released.wait()

    hanging = Outlet(hang)
    assert "does not wait" in (hanging.send(FIGURES) or "")
    assert "does not wait" in (hanging.send(FIGURES) or "")
    assert calls == [FIGURES], "what hangs is not asked again"
    released.set()
