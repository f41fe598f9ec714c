"""The change that compiles the outermost modules, with modules that pretend to be on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overlapscope.plugins.trials.changes import Note, Notes
from overlapscope.plugins.trials.shims import options


class Pretended(torch.nn.Linear):
    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(is_cuda=True)])


def test_after_several_modules_were_changed_settings_of_torch_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, seen = {"random": False}, []

    def change(mode: str, module: torch.nn.Module, note: Note) -> Callable[[], None]:
        before, setting["random"] = setting["random"], True
        seen.append(module)
        return lambda: setting.update(random=before)

    monkeypatch.setattr(options, "_compile", change)
    notes, modules = Notes(), [Pretended(1, 1), Pretended(1, 1)]
    undo = options.start_graph("fuse", Note("graph", notes))
    notes.step()
    for module in modules:
        module(torch.ones(1))
    notes.step()
    assert {*seen} == {*modules} and setting["random"]
    undo()
    assert not setting["random"]
