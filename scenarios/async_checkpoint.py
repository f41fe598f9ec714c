"""A checkpoint of the weights in every step: the copy to host memory blocks training, or runs under it.

Beyond the published experiments. `blocking` takes `.cpu()` of each weight before the step. `pinned_side_stream` copies
into pinned memory on a separate stream, beside the forward and backward passes, which only read the weights; the
optimizer, which writes them, waits for the copy. `snapshot` first copies the weights within the GPU, so that the
optimizer doesn't have to wait, at the cost of memory. Writing the file is left out: any thread may do that once the
copy is done. `none` is the step without a checkpoint.

Look for: `.cpu()` makes the host wait for the GPU and the GPU for the host (`pageable-memory`, idle time `host-sync`);
the others hide nearly all of the copy (`overlap-achieved`). Every checkpoint is compared with the weights at the time
of the request.
"""

from collections.abc import Callable
from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 5

State = dict[str, torch.Tensor]
Way = Literal["none", "blocking", "pinned_side_stream", "snapshot"]


class SideStream:
    """Copies of a state into pinned memory on a separate stream."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stored = {name: torch.empty_like(each, device="cpu", pin_memory=True) for name, each in state.items()}
        self._stream = torch.cuda.Stream()

    def begin(self) -> State:
        """Store the state as it is on the current stream now. It must not be written until `wait`."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, each in self._state.items():
                self._stored[name].copy_(each, non_blocking=True)
        return self._stored

    def wait(self) -> None:
        """Let the current stream wait for the copy."""
        torch.cuda.current_stream().wait_stream(self._stream)


class Snapshot:
    """Copies of a state within the GPU, which a side stream then stores."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._copy = {name: each.clone() for name, each in state.items()}
        self._side = SideStream(self._copy)

    def begin(self) -> State:
        """Store the state as it is on the current stream now. It may be written at once."""
        self._side.wait()  # The last snapshot must be stored before this one is taken.
        for name, each in self._state.items():
            self._copy[name].copy_(each)
        return self._side.begin()


def checkpoint(state: State, way: Way) -> tuple[Callable[[], State], Callable[[], None]]:
    """Return the function that starts a checkpoint, and the one to call before the state is written."""
    if way == "pinned_side_stream":
        side = SideStream(state)
        return side.begin, side.wait
    if way == "snapshot":
        return Snapshot(state).begin, lambda: None
    if way == "blocking":
        return lambda: {name: each.cpu() for name, each in state.items()}, lambda: None
    return dict, lambda: None


def prepare(layers: int, width: int, batch: int, way: Way) -> Program:
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(layers)]
    model = torch.nn.Sequential(*blocks).cuda()
    inputs = torch.randn(batch, width, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    state: State = model.state_dict()

    begin, before_update = checkpoint(state, way)
    torch.cuda.synchronize()

    def step() -> State:
        stored = begin()
        model(inputs).square().mean().backward()
        before_update()
        optimizer.step()
        optimizer.zero_grad()
        return stored

    def count_wrong() -> WrongResults:
        """Count checkpoints that differ from the weights before the step."""
        wrong = 0
        for _ in range(TRIES):
            before = {name: each.clone() for name, each in state.items()}
            stored = step()
            torch.cuda.synchronize()
            wrong += not all(torch.equal(stored[name], each.cpu()) for name, each in before.items())
        return WrongResults(wrong, TRIES)

    return Program(step, count_wrong=None if way == "none" else count_wrong)


# The step computes for longer than it copies: each weight is copied once and used in three products per sample.
HIDDEN = Truth(
    hidden_copy_pct=(80.0, 100.0),
    findings=("overlap-achieved",),
    no_findings=("pageable-memory", "same-stream"),
)

EXPERIMENT = Experiment(
    name="async_checkpoint",
    title="Checkpoint under the next step",
    shows="A checkpoint costs next to nothing if its copy runs beside work that only reads the weights.",
    sizes={
        "small": {"layers": 6, "width": 2048, "batch": 4096},
        "paper": {"layers": 8, "width": 4096, "batch": 4096},
    },
    prepare=prepare,
    variants=(
        Variant("none", {"way": "none"}, shows="The step alone."),
        Variant(
            "blocking",
            {"way": "blocking"},
            shows="Each .cpu() waits for the GPU, copies into pageable memory, and nothing else runs meanwhile.",
            truth=Truth(
                exposed_copy="pageable-memory",
                idle="host-sync",
                hidden_copy_pct=(0.0, 1.0),
                findings=("pageable-memory",),
                no_findings=("overlap-achieved", "same-stream"),
            ),
            wrong_results="none",
        ),
        Variant(
            "pinned_side_stream",
            {"way": "pinned_side_stream"},
            shows="The copy runs beside forward and backward, and the optimizer waits for it.",
            truth=HIDDEN,
            wrong_results="none",
        ),
        Variant(
            "snapshot",
            {"way": "snapshot"},
            shows="A copy within the GPU frees the weights at once, for as much memory again.",
            truth=HIDDEN,
            wrong_results="none",
        ),
    ),
    faster=(("pinned_side_stream", "blocking"), ("snapshot", "blocking")),
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
