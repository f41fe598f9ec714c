"""A thousand small copies, with a wait after each or one wait for all.

From the PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()": a thousand tensors of a thousand
floats are copied by `.to("cuda")`, which waits after each, and by `.to("cuda", non_blocking=True)` with a single
synchronize at the end. The device takes as long for the copies either way; the host does not.

The figures count the host's calls: 1000 `cudaMemcpyAsync` each, but 1000 `cudaStreamSynchronize` against a single
`cudaDeviceSynchronize`. Look at `tiny-copies`, the problem of both: copies this small are all latency.
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

ITERATION = "all copies"


def prepare(tensors: int, elements: int, recorded_tensors: int, non_blocking: bool) -> Program:
    # The published figures were taken with a single CPU thread, by torch.utils.benchmark's Timer.
    torch.set_num_threads(1)
    sources = [torch.randn(elements) for _ in range(tensors)]

    def copy(count: int) -> list[torch.Tensor]:
        copies = [source.to("cuda", non_blocking=non_blocking) for source in sources[:count]]
        if non_blocking:
            torch.cuda.synchronize()
        return copies

    def calls() -> dict[str, float]:
        """Return the host's calls in an iteration, and the device's time for its copies."""
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler, record_function(ITERATION):
            copy(tensors)
        events = profiler.events()
        assert events is not None
        iteration = next(e for e in events if e.name == ITERATION and e.device_type.name == "CPU")
        # The profiler also synchronizes after the iteration.
        begin, end = iteration.time_range.start, iteration.time_range.end
        inside = [e.name for e in events if begin <= e.time_range.start <= end]
        copying = [e for e in events if e.name.startswith("Memcpy HtoD")]
        return {
            "copy_calls": inside.count("cudaMemcpyAsync"),
            "stream_synchronize_calls": inside.count("cudaStreamSynchronize"),
            "device_synchronize_calls": inside.count("cudaDeviceSynchronize"),
            "device_copy_ms": sum(e.time_range.elapsed_us() for e in copying) / 1e3,
        }

    return Program(lambda: copy(tensors), recorded_step=lambda: copy(recorded_tensors), figures=calls)


# No copy has compute to hide under, and all copies come from pageable memory.
TRUTH = Truth(
    exposed_copy="pageable-memory",
    hidden_copy_pct=(0.0, 0.0),
    findings=("tiny-copies",),
    no_findings=("blocking-copy", "pin-in-loop"),
    least_share=0.95,
)

EXPERIMENT = Experiment(
    name="many_small_copies",
    title="A thousand small copies",
    shows="Waiting for each of many small copies costs host time; the device takes as long either way.",
    sizes={
        "small": {"tensors": 1000, "elements": 1000, "recorded_tensors": 100},
        "paper": {"tensors": 1000, "elements": 1000, "recorded_tensors": 100},
    },
    prepare=prepare,
    variants=(
        Variant(
            "blocking",
            {"non_blocking": False},
            shows="A thousand calls to copy and a thousand to wait.",
            truth=TRUTH,
            published={"wall_ms": 25.1, "stream_synchronize_calls": 1000},
        ),
        Variant(
            "non_blocking",
            {"non_blocking": True},
            shows="A thousand calls to copy and one to wait.",
            truth=TRUTH,
            published={"wall_ms": 19.2, "device_synchronize_calls": 1},
        ),
    ),
    published_on="PyTorch tutorial, GPU not stated",
    faster=(("non_blocking", "blocking"),),
    warmup_steps=1,
    recorded_steps=2,
    recorded="an iteration sends 100 of the 1000 tensors",
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
