"""Programs of `whatif_second` whose time goes into copies between the host and the GPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.whatif_offloading import Step


def activations(way: str) -> Step:
    """Training whose saved activations, 12 of 12 MiB, wait on the host for their turn in backward."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3072, 3072), nn.GELU()) for _ in range(6)))
    model.to("cuda", torch.bfloat16)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(2048, 3072, dtype=torch.bfloat16, device="cuda")
    hosts = [torch.empty(2048, 3072, dtype=torch.bfloat16, pin_memory=way != "pageable") for _ in range(12)]
    downloads, uploads = torch.cuda.Stream(), torch.cuda.Stream()
    used = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal used
        if tensor.untyped_storage().data_ptr() in weights or tensor.shape != batch.shape:
            return tensor
        host = hosts[used]
        used += 1
        if way != "side_streams":
            return host.copy_(tensor)
        downloads.wait_stream(uploads)
        downloads.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(downloads):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(downloads)
        return host

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            return tensor
        if way != "side_streams":
            return tensor.to("cuda")
        uploads.wait_stream(downloads)
        with torch.cuda.stream(uploads):
            back = tensor.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(uploads)
        back.record_stream(torch.cuda.current_stream())
        return back

    def step() -> None:
        nonlocal used
        used = 0
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpoint(way: str) -> Step:
    """Training that keeps a copy of its weights, 72 MiB, on the host after every step."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2304), nn.ReLU(), nn.Linear(2304, 2048)) for _ in range(4)))
    model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(8192, 2048, dtype=torch.bfloat16, device="cuda")
    state = [weight.detach() for weight in model.parameters()]
    pinned = way != "pageable"
    kept = [[torch.empty(w.shape, dtype=w.dtype, pin_memory=pinned) for w in state] for _ in range(2)]
    side, saved = torch.cuda.Stream(), torch.cuda.Event()
    turn = 0

    def step() -> None:
        nonlocal turn
        current, target = torch.cuda.current_stream(), kept[turn % 2]
        turn += 1
        model(batch).square().mean().backward()
        # The weights stay as they are until their copy has left.
        if way == "side_stream":
            current.wait_event(saved)
        optimizer.step()
        optimizer.zero_grad()
        if way == "side_stream":
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for host, weight in zip(target, state, strict=True):
                    host.copy_(weight, non_blocking=True)
                saved.record()
        else:
            for host, weight in zip(target, state, strict=True):
                host.copy_(weight)

    return step


def nearest(way: str) -> Step:
    """The nearest of 786 thousand vectors, which stay on the host: 12 chunks of 20 MiB."""
    rows, width = 65536, 160
    chunks = [torch.randn(rows, width).half() for _ in range(12)]
    if way != "pageable":
        chunks = [chunk.pin_memory() for chunk in chunks]
    buffers = [torch.empty(rows, width, dtype=torch.float16, device="cuda") for _ in range(2)]
    asked = torch.randn(3072, width, dtype=torch.float16, device="cuda")
    side = torch.cuda.Stream()
    sent, used = ([torch.cuda.Event() for _ in buffers] for _ in range(2))

    def search(best: torch.Tensor, buffer: torch.Tensor) -> None:
        torch.maximum(best, (asked @ buffer.t()).amax(1), out=best)

    @torch.no_grad()
    def one_stream() -> torch.Tensor:
        best = torch.full((len(asked),), -torch.inf, dtype=torch.float16, device="cuda")
        for number, chunk in enumerate(chunks):
            buffer = buffers[number % 2]
            buffer.copy_(chunk, non_blocking=True)
            search(best, buffer)
        return best

    @torch.no_grad()
    def side_stream() -> torch.Tensor:
        current = torch.cuda.current_stream()
        best = torch.full((len(asked),), -torch.inf, dtype=torch.float16, device="cuda")
        for number, chunk in enumerate(chunks):
            slot = number % 2
            side.wait_event(used[slot])
            with torch.cuda.stream(side):
                buffers[slot].copy_(chunk, non_blocking=True)
                sent[slot].record()
            current.wait_event(sent[slot])
            search(best, buffers[slot])
            used[slot].record()
        return best

    return side_stream if way == "side_stream" else one_stream


def recommender(way: str) -> Step:
    """Inference for 8192 visits: 26 tensors of 64 KiB say which rows of 26 tables to look up, or one of all does."""
    tables = [torch.randn(50_000, 64, device="cuda") for _ in range(26)]
    top = nn.Sequential(nn.Linear(26 * 64, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    packed = torch.randint(50_000, (26, 8192))
    apart = [row.clone() for row in packed]
    if way != "pageable":
        packed, apart = packed.pin_memory(), [row.pin_memory() for row in apart]

    def there() -> list[torch.Tensor]:
        if way == "packed":
            return list(packed.to("cuda", non_blocking=True).unbind())
        return [row.to("cuda", non_blocking=way == "apart") for row in apart]

    @torch.no_grad()
    def step() -> torch.Tensor:
        rows_found = [functional.embedding(rows, table) for rows, table in zip(there(), tables, strict=True)]
        result: torch.Tensor = torch.sigmoid(top(torch.cat(rows_found, dim=1)))
        return result

    return step


def frames(way: str) -> Step:
    """Frames of a film, 24 MiB each, become sharp grey frames of 16 MiB:

    On one stream, with another for copies, or with two.
    """
    height, width, count = 2160, 3840, 8
    films = [torch.randint(256, (3, height, width), dtype=torch.uint8).pin_memory() for _ in range(count)]
    results = [torch.empty(height, width, dtype=torch.float16).pin_memory() for _ in films]
    buffers = [torch.empty(3, height, width, dtype=torch.uint8, device="cuda") for _ in range(2)]
    greys = [torch.empty(height, width, dtype=torch.float16, device="cuda") for _ in range(2)]
    share = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float16, device="cuda").view(3, 1, 1)

    def sharpen(source: torch.Tensor, target: torch.Tensor) -> None:
        grey = (source * share).sum(0)
        blurred = functional.avg_pool2d(grey[None], 5, stride=1, padding=2)[0]
        torch.add(grey, grey - blurred, alpha=0.5, out=target)

    @torch.no_grad()
    def one_stream() -> None:
        for number, (film, result) in enumerate(zip(films, results, strict=True)):
            slot = number % 2
            buffers[slot].copy_(film, non_blocking=True)
            sharpen(buffers[slot], greys[slot])
            result.copy_(greys[slot], non_blocking=True)

    uploads = torch.cuda.Stream()
    downloads = torch.cuda.Stream() if way == "two_copy_streams" else uploads
    uploaded, sharpened, downloaded = ([torch.cuda.Event() for _ in buffers] for _ in range(3))

    def upload(number: int) -> None:
        slot = number % 2
        uploads.wait_event(sharpened[slot])
        with torch.cuda.stream(uploads):
            buffers[slot].copy_(films[number], non_blocking=True)
            uploaded[slot].record()

    @torch.no_grad()
    def copy_streams() -> None:
        current = torch.cuda.current_stream()
        upload(0)
        for number, result in enumerate(results):
            slot = number % 2
            if number + 1 < count:
                upload(number + 1)
            current.wait_event(uploaded[slot])
            current.wait_event(downloaded[slot])
            sharpen(buffers[slot], greys[slot])
            sharpened[slot].record()
            downloads.wait_event(sharpened[slot])
            with torch.cuda.stream(downloads):
                result.copy_(greys[slot], non_blocking=True)
                downloaded[slot].record()

    return one_stream if way == "one_stream" else copy_streams
