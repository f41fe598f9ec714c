"""Phases of a step in stacks of a real training step."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest

from overlapscope.analysis.host_lines import PHASES, Phase, phase_samples
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame

torch = pytest.importorskip("torch", reason="runs a training step")


class Stacks:
    """Stacks of the running thread, taken where the program asks for them."""

    def __init__(self) -> None:
        self.frames: list[StackFrame] = []
        self.stacks: list[SampledStack] = []

    def take(self) -> None:
        frames = [info.frame for info in reversed(inspect.stack(context=0)[1:])]
        begin = len(self.frames)
        self.frames += [StackFrame(each.f_code.co_filename, each.f_lineno, each.f_code.co_qualname) for each in frames]
        self.stacks.append(SampledStack(1, tuple(range(begin, len(self.frames))), 1, 1))

    def phases(self) -> dict[Phase, int]:
        activity = HostActivity(thread=1, steps=1, span_ns=1, frames=tuple(self.frames), stacks=tuple(self.stacks))
        return dict(phase_samples(activity))


def test_a_training_step_has_all_phases() -> None:
    stacks = Stacks()

    class Takes(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, value: Any) -> Any:
            stacks.take()
            return value

    class NumberedSamples(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, number: int) -> Any:
            return Takes()(torch.ones(2))

    model = torch.nn.Sequential(Takes(), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: stacks.take())
    for batch in torch.utils.data.DataLoader(NumberedSamples()):
        stacks.take()
        result = torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False)
        result.sum().backward()
        optimizer.step()
    # Two batches, whose forward pass is computed again in the backward pass.
    assert stacks.phases() == dict.fromkeys(PHASES, 2)


def test_a_closure_of_an_optimizer_has_phases_of_its_own() -> None:
    stacks = Stacks()
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: stacks.take())
    model.weight.register_hook(lambda _: stacks.take())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        loss = model(torch.ones(2)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert Counter(stacks.phases()) == Counter(forward=1, backward=1) + Counter(dict.fromkeys(PHASES, 0))
