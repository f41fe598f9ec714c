"""A program that changes are tried on, and how a run of it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from overlapscope.base.words import plural
from overlapscope.trials.protocol import RankOutcome, Task

_RAISED: Final = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


class EndedRun(Struct, frozen=True):
    """A run that is over."""

    outcomes: tuple[RankOutcome, ...]
    """By rank: of those that told something."""
    exit_code: int | None
    """As Python has it; None where it had to be stopped before it was done."""
    output: str
    """The end of what it printed."""
    wall_s: float

    @property
    def complete(self) -> bool:
        """Every rank has made its steps."""
        return all_complete(self.outcomes)

    @property
    def failed(self) -> bool:
        """Whether it ended with an error before its steps were made."""
        return not self.complete and self.exit_code != 0

    @property
    def how(self) -> str:
        """How it ended before its steps were made, in a sentence with its last line."""
        lines = [line.strip() for line in reversed(self.output.splitlines()) if line.strip()]
        # A launcher says much behind it.
        last = next((line for line in lines if _RAISED.match(line)), lines[0] if lines else "")
        words = f": {last}" if last else "."
        if self.exit_code is None:
            return f"It was stopped after {self.wall_s:.0f} s{words}"
        if self.exit_code < 0:
            return f"It was killed by signal {-self.exit_code}{words}"
        if self.exit_code:
            return f"It ended with exit code {self.exit_code}{words}"
        return f"It ended after {plural(max((one.all_steps for one in self.outcomes), default=0), 'step')}."


def all_complete(outcomes: Sequence[RankOutcome]) -> bool:
    """Whether every rank has made its steps."""
    return bool(outcomes) and len(outcomes) == outcomes[0].ranks and all(outcome.complete for outcome in outcomes)


class TrialProgram(Protocol):
    """Something that can be run again and again."""

    @property
    def text(self) -> str:
        """What a person calls it: its command line."""

    @property
    def root(self) -> Path:
        """The directory that its own files are in."""

    @property
    def records(self) -> bool:
        """It can be recorded."""

    def run(self, task: Task, limit_s: float) -> EndedRun:
        """One run, at most so long."""

    def alone(self, directory: str, limit_s: float) -> EndedRun:
        """Run it once without overlapscope, at most so long; its output is in `directory`."""

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> EndedRun:
        """One run under `overlapscope run` with these options."""
