"""A prefetching loop whose host runs many steps ahead, recorded by torch.profiler alone and by overlapscope.

    python -m benchmarks.clean_recording OUTPUT_DIR      # on a GPU: records
    python -m benchmarks.clean_recording --show DIR      # anywhere: prints the figures as a table

Every copy of the loop runs under compute (`tests.programs.known_causes.healthy_prefetch`), so any that looks exposed is
the recording's fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

from overlapscope.analysis import analyze_trace
from overlapscope.reading import load

STEPS_AHEAD, STEPS = 40, 6
NAMES = {"torch_profiler": "torch.profiler alone", "overlapscope": "overlapscope.record"}


def record(target: Path) -> None:
    """Record the loop both ways. Each time the host is dozens of steps ahead when the recording begins."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    import overlapscope
    from tests.programs.known_causes import healthy_prefetch

    target.mkdir(parents=True, exist_ok=True)
    step = healthy_prefetch()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=STEPS_AHEAD, active=STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(target / "torch_profiler.trace.json.gz")),
    ) as profiler:
        for _ in range(STEPS_AHEAD + STEPS):
            step()
            profiler.step()
    path = target / "overlapscope.trace.json.gz"
    with overlapscope.record(path, wait=STEPS_AHEAD, warmup=2, active=STEPS, plain_steps=0) as recorder:
        for _ in range(STEPS_AHEAD + 2 + STEPS):
            step()
            recorder.step()
    torch.cuda.synchronize()


def table(directory: Path) -> str:
    """Return the analysis of each recording as markdown."""
    lines = [
        "| recorded by | lead-in | not judged | copies, of them exposed | steps judged | hidden in each, % | lowest |",
        "|---|---|---:|---:|---:|---|---:|",
    ]
    for name, words in NAMES.items():
        analysis = analyze_trace(load(directory / f"{name}.trace.json.gz", progress=False))
        (device,) = analysis.result.devices
        check = next(check for check in analysis.result.trust.checks if check.id == "lead-in")
        exposed = device.buckets.exposed_copy_ns / 1e6
        hidden = [step.overlap.hidden_copy_pct for step in device.steps if step.overlap.hidden_copy_pct is not None]
        each = ", ".join(f"{value:.1f}" for value in hidden)
        lines.append(
            f"| {words} | {check.status} | {(device.lead_in_ns or 0) / 1e6:.2f} ms | "
            f"{device.overlap.copy_ns / 1e6:.2f} ms, {exposed:.2f} ms | {len(device.steps)} | {each} | "
            f"{min(hidden):.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] != "--show":
        record(Path(sys.argv[1]))
    print(table(Path(sys.argv[-1])))
