"""Options of all scripts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    steps: int
    device: str
    edits: frozenset[str]

    @property
    def cuda(self) -> bool:
        """Memory can be pinned, streams and graphs can be used."""
        return self.device == "cuda"

    def size(self, on_gpu: int, on_cpu: int) -> int:
        """A size; small where the script only has to run."""
        return on_gpu if self.cuda else on_cpu


def options(*edits: str) -> Options:
    """Read the command line, and have random numbers repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--edit", action="append", default=[], choices=edits)
    options = parser.parse_args()
    torch.manual_seed(0)
    return Options(options.steps, options.device, frozenset(options.edit))
