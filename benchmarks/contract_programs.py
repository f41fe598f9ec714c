"""Eight small programs whose copies overlap, and mutations of each that lose something; see `contract_mutations`.

Each function prepares its tensors and returns a step. A mutation changes one thing, at a line that ends in a comment
with its name; the loss must be reported at that line, or name it as what orders the op now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from msgspec import Struct
from torch import Tensor

gpu = torch.cuda if torch.cuda.is_available() else torch.cpu
"""On a machine without a GPU, streams and events do nothing."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Step = Callable[[], object]


class MutationVariant(Struct, frozen=True):
    """A program as it is recorded."""

    mutation: str = ""
    """Name of the mutation; empty for the program itself."""
    scale: float = 1.0
    """Factor of the batch size."""

    def has(self, mutation: str) -> bool:
        """Return whether this is the program with that mutation."""
        return self.mutation == mutation

    def rows(self, rows: int) -> int:
        """Return the batch size, small without a GPU."""
        return max(1, int(rows * self.scale)) if DEVICE == "cuda" else 8

    def width(self, width: int) -> int:
        """Return the width of a layer, small without a GPU."""
        return width if DEVICE == "cuda" else 16


class Expected(Struct, frozen=True):
    """A mutation, and what must be reported about it."""

    parts: tuple[str, ...]
    """Parts of the contract, one of which must be lost (`contracts.compare.Promise.part`)."""
    reason: str
    """Text of the message that gives the reason, as a regular expression."""
    marks: tuple[str, ...] = ()
    """Comments at the lines, one of which the message or its place must name; by default the mutation's own name."""


def host(*shape: int, pinned: bool = True) -> Tensor:
    """Return a tensor of the host."""
    return torch.randn(*shape).pin_memory() if pinned and DEVICE == "cuda" else torch.randn(*shape)


def layers(count: int, width: int) -> list[torch.nn.Linear]:
    """Return linear layers on the device."""
    return [torch.nn.Linear(width, width, device=DEVICE) for _ in range(count)]


