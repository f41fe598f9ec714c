"""Programs to time and record, and their measurements."""

from __future__ import annotations

from pathlib import Path

import msgspec

SCRIPTS = Path(__file__).parents[1] / "tests" / "programs" / "plain"
BEFORE = "before"
"""The variant without edits."""
WAYS = {"": (), "stacks": ("--stacks",), "light": ("--light",)}
"""Ways to record, by the part of the file's name that says so, with the recorder's options."""
RESULTS = "results.json"


class EditEquivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Edits of a program, and what stands for them."""

    edits: tuple[str, ...]
    interventions: tuple[str, ...]


class PlainScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script, as the list has it."""

    bound: str
    """Component that decides the step."""
    pairs: tuple[EditEquivalent, ...] = ()
    also: tuple[tuple[str, ...], ...] = ()
    """Edits that are recorded, too."""
    lines_too: bool = False
    """It is recorded in all ways."""


class MachineVersions(msgspec.Struct, frozen=True):
    """Machine of the measurements."""

    gpu: str | None
    torch: str
    python: str


class PlainStepTimes(msgspec.Struct, frozen=True):
    """The steps of one process without overlapscope, but the first third."""

    host_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
    """Between CUDA events at the marks; empty without a GPU."""
    machine: MachineVersions

    @property
    def step_ns(self) -> tuple[int, ...]:
        """By the device's clock if there is a device: the host's shows when steps were launched."""
        return self.device_ns or self.host_ns


class TimedProcess(msgspec.Struct, frozen=True):
    """A process of one variant."""

    program: str
    variant: str
    number: int
    """1 before the recording, 2 after it."""
    timed: PlainStepTimes


class ProcessTimings(msgspec.Struct, frozen=True):
    """All processes so far."""

    runs: tuple[TimedProcess, ...] = ()


def programs() -> dict[str, PlainScript]:
    """Return the list, in its order."""
    return msgspec.toml.decode((SCRIPTS / "programs.toml").read_bytes(), type=dict[str, PlainScript])


def variant_of(edits: tuple[str, ...]) -> str:
    """Name of a program with these edits."""
    return "+".join(edits) or BEFORE


def trace_path(folder: Path, program: str, variant: str, way: str = "") -> Path:
    """Path of the recording."""
    return folder / program / f"{variant}{'.' if way else ''}{way}.trace.json.gz"


def read(folder: Path) -> ProcessTimings:
    """Return the measurements so far; empty if the file does not exist."""
    path = folder / RESULTS
    return msgspec.json.decode(path.read_bytes(), type=ProcessTimings) if path.exists() else ProcessTimings()


def write(folder: Path, results: ProcessTimings) -> None:
    part = folder / f"{RESULTS}.part"
    part.write_bytes(msgspec.json.encode(results) + b"\n")
    part.replace(folder / RESULTS)
