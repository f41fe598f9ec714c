"""The change of a program's parameters that shows the effect of rounding."""

from __future__ import annotations

import contextlib

import pytest
import torch

from overlapscope.plugins.trials.inside import round_parameters


def largest_change(autocast: torch.dtype | None) -> float:
    """Train a module for a step with rounded parameters; return the largest relative change of a weight before it."""
    module = torch.nn.Linear(64, 64)
    before = module.weight.detach().clone()
    context = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    undo = round_parameters()
    try:
        torch.optim.SGD(module.parameters(), lr=0.1)
        with context:
            module(torch.ones(8, 64))
    finally:
        undo()
    return float(((module.weight.detach() - before) / before).abs().max())


@pytest.mark.parametrize(("autocast", "eps"), [(None, 2**-23), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
def test_is_as_large_as_a_rounding_error_of_the_type_in_which_the_program_computes(
    autocast: torch.dtype | None, eps: float
) -> None:
    # Storing the product rounds once more.
    assert eps / 2 <= largest_change(autocast) <= 2 * eps