def prefetch(variant: MutationVariant) -> Step:
    """Training on batches that a side stream uploads one step ahead, in two buffers that take turns."""
    rows, width = variant.rows(4096), variant.width(1024)
    model = torch.nn.Sequential(*layers(6, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    source = host(rows, width, pinned=not variant.has("pageable"))
    buffers = [torch.empty(rows, width, device=DEVICE) for _ in range(2)]
    compute = gpu.current_stream()
    copies = compute if variant.has("merged") else gpu.Stream()
    filled, free = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]
    slot = 1

    def fill(number: int) -> None:
        copies.wait_event(free[number])
        with gpu.stream(copies):
            buffers[number].copy_(source, non_blocking=not variant.has("blocking"))  # upload
            filled[number].record(copies)

    def step() -> None:
        nonlocal slot
        slot = 0 if variant.has("depth0") else 1 - slot
        if variant.has("depth0"):
            fill(slot)
        elif variant.has("early"):
            fill(1 - slot)
            compute.wait_stream(copies)  # early
        else:
            fill(1 - slot)
        compute.wait_event(filled[slot])
        loss = model(buffers[slot]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        free[slot].record(compute)
        if variant.has("item"):
            loss.item()  # item
        if variant.has("print"):
            str(loss)  # print
        if variant.has("synchronize"):
            gpu.synchronize()  # synchronize

    fill(0)
    return step


def activations(variant: MutationVariant) -> Step:
    """A chain of layers whose activations are downloaded during the forward and uploaded ahead of the backward."""
    rows, width, depth = variant.rows(4096), variant.width(1024), 6
    weights = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(depth)]
    pinned = not variant.has("pageable")
    kept = [host(rows, width, pinned=pinned) for _ in range(depth)]
    back = [torch.empty(rows, width, device=DEVICE) for _ in range(depth)]
    hidden = [torch.randn(rows, width, device=DEVICE) for _ in range(depth + 1)]
    compute = gpu.current_stream()
    downloads = compute if variant.has("merged") else gpu.Stream()
    uploads = gpu.Stream()

    def step() -> None:
        for number, weight in enumerate(weights):
            torch.mm(hidden[number], weight, out=hidden[number + 1])
            downloads.wait_stream(compute)
            with gpu.stream(downloads):
                kept[number].copy_(hidden[number + 1], non_blocking=True)  # download
            if variant.has("early"):
                compute.wait_stream(downloads)  # early
        uploads.wait_stream(downloads)
        arrived = []
        for number in reversed(range(depth)):
            if variant.has("depth0"):
                uploads.wait_stream(compute)  # depth0
            with gpu.stream(uploads):
                back[number].copy_(kept[number], non_blocking=not variant.has("blocking"))  # upload again
                arrived.append(uploads.record_event())
            if variant.has("depth0"):
                compute.wait_event(arrived[-1])
                torch.mm(back[number], weights[number].t(), out=hidden[number])
        if not variant.has("depth0"):
            for number, event in zip(reversed(range(depth)), arrived, strict=True):
                compute.wait_event(event)
                torch.mm(back[number], weights[number].t(), out=hidden[number])
        uploads.wait_stream(compute)
        downloads.wait_stream(compute)

    return step


def weights(variant: MutationVariant) -> Step:
    """Layers whose weights are uploaded one layer ahead, in three buffers."""
    rows, width, depth = variant.rows(2048), variant.width(1536), 8
    sources = [host(width, width, pinned=not variant.has("pageable")) for _ in range(depth)]
    buffers = [torch.empty(width, width, device=DEVICE) for _ in range(3)]
    data = torch.randn(rows, width, device=DEVICE)
    compute = gpu.current_stream()
    uploads = compute if variant.has("merged") else gpu.Stream()
    ready, done = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]

    def fetch(layer: int) -> None:
        slot = layer % len(buffers)
        uploads.wait_event(done[slot])
        with gpu.stream(uploads):
            buffers[slot].copy_(sources[layer % depth], non_blocking=True)  # upload
            ready[slot].record(uploads)

    def step() -> None:
        uploads.wait_stream(compute)
        hidden = data
        if not variant.has("depth0"):
            fetch(0)
        for layer in range(depth):
            if variant.has("depth0"):
                uploads.wait_stream(compute)  # depth0
                fetch(layer)
            elif layer + 1 < depth:
                fetch(layer + 1)
            if variant.has("early"):
                compute.wait_stream(uploads)  # early
            compute.wait_event(ready[layer % len(buffers)])
            hidden = torch.tanh(torch.mm(hidden, buffers[layer % len(buffers)]))
            done[layer % len(buffers)].record(compute)
            if variant.has("synchronize"):
                gpu.synchronize()  # synchronize

    return step


