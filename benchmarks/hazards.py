"""Measures what `--check-hazards` costs: loops with and without it, taking turns in one process.

    python benchmarks/hazards.py [--steps N] [--rounds N]

Prints a table in markdown: the median wall time of a step, the device's included, and the ratio. Without a GPU only the
training loop runs, on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from overlapscope.plugins.hazards.checker import HazardChecker

Step = Callable[[], object]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, LAYER_BYTES = 30, 16 << 20


def small_training() -> Step:
    """Many small kernels: the host is the bottleneck, so that every microsecond an operator shows."""
    return _training(width=256, batch=64)


def large_training() -> Step:
    """Large kernels: the device is the bottleneck, and hides some of the host's work."""
    return _training(width=4096, batch=4096)


def _training(width: int, batch: int) -> Step:
    layers = [part for _ in range(8) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    source = torch.randn(batch, width)
    if DEVICE == "cuda":
        source = source.pin_memory()

    def step() -> None:
        loss = model(source.to(DEVICE, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def offloading() -> Step:
    """Layers that come from pinned host memory and go back to it, on three streams."""
    load, store, compute = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    layers = [torch.ones(LAYER_BYTES // 4).pin_memory() for _ in range(LAYERS)]

    def step() -> None:
        load.wait_stream(store)
        for layer in layers:
            with torch.cuda.stream(load):
                x = layer.to("cuda", non_blocking=True)
            compute.wait_stream(load)
            for _ in range(20):
                x.mul_(1.0)
            x.record_stream(compute)
            store.wait_stream(compute)
            with torch.cuda.stream(store):
                layer.copy_(x, non_blocking=True)
            x.record_stream(store)

    return step


def measure(step: Step, steps: int, *, checked: bool) -> float:
    """Seconds a step, with the device caught up at both ends."""
    checker = HazardChecker()
    if checked:
        checker.start()
    try:
        _catch_up()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        _catch_up()
        return (time.perf_counter() - begin) / steps
    finally:
        checker.stop()
        if checker.hazards or checker.notes:
            raise SystemExit(f"this loop has no hazards, but there were reports: {checker.hazards} {checker.notes}")


def _catch_up() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps measured at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="times that each is measured (default: %(default)s)")
    args = parser.parse_args()
    loops = [small_training, *([large_training, offloading] if DEVICE == "cuda" else [])]
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, median of {args.rounds} x {args.steps} steps\n")
    print("| loop | ms a step without | with | ratio |\n|---|---|---|---|")
    for loop in loops:
        step = loop()
        measure(step, args.steps, checked=False)
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(args.rounds):
            for checked, measured in times.items():
                measured.append(measure(step, args.steps, checked=checked))
        without, with_ = (1000 * statistics.median(times[checked]) for checked in (False, True))
        print(f"| {loop.__name__.replace('_', ' ')} | {without:.2f} | {with_:.2f} | {with_ / without:.2f} |")


if __name__ == "__main__":
    main()
