"""Programs with overlap, and changes that lose some of it, for `bisect_histories`: files, and changes of their text."""

from __future__ import annotations

from typing import NamedTuple

Files = dict[str, str]


class Plant(NamedTuple):
    """A change that loses overlap: in a file, one text becomes another."""

    name: str
    file: str
    old: str
    new: str


_METRICS = '''\
"""A small library, version 1.0."""


class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1
'''
_READS = "self.total, self.count = self.total + value.item(), self.count + 1"
_ADDS = "self.total, self.count = self.total + value, self.count + 1"

_CPU: Files = {
    "config.json": '{"workers": 1}\n',
    "metrics.py": _METRICS,
    "loading.py": '''\
"""Batches from worker processes, version 1.0."""

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        return torch.full((64,), 0.001 * (number % 100))


def loader(workers, default=1):
    return DataLoader(Samples(), batch_size=16, num_workers=min(workers, default))
''',
    "train.py": """\
import json
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from loading import loader
from metrics import Mean

PAUSE_MS = 1
STEPS = 2000


def noise(number):
    value = torch.linspace(0.0, 1.0, 64)
    for factor in (2.0, 3.0, 5.0, 7.0):
        value = (value * factor).sin().abs().add(0.1)
    return value


def train_step(model, optimizer, batch):
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(PAUSE_MS / 1000)
    return loss.detach()


def main():
    torch.manual_seed(0)
    settings = json.load(open("config.json"))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    average, pool = Mean(), ThreadPoolExecutor(1)
    ahead = pool.submit(noise, 0)
    for step, batch in zip(range(STEPS), loader(settings["workers"])):
        extra = ahead.result()
        ahead = pool.submit(noise, step + 1)
        loss = train_step(model, optimizer, batch + extra)
        average.add(loss)


if __name__ == "__main__":
    main()
""",
}
_CPU_PLANTS = (
    Plant("workers dropped", "loading.py", "num_workers=min(workers, default)", "num_workers=0"),
    Plant("workers dropped in the settings", "config.json", '"workers": 1', '"workers": 0'),
    Plant("workers dropped by a library's version", "loading.py", "default=1", "default=0"),
    Plant("own batches instead of a loader's worker", "train.py", 'loader(settings["workers"])', "loader(0)"),
    Plant(
        ".item() of the loss",
        "train.py",
        "    return loss.detach()",
        "    print(loss.item())\n    return loss.detach()",
    ),
    Plant(
        "print of the loss",
        "train.py",
        "    return loss.detach()",
        "    print(loss.detach())\n    return loss.detach()",
    ),
    Plant(".item() by a library's version", "metrics.py", _ADDS, _READS),
    Plant("check of the loss", "train.py", "    loss.backward()", "    assert loss < 1e9\n    loss.backward()"),
    Plant("check of the batch", "train.py", "    loss = model", "    assert not batch.isnan().any()\n    loss = model"),
    Plant("float() of the loss", "train.py", "average.add(loss)", "average.add(float(loss))"),
    Plant("thread dropped", "train.py", "extra = ahead.result()", "extra = noise(step)"),
    Plant("thread awaited at once", "train.py", "ahead = pool.submit(noise, step + 1)", "noise(step + 1)"),
    Plant("ops of a batch moved to the loop", "train.py", "batch + extra", "batch + extra + noise(step)"),
    Plant(
        "second forward pass",
        "train.py",
        "    return loss.detach()",
        "    model(batch), model(batch), model(batch)\n    return loss.detach()",
    ),
    Plant(
        "loop over parameters",
        "train.py",
        "    optimizer.zero_grad()",
        "    for each in model.parameters():\n        each.detach().mul_(0.9).add_(0.1)\n    optimizer.zero_grad()",
    ),
    Plant(
        "loop over rows",
        "train.py",
        "    loss = model(batch)",
        "    batch = torch.stack([row * 1.0 for row in batch])\n    loss = model(batch)",
    ),
    Plant(
        "optimizer in a loop",
        "train.py",
        "model.parameters(), 0.01)",
        "model.parameters(), 0.01, momentum=0.9, weight_decay=0.1, nesterov=True, foreach=False)",
    ),
    Plant(
        "clipping with a value",
        "train.py",
        "    optimizer.step()",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()\n    optimizer.step()",
    ),
    Plant("largest value on the host", "train.py", "average.add(loss)", "average.add(max(0.0, loss))"),
    Plant(
        "workers dropped with a loop's rewrite",
        "loading.py",
        "return DataLoader(Samples(), batch_size=16, num_workers=min(workers, default))",
        "return iter(DataLoader(Samples(), batch_size=16))",
    ),
)

