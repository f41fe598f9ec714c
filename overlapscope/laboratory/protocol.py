"""What the process that runs an experiment and the one that wants it done say to each other.

Both sides append lines of JSON to a file of their own: that survives a process that dies at any moment, and every
rank of a job reads the same commands.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from overlapscope.laboratory.experiment import WrongResults
from overlapscope.laboratory.results import Machine, TimeSpread

COMMANDS, EVENTS = "commands.jsonl", "events.jsonl"
POLL_S = 0.02

Phase = Literal["preparing", "timing", "recording"]

T = TypeVar("T")


class DescribeMachine(msgspec.Struct, frozen=True, tag=True):
    """Answered by `MachineDescribed`."""


class RunVariant(msgspec.Struct, frozen=True, tag=True):
    """Answered, by each rank, by `Began` for each phase, `Measured` for what is known, and `Ended`."""

    path: str
    """The scenario file."""
    variant: str
    scale: str
    repeat: int
    trace: str
    """Where to record."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Leave."""


Command = DescribeMachine | RunVariant | Stop


class RankStarted(msgspec.Struct, frozen=True, tag=True):
    """A rank is there."""

    rank: int
    pid: int


class MachineDescribed(msgspec.Struct, frozen=True, tag=True):
    machine: Machine


class Began(msgspec.Struct, frozen=True, tag=True):
    rank: int
    phase: Phase


class VariantMeasured(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Everything that a rank knows so far of the variant it runs."""

    rank: int
    wall_ms: TimeSpread | None = None
    host_ms: TimeSpread | None = None
    figures: dict[str, float | None] = {}
    wrong_results: WrongResults | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The variant is done on this rank."""

    rank: int
    error: str | None = None
    """What went wrong, if anything did."""


Event = RankStarted | MachineDescribed | Began | VariantMeasured | Ended


class Outbox:
    """Appends messages to a file, each in one write, so that those of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def send(self, message: Command | Event) -> None:
        os.write(self._file, msgspec.json.encode(message) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Inbox(Generic[T]):
    """Reads the messages of a file, which need not exist yet."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[T]) -> None:
        self._path = path
        self._decoder = decoder
        self._read = 0

    def poll(self) -> list[T]:
        """The messages that have come since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [self._decoder.decode(line) for line in whole.splitlines()]
