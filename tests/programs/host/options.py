"""Options of all scripts, their model, and the clock around the planted part."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from tests.programs.options import ScriptOptions

NOT_POSSIBLE = 77
"""Exit code of a script that can't plant its cause on this machine."""


@dataclass(frozen=True, slots=True)
class HostScriptOptions(ScriptOptions):
    """Command line of a script with a planted cause."""

    seconds: float
    """Minimum duration of all steps."""
    fixed: bool
    """True without the cause."""


def options() -> HostScriptOptions:
    """Read the command line, and make random numbers repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="minimum number of steps")
    parser.add_argument("--seconds", type=float, default=0.0, help="minimum duration of all steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--fixed", action="store_true", help="leave the cause out")
    options = parser.parse_args()
    torch.manual_seed(0)
    return HostScriptOptions(options.steps, options.device, options.seconds, options.fixed)


def not_possible(why: str) -> None:
    """End a script that can't plant its cause on this machine."""
    print(f"left out: {why}")
    sys.exit(NOT_POSSIBLE)


class PlantedTimer:
    """A clock around the planted part of a step: `with planted: ...`.

    `apart_from` is a clock of CPU time; then only waiting counts.
    """

    def __init__(self, options: HostScriptOptions, apart_from: Callable[[], int] | None = None) -> None:
        self._options, self._apart_from = options, apart_from
        self._began_ns = self._total_ns = 0

    def __enter__(self) -> None:
        self._began_ns = self._now_ns()

    def __exit__(self, *error: object) -> None:
        self._total_ns += self._now_ns() - self._began_ns

    def steps(self) -> Iterator[int]:
        """Number the steps until there are enough, then print the planted time of each."""
        planted_ns: list[int] = []
        end = time.monotonic() + self._options.seconds
        while len(planted_ns) < self._options.steps or time.monotonic() < end:
            self._total_ns = 0
            yield len(planted_ns)
            planted_ns.append(self._total_ns)
        print(json.dumps({"planted_ns": planted_ns}))

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
