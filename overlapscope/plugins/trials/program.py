"""Interface of a program that changes are tried on, and the end of its runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from overlapscope.base.words import plural
from overlapscope.plugins.trials.protocol import RankOutcome, Task

_RAISED: Final = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


class EndedRun(Struct, frozen=True):
    """A finished run."""

    outcomes: tuple[RankOutcome, ...]
    """Outcomes of the ranks that reported, by rank."""
    exit_code: int | None
    """Python's exit code; None if the run was stopped."""
    output: str
    """End of its output."""
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every rank has made its steps."""
        return all_complete(self.outcomes)

    @property
    def failed(self) -> bool:
        """True if it ended with an error before its steps were made."""
        return not self.complete and self.exit_code != 0

    @property
    def how(self) -> str:
        """Sentence on how it ended before its steps were made, with the last line of output."""
        lines = [line.strip() for line in reversed(self.output.splitlines()) if line.strip()]
        # A launcher prints much after it.
        last = next((line for line in lines if _RAISED.match(line)), lines[0] if lines else "")
        words = f": {last}" if last else "."
        if self.exit_code is None:
            return f"It was stopped after {self.wall_s:.0f} s{words}"
        if self.exit_code < 0:
            return f"It was killed by signal {-self.exit_code}{words}"
        if self.exit_code:
            return f"It ended with exit code {self.exit_code}{words}"
        return f"It ended after {plural(max((outcome.all_steps for outcome in self.outcomes), default=0), 'step')}."


def all_complete(outcomes: Sequence[RankOutcome]) -> bool:
    """Return whether every rank has made its steps."""
    return bool(outcomes) and len(outcomes) == outcomes[0].ranks and all(outcome.complete for outcome in outcomes)


class TrialProgram(Protocol):
    """A program that can be run repeatedly."""

    @property
    def text(self) -> str:
        """Its command line, or another name for it."""

    @property
    def root(self) -> Path:
        """The directory of its own files."""

    @property
    def records(self) -> bool:
        """True if it can be recorded."""

    def run(self, task: Task, limit_s: float) -> EndedRun:
        """Run it for a limited time."""

    def alone(self, directory: str, limit_s: float) -> EndedRun:
        """Run it without overlapscope for a limited time; its output is in `directory`."""

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> EndedRun:
        """Run it under `overlapscope run` with these options."""
