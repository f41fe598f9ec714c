"""One micro-batch's backward pass beside the next one's forward pass, on two streams.

From a question in the PyTorch forum. As asked there, `backward()` is called under a side stream, which has no effect:
autograd runs every backward op on the stream that its forward op ran on (`stream-without-work`). So the forward pass
has to be on the side stream. Then each micro-batch runs on its own stream. The second backward pass waits for the
first, because both add to the same gradients, and all users of the gradients wait for both.

Look for: large layers gain nothing, because each kernel fills the GPU. Many small layers leave room, but separate
launches make them bound by the host (`dispatch`), so the streams are seldom busy at once. Captured as a CUDA graph
they are, and two streams are faster. `missing_wait` leaves out the last wait: the optimizer may read gradients too
early. The large model shows this every time, because its work is launched long before it ends. The small model is right
as long as the GPU keeps up with the host, which proves nothing.
"""

from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Step, Truth, Variant, WrongResults

TRIES = 10

Way = Literal["serial", "backward_under_side_stream", "two_streams", "missing_wait"]


class ResidualLayer(torch.nn.Module):
    """A linear layer with a residual, so that deep models have gradients everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.relu(self.linear(value))


def accumulate(model: torch.nn.Module, batches: list[torch.Tensor], way: Way, sides: list[torch.cuda.Stream]) -> None:
    """Add the gradients of two micro-batches to the existing ones."""
    current, (first, second) = torch.cuda.current_stream(), sides
    if way == "serial":
        for batch in batches:
            model(batch).square().mean().backward()
    elif way == "backward_under_side_stream":  # The waits are right, but the stream has no work.
        for batch in batches:
            loss = model(batch).square().mean()
            first.wait_stream(current)
            with torch.cuda.stream(first):
                loss.backward()
            current.wait_stream(first)
    else:
        for side in sides:
            side.wait_stream(current)
        with torch.cuda.stream(first):
            model(batches[0]).square().mean().backward()
        with torch.cuda.stream(second):
            loss = model(batches[1]).square().mean()
            second.wait_stream(first)  # Both add to the same gradients.
            loss.backward()
        if way == "two_streams":
            for side in sides:
                current.wait_stream(side)


def captured(step: Step) -> Step:
    """Return the step as a CUDA graph, whose branches are the streams."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def prepare(
    layers: int,
    width: int,
    batch: int,
    small_layers: int,
    small_width: int,
    small_batch: int,
    model: Literal["large", "many_small"],
    way: Way,
    graphed: bool = False,
) -> Program:
    if model == "many_small":
        layers, width, batch = small_layers, small_width, small_batch
    network = torch.nn.Sequential(*[ResidualLayer(width) for _ in range(layers)]).cuda()
    weights = list(network.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    batches = [torch.randn(batch, width, device="cuda") for _ in range(2)]
    # The weights never change, so every timed iteration computes the same.
    optimizer = torch.optim.SGD(weights, lr=0.0)
    sides = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()

    def eager_step() -> None:
        # The gradients keep their memory, so no stream frees memory that another one still uses.
        optimizer.zero_grad(set_to_none=False)
        accumulate(network, batches, way, sides)
        optimizer.step()

    step = captured(eager_step) if graphed else eager_step

    def gradients() -> list[torch.Tensor]:
        return [weight.grad.clone() for weight in weights if weight.grad is not None]

    def count_wrong() -> WrongResults:
        """Count gradients that differ from those of the serial program when the optimizer's stream reads them."""
        wrong = 0
        for _ in range(TRIES):
            for each in batches:
                each.normal_()
            optimizer.zero_grad(set_to_none=False)
            accumulate(network, batches, "serial", sides)
            right = gradients()
            torch.cuda.synchronize()
            step()
            seen = gradients()
            torch.cuda.synchronize()
            wrong += not all((a - b).norm() <= 1e-3 * b.norm() for a, b in zip(seen, right, strict=True))
        return WrongResults(wrong, TRIES)

    return Program(step, count_wrong=count_wrong)


MANY_SMALL = {"small_layers": 32, "small_width": 256, "small_batch": 64}
LAUNCHED = ("dispatch",)

EXPERIMENT = Experiment(
    name="forward_backward",
    title="Backward beside the next forward",
    shows="A backward pass runs where its forward pass ran, and beside other work only where kernels leave room.",
    sizes={
        "small": {"layers": 4, "width": 2048, "batch": 2048, **MANY_SMALL},
        "paper": {"layers": 6, "width": 4096, "batch": 4096, **MANY_SMALL},
    },
    prepare=prepare,
    variants=(
        Variant(
            "large_serial",
            {"model": "large", "way": "serial"},
            shows="Two micro-batches one after the other, on one stream.",
            truth=Truth(no_findings=("dispatch", "stream-without-work", "streams-without-overlap")),
            wrong_results="none",
        ),
        Variant(
            "large_backward_under_side_stream",
            {"model": "large", "way": "backward_under_side_stream"},
            shows="backward() under another stream moves nothing there.",
            truth=Truth(findings=("stream-without-work",), no_findings=("streams-without-overlap",)),
            wrong_results="none",
        ),
        Variant(
            "large_two_streams",
            {"model": "large", "way": "two_streams"},
            shows="Each micro-batch on its own stream: right, and no faster, for every kernel fills the GPU.",
            truth=Truth(no_findings=("dispatch", "stream-without-work")),
            wrong_results="none",
        ),
        Variant(
            "large_missing_wait",
            {"model": "large", "way": "missing_wait"},
            shows="Nothing waits for the two streams, so the gradients are read before they are there.",
            wrong_results="some",
        ),
        Variant(
            "many_small_serial",
            {"model": "many_small", "way": "serial"},
            shows="Small kernels: the GPU waits for the host.",
            truth=Truth(idle="dispatch", findings=LAUNCHED),
            wrong_results="none",
        ),
        Variant(
            "many_small_backward_under_side_stream",
            {"model": "many_small", "way": "backward_under_side_stream"},
            shows="Nothing is moved here either.",
            truth=Truth(findings=("stream-without-work", *LAUNCHED)),
            wrong_results="none",
        ),
        Variant(
            "many_small_two_streams",
            {"model": "many_small", "way": "two_streams"},
            shows="There is room for both micro-batches, but the host launches them one after the other.",
            truth=Truth(findings=LAUNCHED),
            wrong_results="none",
        ),
        Variant(
            # Results depend on timing, so nothing is expected.
            "many_small_missing_wait",
            {"model": "many_small", "way": "missing_wait"},
            shows="The same mistake, which stays unseen as long as the GPU keeps up with the host.",
            truth=Truth(findings=LAUNCHED),
        ),
        Variant(
            "many_small_serial_graph",
            {"model": "many_small", "way": "serial", "graphed": True},
            shows="As a CUDA graph, without the launches, on one stream.",
            truth=Truth(no_findings=LAUNCHED),
            wrong_results="none",
        ),
        Variant(
            "many_small_two_streams_graph",
            {"model": "many_small", "way": "two_streams", "graphed": True},
            shows="As a CUDA graph the second forward pass runs beside the first backward pass.",
            truth=Truth(no_findings=LAUNCHED),
            wrong_results="none",
        ),
    ),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
