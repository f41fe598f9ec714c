"""What `overlapscope try` tells a person to write, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overlapscope.trials.edit import AHEAD

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_batches_that_are_copied_ahead_are_those_of_the_loader() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(AHEAD, names)
    batches = [[torch.full((1 << 20,), float(i)).pin_memory(), torch.tensor([i])] for i in range(6)]
    work = torch.rand(2048, 2048, device="cuda")
    sums = []
    for x, number in names["ahead"](iter(batches)):
        assert x.is_cuda and number.is_cuda
        for _ in range(10):
            work = torch.tanh(work @ work)
        # Freed here, its memory must not be written to before this is over.
        sums.append(x.sum() + number)
        del x, number
    assert [int(total) for total in sums] == [(1 << 20) * i + i for i in range(6)]
    assert list(names["ahead"](iter([]))) == []
