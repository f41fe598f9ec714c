"""Messages between the process that runs an experiment and the one that requests it.

Each side appends lines of JSON to a file of its own. These survive a process that dies at any moment, and every rank of
a job reads the same commands.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from overlapscope.plugins.laboratory.experiment import WrongResults
from overlapscope.plugins.laboratory.results import Machine, TimeSpread

COMMANDS, EVENTS = "commands.jsonl", "events.jsonl"
POLL_S = 0.02

Phase = Literal["preparing", "timing", "recording"]

T = TypeVar("T")


class DescribeMachine(msgspec.Struct, frozen=True, tag=True):
    """Request that is answered by `MachineDescribed`."""


class RunVariant(msgspec.Struct, frozen=True, tag=True):
    """Request that each rank answers with `Began` for each phase, `VariantMeasured` for results, and `Ended`."""

    path: str
    """Scenario file."""
    variant: str
    scale: str
    repeat: int
    trace: str
    """File to record into."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Request to exit."""


Command = DescribeMachine | RunVariant | Stop


class RankStarted(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has started."""

    rank: int
    pid: int


class MachineDescribed(msgspec.Struct, frozen=True, tag=True):
    """The machine, as the worker sees it."""

    machine: Machine


class Began(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has begun a phase."""

    rank: int
    phase: Phase


class VariantMeasured(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All results so far of a rank for the variant it runs."""

    rank: int
    wall_ms: TimeSpread | None = None
    host_ms: TimeSpread | None = None
    figures: dict[str, float | None] = {}
    wrong_results: WrongResults | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has finished the variant."""

    rank: int
    error: str | None = None
    """Error, if any."""


Event = RankStarted | MachineDescribed | Began | VariantMeasured | Ended


class Outbox:
    """Writer of messages to a file, each in one write, so that those of several processes don't mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def send(self, message: Command | Event) -> None:
        os.write(self._file, msgspec.json.encode(message) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Inbox(Generic[T]):
    """Reader of a file of messages, which need not exist yet."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[T]) -> None:
        self._path = path
        self._decoder = decoder
        self._read = 0

    def poll(self) -> list[T]:
        """Return the messages written since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1]
        self._read += len(lines)
        return [self._decoder.decode(line) for line in lines.splitlines()]
