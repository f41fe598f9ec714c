"""Options of all scripts, and their clock."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field

import torch

from tests.programs.options import ScriptOptions


@dataclass(frozen=True, slots=True)
class TrialScriptOptions(ScriptOptions):
    """Command line of a script that can be timed, and edited by hand."""

    timed: tuple[int, int] | None
    """Numbers of steps to leave out, and to time."""
    edited: dict[str, str] = field(default_factory=dict)
    """The edits, with their values: `workers` 4, `pin` nothing."""


def options(*, steps: int, edits: tuple[str, ...] = ()) -> TrialScriptOptions:
    """Read the command line, and have random numbers repeat. `edits` are those that the script knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--time", type=int, nargs=2, metavar=("LEFT_OUT", "TIMED"))
    if edits:
        parser.add_argument("--edited", type=_edits, default={}, metavar="EDIT[=VALUE],...", help=", ".join(edits))
    options = parser.parse_args()
    edited = getattr(options, "edited", {})
    if unknown := edited.keys() - {*edits}:
        parser.error(f"not written by hand: {', '.join(sorted(unknown))}")
    torch.manual_seed(0)
    return TrialScriptOptions(
        options.steps, options.device, options.time and (options.time[0], options.time[1]), edited
    )


def _edits(text: str) -> dict[str, str]:
    parts = (item.partition("=") for item in text.split(",") if item)
    return {name: value for name, _, value in parts}


class Clock:
    """Times steps from the first that counts to the last, with the device caught up at both ends, and ends the script.

    Without `--time` it does nothing.
    """

    def __init__(self, options: TrialScriptOptions) -> None:
        self._timed, self._cuda = options.timed, options.cuda
        self._steps = 0
        self._begin = 0.0

    def step(self) -> None:
        """Note the end of a step. After the last one, print how many nanoseconds each took, and exit."""
        if self._timed is None:
            return
        left_out, timed = self._timed
        self._steps += 1
        if self._steps == left_out:
            self._begin = self._now()
        elif self._steps == left_out + timed:
            print(f"step_ns {round(1e9 * (self._now() - self._begin) / timed)}", flush=True)
            sys.exit()

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
