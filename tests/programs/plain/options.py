"""Options of all scripts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from tests.programs.options import ScriptOptions


@dataclass(frozen=True, slots=True)
class PlainScriptOptions(ScriptOptions):
    """Command line of a script that can be edited."""

    edits: frozenset[str]


def options(*edits: str) -> PlainScriptOptions:
    """Read the command line, and have random numbers repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--edit", action="append", default=[], choices=edits)
    options = parser.parse_args()
    torch.manual_seed(0)
    return PlainScriptOptions(options.steps, options.device, frozenset(options.edit))
