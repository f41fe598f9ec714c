"""Cost of sampling the host, and of the marks of the garbage collector, for the steps of host-bound programs.

    python -m benchmarks.host_sampling OUT.json [--minutes 5]
    python -m benchmarks.host_sampling OUT.json --page docs/evaluation/host-sampling.md

The first measures on this machine, on a GPU if it has any. Machines drift within a second by more than sampling costs.
So slices of a tenth of a second with and without sampling alternate, and each is compared with its neighbour. The
second writes the page and a CSV file beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from overlapscope.recorder.marks import gc_marks
from overlapscope.recorder.sampling.facts import FactTaker
from overlapscope.recorder.sampling.host_sampler import OutsideSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLICE_S = 0.1
"""Minimum length of a slice."""
SLICES_AT_ONCE = 20
"""Number of slices for which one sampler, or one recording, is used."""
GOAL_PCT = 1.0
"""Maximum change of a step by py-spy."""
PAGE = Path(__file__).with_name("host_sampling_page.md")


def small_linears() -> Callable[[], object]:
    """Return a training step of 60 small layers, with AdamW."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(60)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(16, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def python_work() -> Callable[[], object]:
    """Return a step that tokenizes in Python, which makes many small objects, and then runs a small layer."""
    model = torch.nn.Linear(64, 64).to(DEVICE)
    text = " ".join(f"word{number % 997}" for number in range(8000))

    def step() -> object:
        tokens = [(word, len(word)) for word in text.split()]
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(word, len(numbers)) for word, _ in tokens]
        inputs = torch.tensor(ids[:1024], dtype=torch.float32).view(16, 64).to(DEVICE)
        return model(inputs).sum()

    return step


class _Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Small images, augmented in the main process."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.full((3, 32, 32), float(index % 255))
        if index % 2:
            image = image.flip(2)
        return (image - 127) / 64, index % 10


def loader_in_process() -> Callable[[], object]:
    """Return a training step on a batch of a DataLoader without workers."""
    batches = iter(torch.utils.data.DataLoader(_Images(), batch_size=32))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 64), torch.nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        images, classes = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.to(DEVICE)), classes.to(DEVICE)).backward()
        optimizer.step()

    return step


PROGRAMS = {"small linears": small_linears, "Python": python_work, "DataLoader in the process": loader_in_process}


# -- Sampling and marks -----------------------------------------------------------------------------------


class ByPySpy:
    """Samples by py-spy. Without it, its processes are stopped, and catch up later."""

    def __init__(self) -> None:
        thread = threading.get_native_id()
        self._sampler, self._facts = OutsideSampler(thread), FactTaker(thread)
        while not self._sampler.ready:
            if self._sampler.ended:
                raise SystemExit("The process that samples did not start.")
            time.sleep(0.01)
        if not self._sampler.has_stacks:
            raise SystemExit("py-spy is missing, or may not read this process.")
        self._facts.start()
        self._sampler.begin()

    def switch(self, *, on: bool) -> None:
        """Continue, or pause."""
        os.killpg(self._sampler._child.pid, signal.SIGCONT if on else signal.SIGSTOP)

    def close(self) -> None:
        """End."""
        self.switch(on=True)
        self._facts.stop(1, 1)
        self._sampler.stop()


