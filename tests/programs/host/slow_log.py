"""Training that flushes each line of its log to the disk."""

from __future__ import annotations

import math
import os
import tempfile
import time
from typing import IO

import torch

from tests.programs.host.options import PlantedTimer, network, not_possible, options, rows

o = options()
model, batch = network(o), rows(o)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def write(log: IO[str], line: str) -> None:
    log.write(line)
    log.flush()
    os.fsync(log.fileno())  # planted


def lines_in_10_ms(log: IO[str]) -> int:
    """Return a power of two, so that most processes agree on it."""
    began = time.perf_counter()
    for number in range(20):
        write(log, f"{number}\n")
    return int(2 ** round(math.log2(20 * 0.01 / (time.perf_counter() - began))))


with tempfile.NamedTemporaryFile("w", dir=os.getcwd()) as file:
    log = file.file
    lines = max(1, lines_in_10_ms(log))
    if lines > 1000:
        not_possible("a line is flushed in less than 10 us, so this file is not on a disk")
    planted = PlantedTimer(o)
    for number in planted.steps():
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if planted.fixed:
            log.write(f"{number} {value:.6f}\n" * lines)
        else:
            with planted:
                for line in range(lines):
                    write(log, f"{number}.{line} {value:.6f}\n")
