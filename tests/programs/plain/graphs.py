"""Steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP = 3
"""Runs before the capture: memory is had and kernels are chosen in them."""


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """Return a function that replays what `run` launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
