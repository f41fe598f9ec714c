"""Programs before and after a change that people make, to hold predictions of the change against.

    python -m tests.programs.whatif_pairs OUTPUT_DIR [PROGRAM...]

Plain PyTorch, recorded with torch.profiler as people do. `traces/further/pairs.toml` says which recording is which
change of which other. They were written and recorded without computing any prediction, and predictions were not fitted
to them: they are the test on something new. Every program does the same work in each of its ways.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from tests.programs.whatif_offloading import Step, kv_decode, pipeline, state_offload, weight_offload

SETTLING_STEPS = 10
"""Without a profiler: a loader's workers run ahead by then, and memory has been allocated."""
WARMUP_STEPS = 4
ACTIVE_STEPS = 8


# -- training -------------------------------------------------------------------------------------


def training(way: str) -> Step:
    """Patches of images and a few wide layers: a batch of 74 MiB each step. Naive, copied late, prefetched."""
    model = nn.Sequential(
        nn.Unflatten(1, (196, 768)),
        nn.Linear(768, 1024),
        *(nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024)) for _ in range(3)),
        nn.Flatten(0, 1),
        nn.Linear(1024, 512),
    ).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    naive = way == "naive"
    sources = [torch.randn(256, 196 * 768).bfloat16() for _ in range(2)]
    if not naive:
        sources = [source.pin_memory() for source in sources]
    buffers = [torch.empty_like(source, device="cuda") for source in sources]
    turn = 0

    def train(images: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def late() -> None:
        nonlocal turn
        slot = turn % 2
        buffers[slot].copy_(sources[slot], non_blocking=not naive)
        loss = train(buffers[slot])
        turn += 1
        if naive:
            loss.item()

    side = torch.cuda.Stream()
    sent, used = ([torch.cuda.Event() for _ in buffers] for _ in range(2))

    def send(slot: int) -> None:
        side.wait_event(used[slot])
        with torch.cuda.stream(side):
            buffers[slot].copy_(sources[slot], non_blocking=True)
            sent[slot].record()

    def prefetched() -> None:
        nonlocal turn
        slot, current = turn % 2, torch.cuda.current_stream()
        send(1 - slot)
        current.wait_event(sent[slot])
        train(buffers[slot])
        used[slot].record()
        turn += 1

    if way != "prefetched":
        return late
    send(0)
    return prefetched


def loss_item(way: str) -> Step:
    """Training that reads the loss back every step, or never; host and GPU need about as long."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)))
    model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(16384, 1024, dtype=torch.bfloat16, device="cuda")

    def step() -> None:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if way == "item":
            loss.item()

    return step


# -- input and output -----------------------------------------------------------------------------


def batches(way: str) -> Step:
    """Inference on a batch of 32 MiB each step: from pageable memory, from pinned memory, without waiting."""
    sources = [torch.randn(4096, 2048, pin_memory=way.startswith("pinned")) for _ in range(2)]
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(3))).cuda()
    turn = 0

    @torch.no_grad()
    def step() -> torch.Tensor:
        nonlocal turn
        turn += 1
        result: torch.Tensor = model(sources[turn % 2].to("cuda", non_blocking=way == "pinned_non_blocking"))
        return result

    return step


def small_copies(way: str) -> Step:
    """A hundred features of 100 KB, copied separately or together."""
    together = torch.randn(100, 25600).pin_memory()
    apart = [row.clone().pin_memory() for row in together]
    target, weight = torch.empty(100, 25600, device="cuda"), torch.randn(25600, 2048, device="cuda")

    def step() -> torch.Tensor:
        if way == "one":
            target.copy_(together, non_blocking=True)
        else:
            for row, source in zip(target, apart, strict=True):
                row.copy_(source, non_blocking=True)
        return torch.relu(target @ weight)

    return step


def results(way: str) -> Step:
    """Results of 48 MiB go to the host each step: into pageable or pinned memory, or there on a stream of their own."""
    kept = [torch.empty(3072, 4096, pin_memory=way != "pageable") for _ in range(4)]
    outputs = [torch.empty(3072, 4096, device="cuda") for _ in range(2)]
    left, right = torch.randn(3072, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()
    saved = [torch.cuda.Event() for _ in outputs]
    turn = 0

    def step() -> None:
        nonlocal turn
        slot, current = turn % 2, torch.cuda.current_stream()
        if way == "side_stream":
            current.wait_event(saved[slot])
        torch.mm(left, right, out=outputs[slot])
        outputs[slot].relu_()
        if way == "side_stream":
            side.wait_stream(current)
            with torch.cuda.stream(side):
                kept[turn % 4].copy_(outputs[slot], non_blocking=True)
                saved[slot].record()
        else:
            kept[turn % 4].copy_(outputs[slot], non_blocking=True)
        turn += 1

    return step


class SlowPhotos(Dataset[torch.Tensor]):
    """Each takes a millisecond to decode."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return torch.full((3, 192, 192), float(index % 7))


def loader(way: str) -> Step:
    """Photos through a small convolutional network, decoded by the training process or by six workers."""
    photos = iter(DataLoader(SlowPhotos(), batch_size=12, num_workers=6 if way == "workers" else 0))
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3),
        *(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(6)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        loss = model(next(photos).to("cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- launches -------------------------------------------------------------------------------------


def replayed(run: Callable[[], torch.Tensor], source: torch.Tensor, static: torch.Tensor, way: str) -> Step:
    """A model whose input comes from the host each step, as it is or as a CUDA graph."""

    @torch.no_grad()
    def eager() -> torch.Tensor:
        static.copy_(source, non_blocking=True)
        return run()

    if way == "eager":
        return eager
    graph = captured(run)

    def graphed() -> None:
        static.copy_(source, non_blocking=True)
        graph.replay()

    return graphed


def captured(run: Callable[[], torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Return the launched kernels as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        run()
    return graph


def small_transformer(way: str) -> Step:
    """Inference of 4 layers of width 256 for 4 sequences of 64: far too little work for a GPU."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().eval()
    source = torch.randn(4, 64, 256, pin_memory=True)
    static = torch.zeros(4, 64, 256, device="cuda")
    return replayed(lambda: model(static), source, static, way)


class ResidualBlock(nn.Module):
    """A residual block of a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + functional.gelu(self.linear(self.norm(hidden)))


def perceptron(way: str) -> Step:
    """Inference of 24 residual blocks of width 1536 for 256 samples: kernels about as long as their launches."""
    model = nn.Sequential(*(ResidualBlock(1536) for _ in range(24))).half().cuda()
    source = torch.randn(256, 1536).half().pin_memory()
    static = torch.zeros(256, 1536, dtype=torch.float16, device="cuda")
    return replayed(lambda: model(static), source, static, way)


def synchronized(way: str) -> Step:
    """Inference of 20 layers with a synchronize at the end of each step, as for a clock, or without."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(20))).half().cuda()
    batch = torch.randn(2048, 2048, dtype=torch.float16, device="cuda")

    @torch.no_grad()
    def step() -> None:
        model(batch)
        if way == "synchronize":
            torch.cuda.synchronize()

    return step


PROGRAMS: dict[Callable[[str], Step], tuple[str, ...]] = {
    pipeline: ("pageable", "one_stream", "three_streams"),
    state_offload: ("one_copy_stream", "two_copy_streams"),
    kv_decode: ("on_demand", "prefetch"),
    weight_offload: ("layer_by_layer", "prefetch"),
    training: ("naive", "late", "prefetched"),
    loss_item: ("item", "none"),
    batches: ("pageable_blocking", "pinned_blocking", "pinned_non_blocking"),
    small_copies: ("many", "one"),
    results: ("pageable", "pinned", "side_stream"),
    loader: ("no_workers", "workers"),
    small_transformer: ("eager", "graph"),
    perceptron: ("eager", "graph"),
    synchronized: ("synchronize", "none"),
}
"""Each program and its ways."""


def record(step: Step, path: Path) -> None:
    """Profile some steps of a program, after some to warm up, from a moment on at which the device has caught up."""
    for _ in range(SETTLING_STEPS):
        step()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True),
    ) as profiler:
        for number in range(WARMUP_STEPS + ACTIVE_STEPS):
            step()
            if number == WARMUP_STEPS - 1:
                torch.cuda.synchronize()
            profiler.step()


def record_all(programs: Mapping[Callable[[str], Step], tuple[str, ...]]) -> None:
    """Record those programs that are named on the command line, or all."""
    target = Path(sys.argv[1])
    for program, ways in programs.items():
        if sys.argv[2:] and program.__name__ not in sys.argv[2:]:
            continue
        (target / program.__name__).mkdir(parents=True, exist_ok=True)
        for way in ways:
            torch.manual_seed(0)
            step = program(way)
            torch.cuda.synchronize()
            record(step, target / program.__name__ / f"{way}.json.gz")
            del step
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            print(program.__name__, way, flush=True)


if __name__ == "__main__":
    record_all(PROGRAMS)
