"""Activations in host memory: stored there in the forward pass, and loaded back for the backward pass.

Beyond the published experiments: `torch.autograd.graph.save_on_cpu`, without and with pinned memory, against keeping
activations on the GPU (`none`) and against custom hooks (`overlapped`). These store activations on one side stream and
load them on another, two ahead of their use, into three buffers in turn.

Look for: `save_on_cpu` copies on the compute stream, weights included, so nothing hides (`same-stream`), and
without pinned memory each copy blocks and is slow (`pageable-memory`). The custom hooks hide most of it. The benefit is
in `peak_gpu_mib`. Gradients are compared with those of the plain program.
"""

import contextlib
from typing import Literal

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 3
AHEAD = 2
"""Number of activations that are loaded ahead of their use, and kept on the GPU until they are stored."""


class Offload:
    """Store for the activations of a chain of layers, all with the same shape and each used once in backward."""

    def __init__(self, model: torch.nn.Module, like: torch.Tensor) -> None:
        self._stores, self._loads = torch.cuda.Stream(), torch.cuda.Stream()
        self._weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self._hosts: list[torch.Tensor] = []
        self._slots = [torch.empty_like(like) for _ in range(AHEAD + 1)]
        self.begin()

    def begin(self) -> None:
        """Forget the activations of the last step."""
        self._kept: list[torch.Tensor | None] = []
        self._stored: list[torch.cuda.Event] = []
        self._loaded: dict[int, torch.cuda.Event] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | int:
        """Store an activation; the last few stay on the GPU too. Weights stay where they are."""
        if tensor.untyped_storage().data_ptr() in self._weights:
            return tensor
        number = len(self._kept)
        if number == len(self._hosts):
            self._hosts.append(torch.empty_like(tensor, device="cpu", pin_memory=True))
        self._stores.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stores):
            self._hosts[number].copy_(tensor, non_blocking=True)
        self._kept.append(tensor)
        self._stored.append(self._stores.record_event())
        if number >= AHEAD:
            # The host waits, so that memory is free before more is requested. It is layers ahead of the GPU.
            self._stored[number - AHEAD].synchronize()
            self._kept[number - AHEAD] = None
        return number

    def unpack(self, packed: torch.Tensor | int) -> torch.Tensor:
        """Hand an activation to its backward op, and load the next ones.

        Backward runs from the last layer to the first, so all users of the buffer to load into have been launched by
        now.
        """
        if isinstance(packed, torch.Tensor):
            return packed
        for number in range(packed, max(packed - AHEAD, 0) - 1, -1):
            if self._kept[number] is None and number not in self._loaded:
                self._load(number)
        kept = self._kept[packed]
        if kept is not None:
            return kept
        torch.cuda.current_stream().wait_event(self._loaded[packed])
        return self._slots[packed % len(self._slots)]

    def _load(self, number: int) -> None:
        self._loads.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._loads):
            self._slots[number % len(self._slots)].copy_(self._hosts[number], non_blocking=True)
        self._loaded[number] = self._loads.record_event()


def prepare(
    layers: int, width: int, batch: int, way: Literal["none", "save_on_cpu", "overlapped"], pinned: bool = True
) -> Program:
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(layers)]
    model = torch.nn.Sequential(*blocks).cuda()
    inputs = torch.randn(batch, width, device="cuda")
    offload = Offload(model, inputs) if way == "overlapped" else None
    torch.cuda.synchronize()

    def saving() -> contextlib.AbstractContextManager[object]:
        if offload is not None:
            offload.begin()
            return saved_tensors_hooks(offload.pack, offload.unpack)
        return save_on_cpu(pin_memory=pinned) if way == "save_on_cpu" else contextlib.nullcontext()

    def step() -> None:
        model.zero_grad()
        with saving():
            loss = model(inputs).square().mean()
        loss.backward()

    def gradients() -> list[torch.Tensor]:
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    def figures() -> dict[str, float]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return {"peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20}

    def count_wrong() -> WrongResults:
        """Count gradients that differ from those of the plain program."""
        wrong = 0
        for _ in range(TRIES):
            inputs.normal_()
            model.zero_grad()
            model(inputs).square().mean().backward()
            right = gradients()
            step()
            wrong += not all((a - b).norm() <= 1e-3 * b.norm() for a, b in zip(gradients(), right, strict=True))
        return WrongResults(wrong, TRIES)

    return Program(step, figures=figures, count_wrong=count_wrong)


EXPERIMENT = Experiment(
    name="activation_offload",
    title="Activations in host memory",
    shows="save_on_cpu copies on the compute stream; hooks with streams of their own hide most of it.",
    sizes={
        "small": {"layers": 6, "width": 2048, "batch": 4096},
        "paper": {"layers": 6, "width": 8192, "batch": 8192},
    },
    prepare=prepare,
    variants=(
        Variant(
            "none",
            {"way": "none"},
            shows="Activations stay on the GPU.",
            truth=Truth(no_findings=("dispatch",)),
        ),
        Variant(
            "pageable",
            {"way": "save_on_cpu", "pinned": False},
            shows="save_on_cpu into pageable memory: each copy blocks the host and is slow.",
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 1.0),
                findings=("pageable-memory",),
                no_findings=("overlap-achieved",),
                least_share=0.99,
            ),
            wrong_results="none",
        ),
        Variant(
            "pinned",
            {"way": "save_on_cpu", "pinned": True},
            shows="save_on_cpu into pinned memory: faster copies, still in line with compute.",
            # In float32, a product takes longer than copying its operands over the link.
            truth=Truth(
                exposed_copy="same-stream",
                hidden_copy_pct=(0.0, 1.0),
                findings=("same-stream",),
                no_findings=("pageable-memory", "overlap-achieved"),
            ),
            wrong_results="none",
        ),
        Variant(
            "overlapped",
            {"way": "overlapped"},
            shows="Own hooks: stored and loaded on side streams, beside compute.",
            truth=Truth(hidden_copy_pct=(50.0, 100.0), no_findings=("pageable-memory", "same-stream")),
            wrong_results="none",
        ),
    ),
    faster=(("pinned", "pageable"), ("overlapped", "pinned")),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
