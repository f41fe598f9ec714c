"""An offload pipeline: each layer is uploaded, computed on and downloaded, on one, two or three streams.

From an article on offloading layers to host memory (measured on an A800): 30 layers of float16 (1, 16800, 1536), each
multiplied in place 20 times between its way in and its way out, all host memory pinned. On one stream the three parts
follow one another. Two alternating streams halve the time: while one copies, the other computes, and the two directions
of the link work at once. Three streams, one for each direction and one for compute, joined by events, are the general
form: while layer n is computed, n + 1 is uploaded and n - 1 is downloaded.

Look for: copies outlast compute by far, so no order hides all of them (cause `no-compute`); a single stream wastes its
compute (`same-stream`) and a direction of the link (`one-way-copies`). Every layer that returns is checked
to the bit: doubling a float16 is exact.
"""

import statistics
from collections.abc import Callable, Sequence

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Step, Truth, Variant, WrongResults

SHAPE = (1, 16800, 1536)
DOUBLINGS = 20
SMALLEST = 2.0**-14
"""The smallest normal float16. Doubled 20 times it is 64, without overflow on the way."""
TRIES = 2


def layer_values(layers: int) -> list[float]:
    """Return a value of few bits for each layer, so that a layer in the wrong place is detected too."""
    return [(1 + (number % 32) / 32) * SMALLEST for number in range(layers)]


def compute(layer: torch.Tensor) -> None:
    for _ in range(DOUBLINGS):
        layer.mul_(2.0)


def take_turns(sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor], streams: int) -> Step:
    """Process each layer on one stream, the next on the next stream. The current stream is one of them."""
    others = [torch.cuda.Stream() for _ in range(streams - 1)]
    buffers = [torch.empty_like(sources[0], device="cuda") for _ in range(streams)]

    def step() -> None:
        current = torch.cuda.current_stream()
        turns = [current, *others]
        for number, (source, result) in enumerate(zip(sources, results, strict=True)):
            buffer = buffers[number % streams]
            with torch.cuda.stream(turns[number % streams]):
                buffer.copy_(source, non_blocking=True)
                compute(buffer)
                result.copy_(buffer, non_blocking=True)
        for other in others:
            current.wait_stream(other)

    return step


def three_streams(sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Step:
    """Upload, compute and download on separate streams, with three buffers in turn."""
    uploads, downloads = torch.cuda.Stream(), torch.cuda.Stream()
    buffers = [torch.empty_like(sources[0], device="cuda") for _ in range(3)]
    uploaded, computed, downloaded = ([torch.cuda.Event() for _ in buffers] for _ in range(3))

    def step() -> None:
        current = torch.cuda.current_stream()
        for number, (source, result) in enumerate(zip(sources, results, strict=True)):
            slot = number % len(buffers)
            uploads.wait_event(downloaded[slot])  # The buffer is free again.
            with torch.cuda.stream(uploads):
                buffers[slot].copy_(source, non_blocking=True)
                uploaded[slot].record()
            current.wait_event(uploaded[slot])
            compute(buffers[slot])
            computed[slot].record()
            downloads.wait_event(computed[slot])
            with torch.cuda.stream(downloads):
                result.copy_(buffers[slot], non_blocking=True)
                downloaded[slot].record()
        current.wait_stream(downloads)

    return step


def gpu_ms(work: Callable[[torch.Tensor], object], tensors: Sequence[torch.Tensor]) -> float:
    """Return the median time, over five runs, that the current stream takes for work on all tensors."""
    times: list[float] = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for tensor in tensors:
            work(tensor)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def prepare(layers: int, streams: int) -> Program:
    values = layer_values(layers)
    sources = [torch.full(SHAPE, value, dtype=torch.float16, pin_memory=True) for value in values]
    results = [torch.zeros(SHAPE, dtype=torch.float16, pin_memory=True) for _ in values]
    step = three_streams(sources, results) if streams == 3 else take_turns(sources, results, streams)

    def parts() -> dict[str, float]:
        """Return the time of each part of the pipeline."""
        buffer = torch.zeros_like(sources[0], device="cuda")
        h2d = gpu_ms(lambda source: buffer.copy_(source, non_blocking=True), sources)
        alone = gpu_ms(lambda _: compute(buffer), sources)
        d2h = gpu_ms(lambda result: result.copy_(buffer, non_blocking=True), results)
        return {"h2d_ms": h2d, "compute_ms": alone, "d2h_ms": d2h, "parts_ms": h2d + alone + d2h}

    def count_wrong() -> WrongResults:
        """Count layers that came back with a wrong element."""
        wrong = 0
        for _ in range(TRIES):
            torch.cuda.synchronize()
            for result in results:
                result.zero_()
            step()
            torch.cuda.synchronize()
            pairs = zip(results, values, strict=True)
            wrong += sum(not bool((result == value * 2.0**DOUBLINGS).all()) for result, value in pairs)
        return WrongResults(wrong, TRIES * layers)

    return Program(step, figures=parts if streams == 1 else None, count_wrong=count_wrong)


# Twenty multiplications move a layer 40 times through the GPU's memory, and the copies move it twice over the link. If
# the memory is at least 40 times as fast as the link, half of the copying or more exceeds all compute.
BEYOND_COMPUTE = Truth(
    exposed_copy="no-compute", no_findings=("one-way-copies", "pageable-memory"), hidden_copy_pct=(10.0, 90.0)
)

EXPERIMENT = Experiment(
    name="offload_pipeline",
    title="Offload pipeline on one, two and three streams",
    shows="Copies of one layer run under the compute of another, and both directions of the link at once.",
    sizes={"small": {"layers": 6}, "paper": {"layers": 30}},
    prepare=prepare,
    variants=(
        Variant(
            "one_stream",
            {"streams": 1},
            shows="Upload, compute and download follow one another: at least the sum of the parts.",
            truth=Truth(
                exposed_copy="no-compute",
                least_share=0.4,
                hidden_copy_pct=(0.0, 1.0),
                findings=("same-stream", "one-way-copies"),
                no_findings=("pageable-memory", "overlap-achieved"),
            ),
            published={"wall_ms": 178.0, "h2d_ms": 58.2, "compute_ms": 38.8, "d2h_ms": 62.5, "parts_ms": 159.5},
            wrong_results="none",
        ),
        Variant(
            "two_streams",
            {"streams": 2},
            shows="While one stream copies, the other computes or copies the other way: about half the time.",
            truth=BEYOND_COMPUTE,
            published={"wall_ms": 90.5},
            wrong_results="none",
        ),
        Variant(
            "three_streams",
            {"streams": 3},
            shows="Uploads, compute and downloads run side by side, held together by events alone.",
            truth=Truth(
                exposed_copy=BEYOND_COMPUTE.exposed_copy,
                hidden_copy_pct=BEYOND_COMPUTE.hidden_copy_pct,
                findings=("overlap-achieved",),
                no_findings=(*BEYOND_COMPUTE.no_findings, "same-stream"),
            ),
            wrong_results="none",
        ),
    ),
    published_on="A800, offload article",
    faster=(("two_streams", "one_stream"),),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