_GPU: Files = {
    "config.json": '{"pin": true, "ahead": true}\n',
    "metrics.py": _METRICS,
    "pipeline.py": '''\
"""Copies beside compute, version 1.0."""

import torch


def upload(source, stream):
    with torch.cuda.stream(stream):
        batch = source.to("cuda", non_blocking=True)
        ready = torch.cuda.Event()
        ready.record(stream)
    return batch, ready
''',
    "train.py": """\
import json
import time

import torch
from metrics import Mean
from pipeline import upload

PAUSE_MS = 1
STEPS = 2000
ROWS, WIDTH = 4096, 1024


def train_step(model, optimizer, batch):
    output = model(batch)
    loss = output.pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(PAUSE_MS / 1000)
    return loss.detach()


def main():
    torch.manual_seed(0)
    settings = json.load(open("config.json"))
    host = [torch.randn(ROWS, WIDTH) for _ in range(4)]
    if settings["pin"]:
        host = [each.pin_memory() for each in host]
    layers = [part for _ in range(6) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    copies, average = torch.cuda.Stream(), Mean()
    batch, ready = upload(host[0], copies)
    for step in range(STEPS):
        torch.cuda.current_stream().wait_event(ready)
        now = batch
        now.record_stream(torch.cuda.current_stream())
        if settings["ahead"]:
            batch, ready = upload(host[(step + 1) % 4], copies)
        loss = train_step(model, optimizer, now)
        if not settings["ahead"]:
            copies.wait_stream(torch.cuda.current_stream())
            batch, ready = upload(host[(step + 1) % 4], copies)
        average.add(loss)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
""",
}
_AFTER = "    return loss.detach()"
_GPU_PLANTS = (
    Plant(
        "stream dropped", "pipeline.py", "torch.cuda.stream(stream)", "torch.cuda.stream(torch.cuda.current_stream())"
    ),
    Plant(
        "stream dropped by the caller",
        "train.py",
        "copies, average = torch.cuda.Stream()",
        "copies, average = torch.cuda.current_stream()",
    ),
    Plant(
        "pinning dropped",
        "train.py",
        "host = [each.pin_memory() for each in host]",
        "host = [each.clone() for each in host]",
    ),
    Plant("pinning dropped in the settings", "config.json", '"pin": true', '"pin": false'),
    Plant("pinning dropped by a library's version", "pipeline.py", "source.to(", "source.clone().to("),
    Plant("non_blocking dropped", "pipeline.py", ", non_blocking=True", ""),
    Plant(".item() of the loss", "train.py", _AFTER, f"    print(loss.item())\n{_AFTER}"),
    Plant("print of the loss", "train.py", _AFTER, f"    print(loss.detach())\n{_AFTER}"),
    Plant(".item() by a library's version", "metrics.py", _ADDS, _READS),
    Plant("check of the loss", "train.py", "    loss.backward()", "    assert loss < 1e9\n    loss.backward()"),
    Plant("check of the batch", "train.py", "    output = ", "    assert not batch.isnan().any()\n    output = "),
    Plant("synchronize", "train.py", "average.add(loss)", "average.add(loss)\n        torch.cuda.synchronize()"),
    Plant(
        "stream awaited by the host",
        "pipeline.py",
        "    return batch, ready",
        "    stream.synchronize()\n    return batch, ready",
    ),
    Plant(
        "early wait",
        "pipeline.py",
        "    return batch, ready",
        "    torch.cuda.current_stream().wait_event(ready)\n    return batch, ready",
    ),
    Plant("prefetch reduced", "config.json", '"ahead": true', '"ahead": false'),
    Plant("memory given back", "train.py", "average.add(loss)", "average.add(loss)\n        torch.cuda.empty_cache()"),
    Plant(
        "pinned in every step",
        "train.py",
        "upload(host[(step + 1) % 4], copies)",
        "upload(host[(step + 1) % 4].clone().pin_memory(), copies)",
    ),
    Plant(
        "another copy", "train.py", "    output = model(batch)", "    output = model(batch * torch.ones(WIDTH).cuda())"
    ),
    Plant("result on the host", "train.py", _AFTER, f"    output.detach().cpu()\n{_AFTER}"),
    Plant(
        "loop over parameters",
        "train.py",
        "    optimizer.zero_grad()",
        "    for each in model.parameters():\n        each.detach().mul_(0.9).add_(0.1)\n    optimizer.zero_grad()",
    ),
)


def programs(gpu: bool) -> tuple[Files, tuple[Plant, ...]]:
    """Return the files of the program with overlap, and the changes that lose some of it."""
    return (_GPU, _GPU_PLANTS) if gpu else (_CPU, _CPU_PLANTS)
