"""Programs nearer to real ones, where several things happen at once. Each docstring says what must be found.

    python -m tests.programs.mixed_workloads OUTPUT_DIR [NAME...]

The recordings in `traces/mixed_workloads` were made this way. They were recorded after the causes had been
written, to test them on something they had not been written for.
"""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from tests.programs.known_causes import SlowSamples, Step, on_gpu, pinned, record_all, work


def late_by_half() -> Step:
    """The next batch is requested when half of this step's compute has been read back: half is exposed.

    The host synchronizes in mid-step, so the copy is issued with 5 ms of compute left to launch: it is hidden
    by that. Then the same copy again, issued when all compute has ended: exposed, `late-issue`.
    """
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work(count=2)

    def step() -> None:
        main = torch.cuda.current_stream()
        compute()
        main.synchronize()
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        compute()
        main.synchronize()
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        main.wait_stream(stream)
        target.mul_(1.0)

    return step


def two_streams_in_turn() -> Step:
    """Layers alternate between two streams, each H2D, compute, D2H: one's copies run under the other's compute."""
    layers = 8
    hosts = [pinned(48) for _ in range(layers)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    buffers, parts = [on_gpu(48), on_gpu(48)], [work(count=1), work(count=1)]

    def step() -> None:
        for index, host in enumerate(hosts):
            stream, buffer, part = streams[index % 2], buffers[index % 2], parts[index % 2]
            with torch.cuda.stream(stream):
                buffer.copy_(host, non_blocking=True)
                part()
                host.copy_(buffer, non_blocking=True)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    return step


def kv_offload() -> Step:
    """A decode step: each layer's cache is fetched one layer ahead on its own stream. Copies outlast compute:
    `no-compute` for nearly all that is exposed."""
    layers = 12
    caches = [pinned(32) for _ in range(layers)]
    buffers = [on_gpu(32), on_gpu(32)]
    fetched = [torch.cuda.Event(), torch.cuda.Event()]
    used = [torch.cuda.Event(), torch.cuda.Event()]
    stream = torch.cuda.Stream()
    weight, state = torch.randn(4096, 4096, device="cuda"), torch.randn(8, 4096, device="cuda")

    def fetch(layer: int) -> None:
        slot = layer % 2
        stream.wait_event(used[slot])
        with torch.cuda.stream(stream):
            buffers[slot].copy_(caches[layer], non_blocking=True)
            fetched[slot].record()

    def step() -> None:
        fetch(0)
        hidden = state
        for layer in range(layers):
            if layer + 1 < layers:
                fetch(layer + 1)
            torch.cuda.current_stream().wait_event(fetched[layer % 2])
            with record_function(f"layer {layer}"):
                hidden = torch.softmax(hidden @ weight, -1) + buffers[layer % 2][:4096]
            used[layer % 2].record()

    return step


def activation_offload() -> Step:
    """`save_on_cpu` with pinned memory: it copies on the compute stream, both ways: `same-stream`."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    batch = torch.randn(8192, 4096, device="cuda", requires_grad=True)

    def step() -> None:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(batch).square().mean()
        loss.backward()

    return step


def async_checkpoint() -> Step:
    """Weights go to pinned memory on a side stream under the next step's compute: hidden."""
    weights = [torch.randn(2048, 2048, device="cuda") for _ in range(8)]
    stored = [torch.empty(2048, 2048, pin_memory=True) for _ in weights]
    stream, compute = torch.cuda.Stream(), work(count=4)

    def step() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for weight, target in zip(weights, stored, strict=True):
                target.copy_(weight, non_blocking=True)
        compute()

    return step


def loader_with_workers() -> Step:
    """Two workers cannot keep up with the GPU: `data-loading`. The pinned, prefetched copy is fine."""
    loader = torch.utils.data.DataLoader(SlowSamples(), batch_size=16, num_workers=2, pin_memory=True)
    batches: Iterator[torch.Tensor] = iter(loader)
    compute = work(count=1)

    def step() -> None:
        batch = next(batches)
        batch.to("cuda", non_blocking=True)
        compute()

    return step


def graph_with_copies() -> Step:
    """A CUDA graph with an upload, kernels and a download in a single chain: order inside the graph."""
    source, target, back = pinned(32), on_gpu(32), pinned(32)
    value = torch.ones(1 << 24, device="cuda")
    graph = torch.cuda.CUDAGraph()
    for _ in range(2):
        target.copy_(source, non_blocking=True)
        value.add_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
        for _ in range(40):
            value.add_(1.0)
        back.copy_(target, non_blocking=True)

    return graph.replay


def two_threads() -> Step:
    """Two threads launch on a stream each; one of them reads a scalar back after every matrix product."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    parts = [work(size=1024, count=50), work(size=1024, count=1)]

    def quiet() -> None:
        with torch.cuda.stream(streams[0]):
            parts[0]()

    def noisy() -> None:
        with torch.cuda.stream(streams[1]):
            for _ in range(20):
                parts[1]()[0, 0].item()

    def step() -> None:
        threads = [threading.Thread(target=target) for target in (quiet, noisy)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()

    return step


def small_transformer() -> Step:
    """Training a transformer of small layers with AdamW and pageable input: `dispatch`, `python`."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    source = torch.randn(8, 64, 256)

    def step() -> None:
        with record_function("input"):
            batch = source.to("cuda")
        with record_function("forward"):
            loss = model(batch).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def model_on_two_devices() -> Step:
    """Half of the layers on each device: each is idle while the other computes; P2P copies between them."""
    first = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).to("cuda:0")
    second = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).to("cuda:1")
    source = torch.ones(4096, 4096, pin_memory=True)

    def step() -> None:
        batch = source.to("cuda:0", non_blocking=True)
        second(first(batch).to("cuda:1")).square().mean().backward()

    return step


