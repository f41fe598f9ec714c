"""Small programs, each written so that one cause explains its timeline, and recorders for them.

Every function below prepares its tensors and returns one training-like step. `traces/truth.toml` says what
an analysis of the recording must find, and follows from how the program is written, not from what an
analyzer printed. Recorded with torch.profiler itself, as people do without overlapscope's recorder:

    python -m tests.programs.known_causes OUTPUT_DIR [NAME...]

The recordings in `traces/known_causes` were made this way; see `traces/README.md` for the hardware.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

MIB = 1 << 20
Step = Callable[[], Any]

ACTIVE_STEPS = 4
WARMUP_STEPS = 3


def pinned(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4, pin_memory=True)


def on_gpu(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4, device="cuda")


def work(size: int = 4096, count: int = 4, dtype: torch.dtype = torch.float32) -> Step:
    """Some milliseconds of matrix multiplications that need no input from the host."""
    factor = torch.randn(size, size, device="cuda", dtype=dtype)
    right = torch.randn(size, size, device="cuda", dtype=dtype)
    out = torch.empty_like(factor)

    def run() -> torch.Tensor:
        for _ in range(count):
            torch.mm(factor, right, out=out)
        return out

    return run


# -- copies ---------------------------------------------------------------------------------------


def pageable_memory() -> Step:
    """A batch in pageable memory, copied on its own stream: the call blocks, so compute comes late."""
    source, target = torch.ones(64 * MIB // 4), on_gpu(64)
    stream, compute = torch.cuda.Stream(), work()

    def step() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        compute()
        torch.cuda.current_stream().wait_stream(stream)

    return step


def same_stream() -> Step:
    """A pinned, non-blocking copy on the compute stream: stream order alone exposes it."""
    source, target, compute = pinned(128), on_gpu(128), work()

    def step() -> None:
        target.copy_(source, non_blocking=True)
        compute()

    return step


def late_issue() -> Step:
    """Own stream, pinned, but issued when the last step's compute has ended and its result was read."""
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work()

    def step() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        target.mul_(1.0)
        out = compute()
        out[0, 0].item()

    return step


def event_wait() -> Step:
    """A prefetch that waits for the whole compute stream before it starts."""
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work()

    def step() -> None:
        compute()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)

    return step


def event_wait_reused_events() -> Step:
    """The same order, by two events made once and recorded every step."""
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work()
    computed, copied = torch.cuda.Event(), torch.cuda.Event()

    def step() -> None:
        compute()
        computed.record()
        stream.wait_event(computed)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            copied.record()
        torch.cuda.current_stream().wait_event(copied)

    return step


def host_sync() -> Step:
    """The copy is free to run under compute, but the host waits for it before it launches any."""
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work()

    def step() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        stream.synchronize()
        compute()

    return step


def blocking_copy() -> Step:
    """`copy_` from pinned memory without non_blocking: it waits for itself, then compute is launched."""
    source, target = pinned(128), on_gpu(128)
    stream, compute = torch.cuda.Stream(), work()

    def step() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source)
        compute()

    return step


def engine_busy() -> Step:
    """The batch waits on the copy engine for a bulk upload; the second half of compute needs it."""
    bulk, bulk_target = pinned(512), on_gpu(512)
    batch, batch_target = pinned(16), on_gpu(16)
    bulk_stream, batch_stream = torch.cuda.Stream(), torch.cuda.Stream()
    first, second = work(count=2), work(count=8)

    def step() -> None:
        main = torch.cuda.current_stream()
        bulk_stream.wait_stream(main)
        with torch.cuda.stream(bulk_stream):
            bulk_target.copy_(bulk, non_blocking=True)
        with torch.cuda.stream(batch_stream):
            batch_target.copy_(batch, non_blocking=True)
        first()
        main.wait_stream(batch_stream)
        batch_target.mul_(1.0)
        second()

    return step


def no_compute() -> Step:
    """Nothing is wrong but the amount: 512 MiB to copy beside one small kernel."""
    source, target, other = pinned(512), on_gpu(512), on_gpu(16)
    stream = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        other.mul_(1.0)
        torch.cuda.current_stream().wait_stream(stream)

    return step


def healthy_prefetch() -> Step:
    """The next batch is copied on its own stream while this one is computed on: nothing to find."""
    source = pinned(128)
    buffers, ready, used = [on_gpu(128), on_gpu(128)], [], []
    for _ in buffers:
        ready.append(torch.cuda.Event())
        used.append(torch.cuda.Event())
        used[-1].record()
    stream, compute = torch.cuda.Stream(), work(count=6)
    turn = 0

    def prefetch(slot: int) -> None:
        stream.wait_event(used[slot])
        with torch.cuda.stream(stream):
            buffers[slot].copy_(source, non_blocking=True)
            ready[slot].record()

    prefetch(0)

    def step() -> None:
        nonlocal turn
        this, following = turn % 2, (turn + 1) % 2
        prefetch(following)
        torch.cuda.current_stream().wait_event(ready[this])
        buffers[this].mul_(1.0)
        compute()
        used[this].record()
        turn += 1

    return step


def one_copy_stream() -> Step:
    """Loads and stores share one stream, so the two directions never run at once; compute is short."""
    load, store = pinned(64), pinned(64)
    device_in, device_out = on_gpu(64), on_gpu(64)
    stream, compute = torch.cuda.Stream(), work(count=1)

    def step() -> None:
        with torch.cuda.stream(stream):
            for _ in range(3):
                device_in.copy_(load, non_blocking=True)
                store.copy_(device_out, non_blocking=True)
        compute()
        torch.cuda.current_stream().wait_stream(stream)

    return step


