"""Tests of the edits that `overlapscope try` proposes, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overlapscope.plugins.trials.edit import AHEAD

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_batches_that_are_copied_ahead_are_those_of_the_loader() -> None:
    names: dict[str, Any] = {}
    exec(AHEAD, names)
    numbers = range(6)
    batches = [{"x": torch.full((1 << 20,), float(i)).pin_memory(), "y": [torch.tensor([i]), i]} for i in numbers]
    work = torch.rand(2048, 2048, device="cuda")
    sums = []
    for number, batch in enumerate(names["ahead"](iter(batches))):
        assert batch["x"].is_cuda and batch["y"][0].is_cuda and batch["y"][1] == number
        for _ in range(10):
            work = torch.tanh(work @ work)
        # Its memory, given back here, must not be written to before this is over.
        sums.append(batch["x"].sum() + batch["y"][0])
        del batch
    assert [int(total) for total in sums] == [(1 << 20) * i + i for i in numbers]
    assert list(names["ahead"](iter([]))) == []
    assert [int(x.sum()) for x in names["ahead"]([torch.ones(3), torch.ones(4)])] == [3, 4]