class RecordedGcMarks:
    """Marks of the garbage collector's runs in a recording."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
        self._profile = profile(activities=activities)
        self._profile.__enter__()
        self._marks = gc_marks()

    def switch(self, *, on: bool) -> None:
        """Mark, or not."""
        self._marks.stop()
        if on:
            self._marks.start()

    def close(self) -> None:
        """End."""
        self._marks.stop()
        self._profile.__exit__(None, None, None)


WAYS: dict[str, Callable[[], ByPySpy | RecordedGcMarks]] = {
    "py-spy": ByPySpy,
    "marks in a recording": RecordedGcMarks,
}


Slice = tuple[float, float]
"""Milliseconds of a step: by the clock, and CPU time of the thread, which excludes waits for a CPU."""


def _slice(step: Callable[[], object], steps: int) -> Slice:
    _wait()
    began, used = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        step()
    _wait()
    return (time.perf_counter() - began) / steps * 1e3, (time.thread_time() - used) / steps * 1e3


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _measure_way(step: Callable[[], object], way: str, minutes: float) -> list[tuple[Slice, Slice]]:
    """Return neighbouring slices, without and with sampling or marks."""
    for _ in range(10):
        step()
    steps = max(1, math.ceil(SLICE_S * 1e3 / _slice(step, 10)[0]))
    pairs: list[tuple[Slice, Slice]] = []
    shuffled = random.Random(1)
    until = time.perf_counter() + minutes * 60
    while time.perf_counter() < until:
        measured = WAYS[way]()
        step()
        for _ in range(SLICES_AT_ONCE // 2):
            pair = {}
            for on in shuffled.sample([False, True], 2):
                measured.switch(on=on)
                pair[on] = _slice(step, steps)
            pairs.append((pair[False], pair[True]))
        measured.close()
    return pairs


def measure(minutes: float) -> dict[str, Any]:
    """Return the slices of all programs, by the name in `WAYS`."""
    programs: dict[str, dict[str, list[tuple[Slice, Slice]]]] = {}
    for name, make in PROGRAMS.items():
        step, each = make(), minutes / len(PROGRAMS) / len(WAYS)
        programs[name] = {way: _measure_way(step, way, each) for way in WAYS}
        print(name, {way: _changes(pairs, way)[0] for way, pairs in programs[name].items()}, flush=True)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"no GPU ({platform.machine()})"
    cpus = len(os.sched_getaffinity(0))
    return {"where": where, "cpus": cpus, "torch": torch.__version__, "programs": programs}


# -- Page ------------------------------------------------------------------------------------------


class MedianChange(NamedTuple):
    """Median change of a slice in percent, with its 95 % interval by order statistics."""

    median: float
    low: float
    high: float


def _changes(pairs: Sequence[Sequence[Sequence[float]]], way: str) -> tuple[MedianChange, MedianChange]:
    """Return the change by the clock, and that of CPU time."""
    # In a slice with py-spy, the samples of the slice without are caught up.
    share = 0.5 if way == "py-spy" else 1
    clock, cpu = (sorted((other[which] / plain[which] - 1) * 100 * share for plain, other in pairs) for which in (0, 1))
    reach, middle = round(0.98 * len(pairs) ** 0.5), len(pairs) // 2
    low, high = max(0, middle - reach), min(len(pairs) - 1, middle + reach)
    return (
        MedianChange(statistics.median(clock), clock[low], clock[high]),
        MedianChange(statistics.median(cpu), cpu[low], cpu[high]),
    )


def page(measured: dict[str, Any]) -> str:
    """Return the page on measurements."""
    rows = [f"| program | ms a step | {' | '.join(WAYS)} |", f"|---|{'---:|' * (len(WAYS) + 1)}"]
    for program, ways in measured["programs"].items():
        plain_ms = statistics.median(plain[0] for plain, _ in ways["py-spy"])
        cells = [
            f"{clock.median:+.1f}%, CPU {cpu.median:+.1f}%"
            for clock, cpu in (_changes(pairs, way) for way, pairs in ways.items())
        ]
        rows.append(f"| {program} | {plain_ms:.2f} | {' | '.join(cells)} |")
    where = f"{measured['where']}, {measured['cpus']} CPUs, torch {measured['torch']}"
    most_pct = max(_changes(ways["py-spy"], "py-spy")[0].median for ways in measured["programs"].values())
    goal = "reached" if most_pct <= GOAL_PCT else "**missed**"
    text = PAGE.read_text().replace("{where}", where).replace("{goal}", goal)
    return text.replace("{table}", "\n".join(rows))


def csv_rows(measured: dict[str, Any]) -> str:
    """Return the rows of the page with their intervals."""
    lines = ["program,measured,slices,clock_pct,clock_low_pct,clock_high_pct,cpu_pct,cpu_low_pct,cpu_high_pct"]
    for program, ways in measured["programs"].items():
        for way, pairs in ways.items():
            numbers = ",".join(f"{number:.2f}" for change in _changes(pairs, way) for number in change)
            lines.append(f"{program},{way},{len(pairs)},{numbers}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.page is not None:
        measured = json.loads(args.out.read_text())
        args.page.write_text(page(measured))
        args.page.with_suffix(".csv").write_text(csv_rows(measured))
    else:
        args.out.write_text(json.dumps(measure(args.minutes)))


if __name__ == "__main__":
    main()
