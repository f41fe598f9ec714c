"""Options of all scripts, their model, and the clock around the planted part."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

import torch
from torch import nn

from tests.programs.options import ScriptOptions

NOT_POSSIBLE = 77
"""Exit code of a script that can't plant its cause on this machine."""
_SETTLES: Final = (3, 0.2)
"""Minimum steps and seconds after a switch that are not timed: loaders fill their queues, and torch starts threads."""
_TIMED: Final = (5, 0.5)
"""Minimum steps and seconds of a block."""
_FIXED_OF_FOUR: Final = (1, 2)
"""Blocks of each four without the cause, so that a drift of the machine falls on both alike."""


@dataclass(frozen=True, slots=True)
class HostScriptOptions(ScriptOptions):
    """Command line of a script with a planted cause."""

    seconds: float
    """Duration of further steps before the blocks."""
    blocks: int
    """Number of blocks of steps, in turn with and without the cause."""


def options() -> HostScriptOptions:
    """Read the command line, and make random numbers repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="number of steps with the cause")
    parser.add_argument("--seconds", type=float, default=0.0, help="duration of more such steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--blocks", type=int, default=0, help="blocks of steps with and without the cause, after these")
    options = parser.parse_args()
    torch.manual_seed(0)
    return HostScriptOptions(options.steps, options.device, options.seconds, options.blocks)


def not_possible(why: str) -> NoReturn:
    """End a script that can't plant its cause on this machine."""
    print(f"left out: {why}")
    sys.exit(NOT_POSSIBLE)


class PlantedTimer:
    """A clock around the planted part of a step: `with planted: ...`, and the switch that leaves the cause out.

    `apart_from` is a clock of CPU time; then only waiting counts. `switch` is called with the new value of `fixed`.
    """

    def __init__(
        self,
        options: HostScriptOptions,
        apart_from: Callable[[], int] | None = None,
        switch: Callable[[bool], None] | None = None,
    ) -> None:
        self._options, self._apart_from, self._switch = options, apart_from, switch
        self._began_ns = self._total_ns = self._number = 0
        self._blocks: list[dict[str, int | bool]] = []
        self.fixed = False
        """True in steps without the cause."""

    def __enter__(self) -> None:
        self._began_ns = self._now_ns()

    def __exit__(self, *error: object) -> None:
        self._total_ns += self._now_ns() - self._began_ns

    def steps(self) -> Iterator[int]:
        """Number the steps until there are enough, then those of the blocks, and print what these took."""
        yield from self._at_least(self._options.steps, 0)
        yield from self._at_least(0, self._options.seconds)
        for block in range(self._options.blocks):
            self.fixed = block % 4 in _FIXED_OF_FOUR
            if self._switch is not None:
                self._switch(self.fixed)
            yield from self._at_least(*_SETTLES)
            first, self._total_ns = self._number, 0
            began_ns = time.perf_counter_ns()
            yield from self._at_least(*_TIMED)
            span_ns, steps = time.perf_counter_ns() - began_ns, self._number - first
            self._blocks.append({"fixed": self.fixed, "steps": steps, "span_ns": span_ns, "planted_ns": self._total_ns})
        if self._blocks:
            gpu = torch.cuda.get_device_name() if self._options.cuda else None
            machine = {"gpu": gpu, "torch": torch.__version__, "python": platform.python_version()}
            print(json.dumps({"blocks": self._blocks, "machine": machine}))

    def _at_least(self, steps: int, seconds: float) -> Iterator[int]:
        """Number at least so many steps, for at least so long, until the device has done them."""
        last, end = self._number + steps, time.monotonic() + seconds
        while self._number < last or time.monotonic() < end:
            yield self._number
            self._number += 1
        if self._options.cuda:
            torch.cuda.synchronize()

    def _now_ns(self) -> int:
        return time.perf_counter_ns() - (self._apart_from() if self._apart_from else 0)


def network(options: HostScriptOptions, layers: int = 4) -> nn.Sequential:
    """Return a perceptron that takes a GPU some milliseconds for a step with 2,048 rows."""
    width = options.size(2048, 16)
    blocks = (layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU()))
    return nn.Sequential(*blocks, nn.Linear(width, 10)).to(options.device)


def rows(options: HostScriptOptions) -> torch.Tensor:
    """Return input of `network` on the device."""
    return torch.randn(options.size(2048, 8), options.size(2048, 16), device=options.device)