def amp_training() -> Step:
    """Mixed precision with a GradScaler, which reads back whether gradients overflowed. The host is the slower one
    here: it never waits long for that, and the GPU waits for `dispatch`."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    source = torch.randn(8192, 1024, pin_memory=True)

    def step() -> None:
        batch = source.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def checkpoint_blocking() -> Step:
    """`.cpu()` of all weights after each step: downloads into pageable memory while the GPU does nothing else."""
    weights = [torch.randn(2048, 2048, device="cuda") for _ in range(8)]
    compute = work(count=1)

    def step() -> list[torch.Tensor]:
        compute()
        return [weight.cpu() for weight in weights]

    return step


def masked_indexing() -> Step:
    """`x[mask]` needs the number of hits on the host: a synchronize inside `aten::nonzero`, after 5 ms of compute."""
    values, compute = torch.randn(1 << 22, device="cuda"), work(count=2)

    def step() -> torch.Tensor:
        compute()
        return values[values > 0].sum()

    return step


def compiled_model() -> Step:
    """A compiled model of small layers: fewer launches, by Triton through the driver; still bound by them."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().eval()
    compiled, batch = torch.compile(model), torch.randn(8, 64, 256, device="cuda")

    def step() -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = compiled(batch)
        return result

    return step


def cpu_offloaded_optimizer() -> Step:
    """Gradients go to the host, Adam runs there, weights come back: the GPU waits for CPU work."""
    weight = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    master = torch.nn.Parameter(torch.randn(2048, 2048))
    master.grad = torch.empty(2048, 2048, pin_memory=True)
    optimizer, compute = torch.optim.Adam([master]), work(count=1)

    def step() -> None:
        compute()
        weight.square().sum().backward()
        assert weight.grad is not None and master.grad is not None
        master.grad.copy_(weight.grad, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        optimizer.step()
        with torch.no_grad():
            weight.copy_(master)
        weight.grad = None

    return step


def uneven_prefetch() -> Step:
    """Four tensors of a batch, sent when the last step's result has been read: late as a whole."""
    sources = [pinned(32) for _ in range(4)]
    targets, stream, compute = [on_gpu(32) for _ in sources], torch.cuda.Stream(), work(count=4)

    def step() -> None:
        with torch.cuda.stream(stream):
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        targets[-1].mul_(1.0)
        compute()[0, 0].item()

    return step


PROGRAMS = {
    function.__name__: function
    for function in (
        late_by_half,
        two_streams_in_turn,
        kv_offload,
        activation_offload,
        async_checkpoint,
        loader_with_workers,
        graph_with_copies,
        two_threads,
        small_transformer,
        model_on_two_devices,
        amp_training,
        checkpoint_blocking,
        masked_indexing,
        compiled_model,
        cpu_offloaded_optimizer,
        uneven_prefetch,
    )
}
RECORDED_OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "small_transformer_everything": (
        "small_transformer",
        {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_modules": True},
    ),
    "small_transformer_gpu_only": ("small_transformer", {"activities": [ProfilerActivity.CUDA]}),
    "kv_offload_no_sync_events": ("kv_offload", {"sync_events": False}),
    "kv_offload_running_ahead": ("kv_offload", {"catch_up": False}),
}

if __name__ == "__main__":
    record_all(PROGRAMS, RECORDED_OTHERWISE)