def many_small_copies() -> Step:
    """Two hundred 4 KB copies where one would do."""
    sources = [torch.ones(1000, pin_memory=True) for _ in range(200)]
    compute = work(count=1)

    def step() -> None:
        for source in sources:
            source.to("cuda", non_blocking=True)
        compute()

    return step


def pin_in_loop() -> Step:
    """Pins fresh memory every step: slower than the plain copy."""
    source, compute = torch.ones(64 * MIB // 4), work(count=1)
    kept: list[torch.Tensor] = []

    def step() -> None:
        kept.append(source.pin_memory())
        kept[-1].to("cuda", non_blocking=True)
        compute()

    return step


# -- idle -----------------------------------------------------------------------------------------


def item_every_step() -> Step:
    """Reads a scalar back after every step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
    batch = torch.randn(4096, 2048, device="cuda")

    def step() -> float:
        with record_function("forward"):
            loss = model(batch).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("read loss"):
            return float(loss.item())

    return step


def launch_bound() -> Step:
    """Hundreds of kernels far shorter than their launch."""
    value = torch.ones(256, device="cuda")

    def step() -> None:
        for _ in range(300):
            value.add_(1.0)

    return step


def launch_bound_graph() -> Step:
    """The same kernels in a CUDA graph: no gap worth a finding remains."""
    value = torch.ones(1 << 22, device="cuda")
    for _ in range(3):
        value.add_(1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(300):
            value.add_(1.0)

    return graph.replay


class SlowSamples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((1024, 64), float(index))


def data_loading() -> Step:
    """A loader without workers that takes far longer than the compute."""
    batches = iter(torch.utils.data.DataLoader(SlowSamples(), batch_size=8))
    compute = work(count=1)

    def step() -> None:
        batch = next(batches)
        batch.to("cuda", non_blocking=True)
        compute()

    return step


def host_compute() -> Step:
    """Ten milliseconds of CPU work between short GPU steps, and no synchronization."""
    compute, cpu = work(count=1), torch.randn(1200, 1200)

    def step() -> None:
        compute()
        until = time.perf_counter() + 0.010
        while time.perf_counter() < until:
            cpu.square().sum()

    return step


def allocation() -> Step:
    """Gives memory back to the driver every step and asks for it again."""
    compute = work(count=1)

    def step() -> None:
        blocks = [torch.empty(512 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
        compute()
        del blocks
        torch.cuda.empty_cache()

    return step


# -- streams --------------------------------------------------------------------------------------


def backward_on_side_stream() -> Step:
    """`backward()` under another stream: autograd still runs it where the forward ran."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    batch, stream = torch.randn(4096, 2048, device="cuda"), torch.cuda.Stream()

    def step() -> None:
        loss = model(batch).square().mean()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss.backward()
        torch.cuda.current_stream().wait_stream(stream)

    return step


def two_streams_full_kernels() -> Step:
    """Two streams of large matrix multiplications: each fills the GPU, so they take turns."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    parts = [work(), work()]

    def step() -> None:
        main = torch.cuda.current_stream()
        for stream, part in zip(streams, parts, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                part()
        for stream in streams:
            main.wait_stream(stream)

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    function.__name__: function
    for function in (
        pageable_memory,
        same_stream,
        late_issue,
        event_wait,
        event_wait_reused_events,
        host_sync,
        blocking_copy,
        engine_busy,
        no_compute,
        healthy_prefetch,
        one_copy_stream,
        many_small_copies,
        pin_in_loop,
        item_every_step,
        launch_bound,
        launch_bound_graph,
        data_loading,
        host_compute,
        allocation,
        backward_on_side_stream,
        two_streams_full_kernels,
    )
}

RECORDED_OTHERWISE = {
    # name of the recording: (program, what differs from a plain recording)
    "event_wait_no_sync_events": ("event_wait", {"sync_events": False}),
    "late_issue_no_sync_events": ("late_issue", {"sync_events": False}),
    "host_sync_stacks": ("host_sync", {"with_stack": True}),
    "item_every_step_stacks": ("item_every_step", {"with_stack": True}),
    "data_loading_stacks": ("data_loading", {"with_stack": True}),
    "healthy_prefetch_running_ahead": ("healthy_prefetch", {"catch_up": False}),
}


def record(step: Step, path: Path, *, sync_events: bool = True, catch_up: bool = True, **profiler_options: Any) -> None:
    """Profile some steps of a program, after as many steps to warm up.

    `catch_up` waits for the device before the recording begins; without it the host is steps ahead by then.
    """
    profiler_options.setdefault("activities", [ProfilerActivity.CPU, ProfilerActivity.CUDA])
    with profile(
        schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=sync_events),
        **profiler_options,
    ) as profiler:
        for index in range(WARMUP_STEPS + ACTIVE_STEPS):
            step()
            if catch_up and index == WARMUP_STEPS - 1:
                torch.cuda.synchronize()
            profiler.step()


def record_all(programs: dict[str, Callable[[], Step]], otherwise: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Record the programs named on the command line, or all."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or [*programs, *otherwise]:
        program, options = otherwise.get(name, (name, {}))
        step = programs[program]()
        torch.cuda.synchronize()
        record(step, target / f"{name}.json.gz", **options)
        torch.cuda.empty_cache()
        print(name, flush=True)


if __name__ == "__main__":
    record_all(PROGRAMS, RECORDED_OTHERWISE)
