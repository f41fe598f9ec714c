"""Cost of recording the ops of all threads, compared with the ops of one thread: steps and stops, side by side in one
run.

    python benchmarks/all_threads.py
    python benchmarks/all_threads.py --stops 1000

The second starts and stops so many recordings while threads are busy, which crashes the process where a stop is not
safe, and says how long the longest took.

A training on one thread, whose ops are the same either way, and a server with a pool of threads, of whose ops only a
recording of all threads has any. Rounds of each way follow one another, so that a drifting clock hits all alike.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import overlapscope
from overlapscope.recorder import all_threads
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.session import Session
from overlapscope.trace.model import TimedSteps

ROUNDS, WARM_UP, STEPS, THREADS, REQUESTS = 7, 3, 30, 4, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WAYS = {"not recorded": None, "one thread": False, "all threads": True}


def training() -> Callable[[], object]:
    """Return a training step of many small layers, which the host can hardly launch fast enough."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(60)]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def server() -> Callable[[], object]:
    """Return a function that makes requests, which a pool of threads answers."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).to(DEVICE)
    pool = ThreadPoolExecutor(THREADS)

    def answer(request: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(request.to(DEVICE)).sum().item()

    requests = [torch.randn(16, 64) for _ in range(REQUESTS)]
    return lambda: list(pool.map(answer, requests))


def measure(step: Callable[[], object], way: bool | None, directory: Path) -> tuple[float, float]:
    """Milliseconds of a step, and of the stop with the writing."""
    recording = None
    if way is not None:
        all_threads.is_supported = lambda: way
        recording = overlapscope.record(directory / "x.json", plain_steps=0)
        recording.begin()
    times = []
    for number in range(WARM_UP + STEPS):
        began = time.perf_counter()
        step()
        _wait()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    began = time.perf_counter()
    if recording is not None:
        recording.end()
    return statistics.median(times) * 1e3, (time.perf_counter() - began) * 1e3


def stops(count: int) -> None:
    """Stop so many recordings of threads that never rest, with copies from pinned memory where there is a GPU."""
    stopped = threading.Event()

    def work() -> None:
        numbers = torch.randn(64, 64)
        while not stopped.is_set():
            (numbers.pin_memory() if DEVICE == "cuda" else numbers).to(DEVICE, non_blocking=True).square().sum()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    longest_s = 0.0
    for _ in range(count):
        session = Session(StepWindow(0, 0, None), Options(), on_too_much=lambda: None)
        time.sleep(0.02)
        began = time.perf_counter()
        all_threads.settle()
        longest_s = max(longest_s, time.perf_counter() - began)
        session.stop(0, TimedSteps(), None)
    stopped.set()
    for thread in threads:
        thread.join()
    print(f"{count} stops; the longest wait before one took {longest_s * 1e3:.0f} ms")


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", metavar="N", type=int, help="stop N recordings of busy threads instead")
    count = parser.parse_args().stops
    if count is not None:
        stops(count)
        return
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU ({platform.machine()})"
    print(f"{where}, torch {torch.__version__}: milliseconds, medians of {ROUNDS} rounds of {STEPS} steps\n")
    print("| program | recorded | a step | | to stop and write |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as directory:
        for program in (training, server):
            step = program()
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(ROUNDS):
                for name, way in WAYS.items():
                    times[name].append(measure(step, way, Path(directory)))
            plain = statistics.median(ms for ms, _ in times["not recorded"])
            for name, each in times.items():
                ms, stop = (statistics.median(column) for column in zip(*each, strict=True))
                print(f"| {program.__name__} | {name} | {ms:.2f} | x {ms / plain:.2f} | {stop:.0f} |")


if __name__ == "__main__":
    main()
