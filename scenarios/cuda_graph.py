"""CUDA graphs: many small kernels, launched separately or replayed as a graph.

From an introduction to CUDA graphs in PyTorch: a model of many small kernels with fixed shapes is run eagerly, as a
captured graph (warmed up on a side stream, then `torch.cuda.graph`), and, for training, with its forward and backward
passes turned into graphs by `torch.cuda.make_graphed_callables`. A model of few big kernels shows where it stops
paying.

Look for: run eagerly, the GPU waits for launches (`dispatch`), and a graph leaves gaps of a microsecond
(`launch-latency`) and a host that returns at once. Compare `host_ms`, idle time and wall time of each pair. The big
model keeps the GPU busy either way. A graph reads and writes the memory it was captured with, so that every new input
is copied into place. Its results are compared with the eager model's.
"""

import copy
from collections.abc import Callable
from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 10


class PreNormLayer(torch.nn.Module):
    """A residual layer of four kernels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.relu(self.linear(self.norm(value)))


def warmed_up(work: Callable[[], object]) -> None:
    """Run some work a few times on a side stream, since set-up on first use must not be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)


def close_to(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((value - expected).norm() <= 1e-3 * expected.norm())


def replay(model: torch.nn.Module, batch: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the model as a graph that reads the batch's current values."""
    place = batch.clone()
    warmed_up(lambda: model(place))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output: torch.Tensor = model(place)

    def step() -> torch.Tensor:
        place.copy_(batch)
        graph.replay()
        return output

    return step


def inference(model: torch.nn.Module, batch: torch.Tensor, graphed: bool) -> Program:
    model.eval().requires_grad_(False)
    step = replay(model, batch) if graphed else lambda: model(batch)

    def count_wrong() -> WrongResults:
        wrong = 0
        for _ in range(TRIES):
            batch.normal_()
            wrong += not close_to(step(), model(batch))
        return WrongResults(wrong, TRIES)

    return Program(step, count_wrong=count_wrong)


def training(model: torch.nn.Module, batch: torch.Tensor, graphed: bool) -> Program:
    reference = copy.deepcopy(model)
    if graphed:
        torch.cuda.make_graphed_callables(model, (batch,))  # This replaces the model's forward.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def count_wrong() -> WrongResults:
        """Count gradients that differ from the eager model's."""
        wrong = 0
        for _ in range(TRIES):
            batch.normal_()
            reference.load_state_dict(model.state_dict())
            for each in (model, reference):
                each(batch).square().mean().backward()
            gradients = zip(model.parameters(), reference.parameters(), strict=True)
            wrong += not all(close_to(mine.grad, right.grad) for mine, right in gradients)  # type: ignore[arg-type]
            model.zero_grad()
            reference.zero_grad()
        return WrongResults(wrong, TRIES)

    return Program(step, count_wrong=count_wrong)


def prepare(
    layers: int,
    width: int,
    batch: int,
    big_layers: int,
    big_width: int,
    big_batch: int,
    model: Literal["small", "big"],
    graphed: bool,
    train: bool = False,
) -> Program:
    if model == "big":
        layers, width, batch = big_layers, big_width, big_batch
    blocks = torch.nn.Sequential(*[PreNormLayer(width) for _ in range(layers)]).cuda()
    samples = torch.randn(batch, width, device="cuda")
    return (training if train else inference)(blocks, samples, graphed)


MANY_SMALL = {"layers": 30, "width": 256, "batch": 32}
LAUNCHED = Truth(idle="dispatch", findings=("dispatch",))

EXPERIMENT = Experiment(
    name="cuda_graph",
    title="CUDA graphs",
    shows="A graph takes the launches away, which is all the time of small kernels and none of big ones'.",
    sizes={
        "small": {**MANY_SMALL, "big_layers": 4, "big_width": 2048, "big_batch": 2048},
        "paper": {**MANY_SMALL, "big_layers": 4, "big_width": 4096, "big_batch": 4096},
    },
    prepare=prepare,
    variants=(
        Variant(
            "eager",
            {"model": "small", "graphed": False},
            shows="120 small kernels, each launched by itself: the GPU waits for the host.",
            truth=LAUNCHED,
            wrong_results="none",
        ),
        Variant(
            "graph_replay",
            {"model": "small", "graphed": True},
            shows="The same kernels as one graph: next to no gaps, and the host is free at once.",
            truth=Truth(idle="launch-latency", no_findings=("dispatch",)),
            wrong_results="none",
        ),
        Variant(
            "train_eager",
            {"model": "small", "graphed": False, "train": True},
            shows="A training step of the small model: the GPU waits for the host.",
            truth=LAUNCHED,
            wrong_results="none",
        ),
        Variant(
            "graphed_callables",
            {"model": "small", "graphed": True, "train": True},
            shows="Its forward and its backward pass are a graph each; loss and optimizer are not.",
            wrong_results="none",
        ),
        Variant(
            "big_eager",
            {"model": "big", "graphed": False},
            shows="Few big kernels: the host is ahead, there is nothing to win.",
            truth=Truth(no_findings=("dispatch",)),
            wrong_results="none",
        ),
        Variant(
            "big_graph",
            {"model": "big", "graphed": True},
            shows="The big model as a graph: as long as without.",
            truth=Truth(no_findings=("dispatch",)),
            wrong_results="none",
        ),
    ),
    faster=(("graph_replay", "eager"), ("graphed_callables", "train_eager")),
    warmup_steps=1,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
