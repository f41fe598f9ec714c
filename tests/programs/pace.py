"""Programs whose pace changes, or whose steps differ, each with a clock of its own: `python pace.py NAME CLOCK`.

It writes the length of each step in nanoseconds to the file CLOCK, and whether the step is long on purpose. `USUAL`
states from which step on a program runs at its usual pace.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

# On a busy machine, several threads wait for each other, for some hundred times as long as a step takes.
torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 2048 if DEVICE == "cuda" else 64
USUAL = {
    "steady": 0,
    "cold_start": 160,
    "compiled": 40,
    "compiled_late": 80,
    "tuned": 40,
    "decode": 0,
    "in_turn": 0,
    "long_tail": 0,
    "validation": 0,
    "workers": 40,
    "batches": 0,
    "accumulation": 0,
    "evaluation": 0,
    "checkpoints": 0,
    "stalls": 40,
    "cache": 0,
}
STEPS = {
    "decode": 1200,
    "in_turn": 4000,
    "long_tail": 6000,
    "validation": 8000,
    "workers": 1500,
    "accumulation": 4000,
    "evaluation": 8000,
    "stalls": 4000,
    "cache": 12_000,
}
"""Numbers of steps; 20,000 for other programs."""


def training(batch: int = 64, *, layers: int = 8) -> Callable[[], None]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, WIDTH, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def steady() -> Iterator[bool]:
    step = training()
    while True:
        step()
        yield False


def cold_start() -> Iterator[bool]:
    """The first 160 steps wait for something that is cached afterwards."""
    step = training()
    for _ in range(160):
        time.sleep(0.03)
        step()
        yield False
    while True:
        step()
        yield False


def compiled() -> Iterator[bool]:
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(DEVICE)
    model = torch.compile(layers)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    inputs = torch.randn(64, WIDTH, device=DEVICE)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        yield False


def compiled_late() -> Iterator[bool]:
    """Shapes change in the first 60 steps, and torch.compile compiles for each."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()).to(DEVICE)
    model = torch.compile(layers, dynamic=False)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    for number in range(10**9):
        inputs = torch.randn(16 + min(number // 15, 4), WIDTH, device=DEVICE)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        yield False


def tuned() -> Iterator[bool]:
    """cuDNN tries its algorithms at first."""
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(8, 32, 64, 64, device=DEVICE) if DEVICE == "cuda" else torch.randn(1, 32, 8, 8)
    while True:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
        yield False


def decode() -> Iterator[bool]:
    """Tokens of a model with a cache that grows."""
    block = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(12))).to(DEVICE)
    token = torch.randn(4, WIDTH, device=DEVICE)
    with torch.inference_mode():
        while True:
            cache = token[:, None]
            for _ in range(300):
                token = block(token).tanh()
                cache = torch.cat([cache, token[:, None]], 1)
                token = token + cache.mean(1)
                yield False


def in_turn() -> Iterator[bool]:
    """Two steps of one kind, and one of another that takes four times as long."""
    short, long = training(32), training(32, layers=32)
    while True:
        short()
        short()
        long()
        yield False


def long_tail() -> Iterator[bool]:
    """One step in ten waits for up to ten times as long."""
    step, luck = training(), random.Random(0)
    while True:
        waits = luck.random() < 0.1
        if waits:
            time.sleep(0.03 * luck.random())
        step()
        yield waits


def validation() -> Iterator[bool]:
    """Every 100 steps the program validates, which belongs to the step after it."""
    step = training()
    for number in range(10**9):
        validates = number % 100 == 50
        if validates:
            time.sleep(0.1)
        step()
        yield validates


def workers() -> Iterator[bool]:
    """Batches come from worker processes, which are slower than the model."""
    step = training(layers=2)
    data = torch.utils.data.DataLoader(SlowData(), batch_size=4, num_workers=2)
    for _ in data:
        step()
        yield False


def batches() -> Iterator[bool]:
    """Batches have 16 to 512 samples, at random."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(DEVICE)
    optimizer, luck = torch.optim.SGD(model.parameters(), lr=1e-3), random.Random(0)
    while True:
        optimizer.zero_grad()
        model(torch.randn(16 << luck.randrange(6), WIDTH, device=DEVICE)).square().mean().backward()
        optimizer.step()
        yield False


def accumulation() -> Iterator[bool]:
    """A step accumulates the gradients of eight batches."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, WIDTH, device=DEVICE)
    while True:
        for _ in range(8):
            (model(inputs).square().mean() / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield False


def evaluation() -> Iterator[bool]:
    """Every 100 steps, a larger set is evaluated in batches, which belongs to the step after it."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, WIDTH, device=DEVICE)
    for number in range(10**9):
        evaluates = number % 100 == 50
        if evaluates:
            with torch.inference_mode():
                for _ in range(200):
                    model(inputs)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        yield evaluates


def checkpoints() -> Iterator[bool]:
    """Every 200 steps, the weights are written."""
    step, weights = training(), torch.randn(4 << 20)
    for number in range(10**9):
        writes = number % 200 == 150
        if writes:
            with tempfile.TemporaryFile() as file:
                torch.save(weights, file)
        step()
        yield writes


def stalls() -> Iterator[bool]:
    """Batches come from workers, which stall in each hundredth."""
    step = training(layers=2)
    for number, _ in enumerate(torch.utils.data.DataLoader(StallingData(), batch_size=4, num_workers=2)):
        step()
        # The other worker's next batches are ready before the one that stalls.
        yield number % 100 in (99, 0)


def cache() -> Iterator[bool]:
    """A generator, each of whose tokens attends to all before it: 2,000 tokens for each prompt."""
    project = nn.Linear(WIDTH, 3 * WIDTH).to(DEVICE)
    with torch.inference_mode():
        while True:
            token = torch.randn(4, 1, WIDTH, device=DEVICE)
            keys = values = torch.empty(4, 0, WIDTH, device=DEVICE)
            for _ in range(2000):
                query, key, value = project(token).chunk(3, -1)
                keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
                token = nn.functional.scaled_dot_product_attention(query, keys, values)
                yield False


class StallingData(torch.utils.data.Dataset[float]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> float:
        time.sleep(0.2 if index % 400 == 399 else 0.0005)
        return float(index)


class SlowData(torch.utils.data.Dataset[float]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> float:
        time.sleep(0.005)
        return float(index)


def main() -> None:
    name, clock = sys.argv[1], Path(sys.argv[2])
    begun_ns, clocked = time.perf_counter_ns(), list[tuple[int, bool]]()
    steps: Iterator[bool] = globals()[name]()
    for _, on_purpose in zip(range(STEPS.get(name, 20_000)), steps, strict=False):
        ended_ns = time.perf_counter_ns()
        clocked.append((ended_ns - begun_ns, on_purpose))
        begun_ns = ended_ns
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    clock.write_text(json.dumps(clocked))


if __name__ == "__main__":
    main()
