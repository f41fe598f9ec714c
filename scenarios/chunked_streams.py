"""One array in chunks on several streams: which order of issue lets copies run under kernels.

From NVIDIA's "How to Overlap Data Transfers in CUDA C/C++", re-run on an RTX 2070 SUPER: 4 x 1024 x 256 x 4 float32 go
to the GPU, a kernel adds sqrt(sin^2 + cos^2) of each element's index, and they come back. All at once on one stream;
in four chunks on four streams depth first (copy, kernel and copy of a chunk before the next chunk is issued); and
breadth first (all copies in, all kernels, all copies out). The kernel is six of PyTorch's here, in place. The sweep
over 1, 2, 4, 8 and 16 streams is breadth first; `sequential` is its one, `breadth_first` its four.

Look for: sequential hides nothing (`same-stream`). GPUs of the post's time had one queue for all streams, so
the order of issue mattered much; with a queue per stream it is mostly launches that cost, and too many chunks pay more
in launches than they win. sin^2 + cos^2 is 1, so every result is checked.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

ROUNDING = 2.0**-22
"""Two units in the last place above 1, more than the errors of sine, cosine, squares, sum and root together. A chunk
that is lost, or used before it arrived, is off by 1."""
TRIES = 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The same part of every array."""

    source: torch.Tensor
    values: torch.Tensor
    index: torch.Tensor
    sine: torch.Tensor
    cosine: torch.Tensor
    result: torch.Tensor

    def upload(self) -> None:
        self.values.copy_(self.source, non_blocking=True)

    def compute(self) -> None:
        torch.sin(self.index, out=self.sine)
        torch.cos(self.index, out=self.cosine)
        self.sine.mul_(self.sine)
        self.sine.addcmul_(self.cosine, self.cosine)
        self.sine.sqrt_()
        self.values.add_(self.sine)

    def download(self) -> None:
        self.result.copy_(self.values, non_blocking=True)


def depth_first(chunks: list[Chunk], streams: list[torch.cuda.Stream]) -> None:
    for chunk, stream in zip(chunks, streams, strict=True):
        with torch.cuda.stream(stream):
            chunk.upload()
            chunk.compute()
            chunk.download()


def breadth_first(chunks: list[Chunk], streams: list[torch.cuda.Stream]) -> None:
    for stage in (Chunk.upload, Chunk.compute, Chunk.download):
        for chunk, stream in zip(chunks, streams, strict=True):
            with torch.cuda.stream(stream):
                stage(chunk)


def prepare(elements: int, streams: int, order: Literal["depth", "breadth"]) -> Program:
    source, result = (torch.zeros(elements, pin_memory=True) for _ in range(2))
    index = torch.arange(elements, dtype=torch.float32, device="cuda")  # Exact up to 2**24.
    values, sine, cosine = (torch.empty_like(index) for _ in range(3))
    parts = (array.chunk(streams) for array in (source, values, index, sine, cosine, result))
    chunks = [Chunk(*part) for part in zip(*parts, strict=True)]
    others = [torch.cuda.Stream() for _ in range(streams - 1)]
    issue = depth_first if order == "depth" else breadth_first
    torch.cuda.synchronize()

    def step() -> None:
        current = torch.cuda.current_stream()
        for other in others:
            other.wait_stream(current)
        issue(chunks, [current, *others])
        for other in others:
            current.wait_stream(other)

    def error() -> float:
        torch.cuda.synchronize()
        result.zero_()
        step()
        torch.cuda.synchronize()
        return float((result - 1).abs().max())

    def count_wrong() -> WrongResults:
        return WrongResults(sum(error() > ROUNDING for _ in range(TRIES)), TRIES)

    return Program(step, figures=lambda: {"max_error": error()}, count_wrong=count_wrong)


IN_LINE = Truth(
    hidden_copy_pct=(0.0, 1.0), findings=("same-stream",), no_findings=("pageable-memory", "overlap-achieved")
)
SIDE_BY_SIDE = Truth(hidden_copy_pct=(5.0, 100.0), no_findings=("pageable-memory",))


def sweep(streams: int) -> Variant:
    return Variant(
        f"breadth_first_{streams}",
        {"streams": streams, "order": "breadth"},
        shows=f"The same in {streams} chunks on {streams} streams.",
        truth=SIDE_BY_SIDE if streams <= 4 else Truth(no_findings=("pageable-memory",)),
        wrong_results="none",
    )


EXPERIMENT = Experiment(
    name="chunked_streams",
    title="Chunks on several streams, depth first and breadth first",
    shows="Chunks on streams of their own let copies run under other chunks' kernels.",
    sizes={"small": {"elements": 4 * 1024 * 256 * 4}, "paper": {"elements": 4 * 1024 * 256 * 4}},
    prepare=prepare,
    variants=(
        Variant(
            "sequential",
            {"streams": 1, "order": "breadth"},
            shows="Copy, kernel and copy of the whole array follow one another.",
            truth=IN_LINE,
            published={"wall_ms": 5.69, "max_error": 1.2e-7},
            wrong_results="none",
        ),
        Variant(
            "depth_first",
            {"streams": 4, "order": "depth"},
            shows="Copy, kernel and copy of each chunk in turn: chunks overlap one another.",
            truth=SIDE_BY_SIDE,
            published={"wall_ms": 4.64, "max_error": 1.2e-7},
            wrong_results="none",
        ),
        Variant(
            "breadth_first",
            {"streams": 4, "order": "breadth"},
            shows="All copies in, all kernels, all copies out: chunks overlap one another.",
            truth=SIDE_BY_SIDE,
            published={"wall_ms": 4.18, "max_error": 1.2e-7},
            wrong_results="none",
        ),
        *(sweep(streams) for streams in (2, 8, 16)),
    ),
    published_on='RTX 2070 SUPER, re-run of NVIDIA\'s "How to Overlap Data Transfers in CUDA C/C++"',
    faster=(("depth_first", "sequential"), ("breadth_first", "sequential"), ("breadth_first", "depth_first")),
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
