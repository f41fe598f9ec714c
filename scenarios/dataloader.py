"""Feeding a model from a DataLoader: workers, pinned memory, non-blocking copies and a prefetcher.

Images are decoded, batched, copied to the GPU and trained on. The loader has four workers or none, pins its batches or
does not, and the copy is non-blocking or not; the PyTorch tutorial "A guide on good usage of non_blocking and
pin_memory()" recommends all three, without figures. A prefetcher goes further: it sends the next batch on a separate
stream into the other of two buffers, while the model works on the current batch.

Without workers the GPU waits for the loader (`data-loading`), whatever the copy does. With workers, the loader pins in
a separate thread, and the main thread stays free. Copies then take a fraction of the time that they take from pageable
memory, but still wait for the model on its stream; only the prefetcher's copies run beside it.

The time per image depends on the model's speed: one process needs longer for a batch than the model, four need less. So
the experiment shows the same on any GPU.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

CLASSES = 1000
DECODING = 1.5
"""Time that one process needs to decode a batch, as a multiple of the model's time."""
HANDED_OVER_IN = Path("/dev/shm")
"""Directory where workers put their batches."""

Batch = list[torch.Tensor]
Train = Callable[[torch.Tensor, torch.Tensor], None]


class DecodedImages(Dataset[tuple[torch.Tensor, int]]):
    """Endless images, the same ones again and again, each decoded on request."""

    def __init__(self, size: int, seconds: float) -> None:
        self.stored = np.random.default_rng(0).integers(0, 256, (32, 3, size, size), dtype=np.uint8)
        self.levels = ((np.arange(256) / 255 - 0.45) / 0.225).astype(np.float32)
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.perf_counter() + self.seconds
        while True:
            image = self.levels[self.stored[index % len(self.stored)]]
            if time.perf_counter() >= until:
                return torch.from_numpy(image), index % CLASSES


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.convolutions[0](images)))
        return torch.relu(images + self.norms[1](self.convolutions[1](inner)))


def training(width: int) -> Train:
    """Return a training step for a residual network of four stages, `width` channels in the first."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, stride=4, padding=3)]
    for wide in (width, 2 * width, 4 * width, 8 * width):
        layers += [Residual(wide), Residual(wide), nn.Conv2d(wide, 2 * wide, 3, stride=2, padding=1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16 * width, CLASSES)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def seconds_per_step(train: Train, images: torch.Tensor, labels: torch.Tensor) -> float:
    for _ in range(5):  # The first steps choose kernels and allocate memory.
        train(images, labels)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        train(images, labels)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 5


def check_room(needed: int) -> None:
    """Check the room for batches.

    A worker without room for its batch is killed without a message, as happens in containers.
    """
    if HANDED_OVER_IN.exists() and shutil.disk_usage(HANDED_OVER_IN).free < needed:
        raise RuntimeError(f"workers need {needed >> 20} MiB in {HANDED_OVER_IN}; with Docker, give --shm-size=1g")


def sent(batches: Iterator[Batch], non_blocking: bool) -> Generator[Batch, None, None]:
    """Yield each batch on the GPU, sent on request."""
    for batch in batches:
        yield [part.to("cuda", non_blocking=non_blocking) for part in batch]


def prefetched(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    """Yield each batch on the GPU, sent during the work on the previous batch.

    Two buffers alternate. Events mark that a buffer has been filled, and that the work on it is done.
    """
    compute, copies = torch.cuda.current_stream(), torch.cuda.Stream()
    first = next(batches)
    buffers = [[torch.empty_like(part, device="cuda") for part in first] for _ in range(2)]
    filled, free = [torch.cuda.Event() for _ in buffers], [torch.cuda.Event() for _ in buffers]

    def fill(slot: int, batch: Batch) -> None:
        with torch.cuda.stream(copies):
            copies.wait_event(free[slot])
            for target, source in zip(buffers[slot], batch, strict=True):
                target.copy_(source, non_blocking=True)
            filled[slot].record()

    fill(0, first)
    for turn in itertools.count():
        this, following = turn % 2, (turn + 1) % 2
        fill(following, next(batches))
        compute.wait_event(filled[this])
        yield buffers[this]
        free[this].record()  # The work on it has been launched by now.


def prepare(
    batch: int, image: int, width: int, pin_memory: bool, non_blocking: bool, workers: int, prefetch: bool
) -> Program:
    train = training(width)
    images = torch.randn(batch, 3, image, image, device="cuda")
    seconds = DECODING / batch * seconds_per_step(train, images, torch.zeros(batch, dtype=torch.long, device="cuda"))
    if workers:
        check_room((2 * workers + 1) * images.nbytes)
    loader = DataLoader(
        DecodedImages(image, seconds),
        batch_size=batch,
        num_workers=workers,
        pin_memory=pin_memory,
        # Workers never use the GPU, so they may be plain copies of this process.
        multiprocessing_context="fork" if workers else None,
    )
    feed = prefetched(iter(loader)) if prefetch else sent(iter(loader), non_blocking)
    # The workers end with the last reference to the loader's iterator, which the generator holds.
    return Program(lambda: train(*next(feed)), close=feed.close)


def variant(pinned: bool, non_blocking: bool, workers: int) -> Variant:
    loading = "Four workers keep up" if workers else "The main thread decodes while the GPU waits"
    copying = f"the {'loader' if workers else 'main'} thread pins, the copy is short" if pinned else "the copy is long"
    waiting = "the host goes on" if pinned and non_blocking else "the host waits for it"
    # Copies and the model share a stream, and the model takes far longer than a copy.
    return Variant(
        f"pinned{pinned:d}_nonblocking{non_blocking:d}_workers{workers}",
        {"pin_memory": pinned, "non_blocking": non_blocking, "workers": workers, "prefetch": False},
        shows=f"{loading}; {copying} and {waiting}.",
        truth=Truth(
            exposed_copy="same-stream" if pinned else "pageable-memory",
            idle=None if workers else "data-loading",
            hidden_copy_pct=(0.0, 1.0),
            findings=("data-loading",) if not workers else () if pinned else ("pageable-memory",),
            no_findings=(
                "pageable-memory" if pinned else "same-stream",
                *(["data-loading"] if workers else []),
                *(["blocking-copy"] if non_blocking or not pinned else []),
            ),
        ),
    )


EXPERIMENT = Experiment(
    name="dataloader",
    title="Feeding a model from a DataLoader",
    shows="Workers feed the GPU, pinned memory makes the copy short, and a prefetcher hides it.",
    sizes={
        "small": {"batch": 32, "image": 160, "width": 64},
        "paper": {"batch": 64, "image": 224, "width": 128},
    },
    prepare=prepare,
    variants=(
        *(variant(pinned, asked, workers) for workers in (0, 4) for pinned in (False, True) for asked in (False, True)),
        Variant(
            "prefetcher",
            {"pin_memory": True, "non_blocking": True, "workers": 4, "prefetch": True},
            shows="The next batch is sent on a stream of its own while the model works on this one.",
            truth=Truth(
                hidden_copy_pct=(80.0, 100.0),
                no_findings=("data-loading", "pageable-memory", "same-stream", "blocking-copy"),
            ),
        ),
    ),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