def gradients(variant: MutationVariant) -> Step:
    """Training whose gradients go to the host in a bucket for each layer, while the backward goes on."""
    rows, width, depth = variant.rows(4096), variant.width(1024), 6
    linears = layers(depth, width)
    model = torch.nn.Sequential(*linears)
    data = torch.randn(rows, width, device=DEVICE)
    pinned = not variant.has("pageable")
    parts = [host(width, width, pinned=pinned) for _ in range(depth)]
    whole = host(depth * width, width, pinned=pinned)
    compute = gpu.current_stream()
    downloads = compute if variant.has("merged stream") else gpu.Stream()

    def send(number: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            downloads.wait_stream(gpu.current_stream())
            with gpu.stream(downloads):
                parts[number].copy_(parameter.grad, non_blocking=not variant.has("blocking"))  # bucket
            if variant.has("early"):
                gpu.current_stream().wait_stream(downloads)  # early

        return hook

    if not variant.has("merged bucket"):
        for number, layer in enumerate(linears):
            layer.weight.register_post_accumulate_grad_hook(send(number))

    def step() -> None:
        compute.wait_stream(downloads)
        model.zero_grad()
        model(data).square().mean().backward()
        if variant.has("merged bucket"):
            together = torch.cat([layer.weight.grad for layer in linears if layer.weight.grad is not None])
            downloads.wait_stream(compute)
            with gpu.stream(downloads):
                whole.copy_(together, non_blocking=True)  # merged bucket
        elif variant.has("item"):
            linears[0].weight.sum().item()  # item

    return step


def predictions(variant: MutationVariant) -> Step:
    """Training that downloads its predictions beside the backward, and looks at them in the next step."""
    rows, width = variant.rows(8192), variant.width(1024)
    model = torch.nn.Sequential(*layers(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(rows, width, device=DEVICE)
    kept = host(rows, width, pinned=not variant.has("pageable"))
    compute = gpu.current_stream()
    downloads = compute if variant.has("merged") else gpu.Stream()

    def step() -> None:
        predicted = model(data)
        downloads.wait_stream(compute)
        if variant.has("before the backward"):
            predicted.detach().cpu()  # before the backward
        else:
            with gpu.stream(downloads):
                kept.copy_(predicted.detach(), non_blocking=True)  # download
        if variant.has("early"):
            compute.wait_stream(downloads)  # early
        loss = predicted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if variant.has("list"):
            loss.detach().reshape(1).tolist()  # list
        compute.wait_stream(downloads)

    return step


class Samples(torch.utils.data.Dataset[Tensor]):
    """Samples that cost nothing to make."""

    def __init__(self, width: int) -> None:
        self._sample = torch.randn(width)

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> Tensor:
        return self._sample


def loader(variant: MutationVariant) -> Step:
    """Training on batches of a DataLoader with a worker and pinned memory, uploaded one step ahead."""
    rows, width = variant.rows(1024), variant.width(4096)
    model = torch.nn.Sequential(*layers(3, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches: Iterator[Tensor] = iter(
        torch.utils.data.DataLoader(
            Samples(width),
            batch_size=rows,
            num_workers=0 if variant.has("no workers") else 1,
            pin_memory=DEVICE == "cuda" and not variant.has("not pinned"),
        )
    )
    compute, copies = gpu.current_stream(), gpu.Stream()
    following: Tensor | None = None

    def fetch() -> Tensor:
        batch = next(batches)
        if variant.has("pin in loop"):
            batch = batch.clone().pin_memory() if DEVICE == "cuda" else batch  # pin in loop
        with gpu.stream(copies):
            return batch.to(DEVICE, non_blocking=not variant.has("blocking"))  # upload

    def step() -> None:
        nonlocal following
        compute.wait_stream(copies)
        batch = fetch() if following is None else following
        following = fetch()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            batch.record_stream(compute)
        if variant.has("empty cache") and DEVICE == "cuda":
            torch.cuda.empty_cache()  # empty cache

    return step


def decode(variant: MutationVariant) -> Step:
    """Decoding of a token, with a layer's cache uploaded while the layer before computes; the token is read back."""
    rows, width, depth = variant.rows(2048), variant.width(1024), 6
    cache = [host(rows, width, pinned=not variant.has("pageable")) for _ in range(depth)]
    buffers = [torch.empty(rows, width, device=DEVICE) for _ in range(depth)]
    projections = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(depth)]
    query = torch.randn(256, width, device=DEVICE)
    compute = gpu.current_stream()
    uploads = compute if variant.has("merged") else gpu.Stream()

    def fetch(layer: int) -> None:
        with gpu.stream(uploads):
            buffers[layer].copy_(cache[layer], non_blocking=True)  # upload

    def step() -> None:
        uploads.wait_stream(compute)
        hidden = query
        fetch(0)
        for layer in range(depth):
            compute.wait_stream(uploads)
            if layer + 1 < depth and not variant.has("depth0"):
                fetch(layer + 1)
            scores = torch.softmax(hidden @ buffers[layer].t(), dim=-1)
            hidden = torch.tanh((scores @ buffers[layer]) @ projections[layer])
            if variant.has("depth0") and layer + 1 < depth:
                uploads.wait_stream(compute)  # depth0
                fetch(layer + 1)
            if variant.has("nonzero"):
                (hidden[0] > 0.5).nonzero()  # nonzero
        if variant.has("second item"):
            hidden.sum().item()  # second item
        hidden.argmax().item()  # token

    return step


def graph(variant: MutationVariant) -> Step:
    """A captured step, with the next input uploaded to a side buffer while the graph runs."""
    rows, width = variant.rows(4096), variant.width(1024)
    chain = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(6)]
    source = host(rows, width, pinned=not variant.has("pageable"))
    static, staged = (torch.randn(rows, width, device=DEVICE) for _ in range(2))
    results = [torch.empty(rows, width, device=DEVICE) for _ in range(2)]
    compute = gpu.current_stream()
    copies = compute if variant.has("merged") else gpu.Stream()

    def work() -> None:
        hidden = static
        for number, weight in enumerate(chain):
            torch.mm(hidden, weight, out=results[number % 2])
            hidden = results[number % 2]

    replay: Step = work
    if DEVICE == "cuda" and not variant.has("not captured"):
        work()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            work()
        replay = captured.replay

    def step() -> None:
        compute.wait_stream(copies)
        static.copy_(staged)
        copies.wait_stream(compute)
        with gpu.stream(copies):
            staged.copy_(source, non_blocking=not variant.has("blocking"))  # upload
        if variant.has("early"):
            compute.wait_stream(copies)  # early
        replay()
        if variant.has("synchronize"):
            gpu.synchronize()  # synchronize

    return step


_PAGEABLE = Expected(("memory",), "pageable", ("upload",))
_MERGED = Expected(("overlap",), "same stream", ("upload",))
_EARLY = Expected(("overlap",), "event wait for stream")
_SYNC = Expected(("sync",), "host sync")
_BLOCKING = Expected(("sync",), "host sync", ("upload",))
PROGRAMS: dict[str, tuple[Callable[[MutationVariant], Step], dict[str, Expected]]] = {
    "prefetch": (
        prefetch,
        {
            "merged": _MERGED,
            "early": _EARLY,
            "blocking": _BLOCKING,
            "pageable": _PAGEABLE,
            "item": _SYNC,
            "print": _SYNC,
            "synchronize": _SYNC,
            "depth0": Expected(("overlap",), "event wait for stream", ("upload",)),
        },
    ),
    "activations": (
        activations,
        {
            "merged": Expected(("overlap",), "same stream", ("download",)),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("download", "upload again")),
            "blocking": Expected(("sync",), "host sync", ("upload again",)),
            "depth0": Expected(("overlap",), "event wait for stream"),
        },
    ),
    "weights": (
        weights,
        {
            "merged": _MERGED,
            "early": _EARLY,
            "pageable": _PAGEABLE,
            "depth0": Expected(("overlap",), "event wait for stream"),
            "synchronize": _SYNC,
        },
    ),
    "gradients": (
        gradients,
        {
            "merged stream": Expected(("overlap",), "same stream", ("bucket",)),
            "merged bucket": Expected(("overlap", "amount"), "merged bucket|beside no kernel|D2H"),
            "blocking": Expected(("sync",), "host sync", ("bucket",)),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("bucket",)),
            "item": _SYNC,
        },
    ),
    "predictions": (
        predictions,
        {
            "merged": Expected(("overlap",), "same stream", ("download",)),
            "before the backward": Expected(("sync", "memory"), "host sync|pageable"),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("download",)),
            "list": _SYNC,
        },
    ),
    "loader": (
        loader,
        {
            "not pinned": Expected(("memory",), "pageable", ("upload",)),
            "no workers": Expected(("loader",), "workers", ("",)),
            "pin in loop": Expected(("allocation",), "pin_memory"),
            "blocking": _BLOCKING,
            "empty cache": Expected(("allocation",), "cudaFree|cudaMalloc|allocation", ("",)),
        },
    ),
    "decode": (
        decode,
        {
            "merged": _MERGED,
            "pageable": _PAGEABLE,
            "depth0": Expected(("overlap",), "event wait for stream"),
            "nonzero": _SYNC,
            "second item": _SYNC,
        },
    ),
    "graph": (
        graph,
        {
            "merged": _MERGED,
            "pageable": _PAGEABLE,
            "blocking": _BLOCKING,
            "early": _EARLY,
            "not captured": Expected(("launches",), "CUDA graph", ("",)),
            "synchronize": _SYNC,
        },
    ),
}
"""Each program with its mutations."""
