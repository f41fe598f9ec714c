"""Cost of recording while it runs: a program's steps with and without it, side by side in one run.

    python benchmarks/recording.py [--output docs/evaluation/performance-recording.md]

Two programs: one whose GPU is always busy, so that the host has time to spare, and one of many small kernels, where
every microsecond of the host's counts. Rounds of each way of recording follow one another, so that a drifting clock
hits all alike. Steps are timed inside the recording, after its warm-up; writing the file is timed separately.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field

import overlapscope

ROUNDS, WARM_UP, STEPS = 5, 3, 20
WAYS: dict[str, dict[str, Any] | None] = {
    "not recorded": None,
    "recorded": {},
    "with shapes": {"shapes": True},
    "with memory": {"memory": True},
    "with stacks": {"stacks": True},
    "with all three": {"stacks": True, "shapes": True, "memory": True},
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class RecordingCost(Struct):
    """Times of one program with one kind of recording."""

    step_ms: list[float] = field(default_factory=list)
    write_ms: list[float] = field(default_factory=list)
    packed_kb: float = 0.0


def busy_gpu() -> Callable[[], object]:
    """Training steps of a few large layers."""
    size = 4096 if DEVICE == "cuda" else 256
    return _training(size, layers=6, batch=size)


def small_kernels() -> Callable[[], object]:
    """Training steps of many small layers, which the host can hardly launch fast enough."""
    return _training(64, layers=60, batch=16)


def _training(size: int, *, layers: int, batch: int) -> Callable[[], object]:
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(layers)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(batch, size, device=DEVICE)

    def step() -> None:
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@contextmanager
def recording(path: Path, options: dict[str, Any] | None) -> Iterator[Callable[[], None]]:
    """Yield the function that marks steps; the file is written when it ends."""
    if options is None:
        yield lambda: None
    else:
        with overlapscope.record(path, warmup=WARM_UP, plain_steps=0, **options) as recorder:
            yield recorder.step


def measure(step: Callable[[], object], options: dict[str, Any] | None, result: RecordingCost, folder: Path) -> None:
    """Measure a round: the median step of a recording."""
    path = folder / "t.trace.json.gz"
    synchronize()
    times = []
    with recording(path, options) as mark:
        for number in range(WARM_UP + STEPS):
            begin = time.perf_counter()
            step()
            synchronize()
            if number >= WARM_UP:
                times.append(time.perf_counter() - begin)
            mark()
        end = time.perf_counter()
    result.write_ms.append(1e3 * (time.perf_counter() - end))
    result.step_ms.append(1e3 * statistics.median(times))
    result.packed_kb = path.stat().st_size / 1e3 if path.exists() else 0.0


def table(name: str, step: Callable[[], object]) -> list[str]:
    """All ways to record one program, as rows of markdown."""
    results = {way: RecordingCost() for way in WAYS}
    for _ in range(3):
        step()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for way, options in WAYS.items():
                measure(step, options, results[way], Path(folder))
    plain = statistics.median(results["not recorded"].step_ms)
    lines = [
        f"## {name}",
        "",
        "| | a step | against not recorded | ending and writing it | file, a step |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, result in results.items():
        median = statistics.median(result.step_ms)
        kept = f"{statistics.median(result.write_ms):.0f} ms | {result.packed_kb / (STEPS + WARM_UP):.1f} KB"
        lines.append(f"| {way} | {median:.3f} ms | x {median / plain:.2f} | {kept if result.packed_kb else '| '} |")
    return [*lines, ""]


def machine() -> str:
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU"
    return f"{gpu}, torch {torch.__version__}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    output = parser.parse_args().output
    lines = [
        "# Performance while recording",
        "",
        f"Written by `python benchmarks/recording.py`: {machine()}; median of {ROUNDS} rounds of {STEPS} steps, each",
        "step waited for.",
        "",
        *table("A busy GPU: six layers of 4096, where the host has time to spare", busy_gpu()),
        *table("Small kernels: sixty layers of 64, where the host's time is the step's", small_kernels()),
    ]
    output.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
