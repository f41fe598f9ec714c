"""Messages between a watched process and its clients: lines of JSON over a Unix socket.

The sockets are in directories that only their user can enter.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from overlapscope.errors import UsageError
from overlapscope.recorder.options import Options

MAX_BYTES: Final = 1 << 16
"""Maximum length of a line; longer lines are not from overlapscope."""


_SUFFIX = ".sock"


class RecordingRequest(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """A request for a recording."""

    path: str
    """Absolute path of the trace file; each of several ranks writes a file beside it."""
    options: Options
    at_step: int | None = None
    """Number of finished steps at which it begins; None for the next end of a step."""


class StatusRequest(msgspec.Struct, frozen=True, tag="status"):
    """A request for the status of a process."""


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """A watched process."""

    pid: int
    script: str
    rank: int | None
    world_size: int | None
    job: str | None
    """Identifier that the ranks of a job on this host share; None for a process without a rank."""
    steps: int
    """Number of finished steps."""
    plain_step_ns: int | None
    """Recent step time without the profiler by the host's clock; None before the first steps."""
    recording: bool
    recorded_at_ns: int | None
    """Time at which the last recording was complete, in nanoseconds since 1970."""
    version: str


class RecordingBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A message that the recording has begun."""

    step: int
    """Number of steps that were finished then."""


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """The outcome of a request for a recording."""

    path: str | None = None
    """Trace that was written."""
    failure: str = ""
    """Sentence on why the trace is missing."""
    begun: int | None = None
    """Number of steps that were finished when the recording began."""
    busy: bool = False
    """True if another recording is under way, or was just cancelled."""
    too_late: bool = False
    """True if the step that it was to begin with is over."""
    ended: bool = False
    """True if the program ended before the recording was complete."""
    notes: tuple[str, ...] = ()


ClientMessage = RecordingRequest | StatusRequest
"""Message from a client to a watched process."""
ProcessMessage = Status | RecordingBegun | RequestOutcome
"""Message from a watched process to a client."""


def send(to: socket.socket, message: ClientMessage | ProcessMessage) -> None:
    """Send a message. Raises OSError if the other side has closed the connection."""
    to.sendall(msgspec.json.encode(message) + b"\n")


def receive(lines: BinaryIO, kind: Any) -> Any:
    """Return the next message, a `ClientMessage` or a `ProcessMessage`; None if the other side has closed.

    Raises:
        OSError: The connection is broken, or the other side is silent for too long.
        UsageError: The message is not from overlapscope, as for MsgspecError.
        MsgspecError: It is not of this kind.
    """
    line = lines.readline(MAX_BYTES)
    if len(line) == MAX_BYTES:
        raise UsageError("the message on the socket is not from overlapscope.")
    return msgspec.json.decode(line[:-1], type=kind) if line.endswith(b"\n") else None


# -- Sockets ----------------------------------------------------------------------------------------


def candidates() -> list[Path]:
    """Return the directories that may contain sockets of this user, the preferred one first.

    A program that a scheduler starts may lack the variable that a shell has.
    """
    paths = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    runtime = [Path(place, "overlapscope") for place in paths if place and os.path.isdir(place)]
    # TMPDIR is not used, since a scheduler may set it, but not for the user's shell.
    return [*dict.fromkeys(runtime), Path("/tmp", f"overlapscope-{os.getuid()}")]


def make_directory() -> Path:
    """Create a directory for sockets, and return it. Raises OSError if that is impossible."""
    for place in candidates()[:-1]:
        try:
            return _create(place)
        except OSError:
            continue
    return _create(candidates()[-1])


def _create(place: Path) -> Path:
    place.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(place):
        raise PermissionError(f"{place} is not a directory of this user's alone")
    return place


def _is_private(place: Path) -> bool:
    """Return whether it is a directory of this user, and no link, that only this user can enter."""
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def socket_of(directory: Path, pid: int) -> Path:
    """Return the socket of a process."""
    return directory / f"{pid}{_SUFFIX}"


def sockets() -> Iterator[tuple[int, Path]]:
    """Yield the sockets that exist, each with the id of its process."""
    for place in candidates():
        if _is_private(place):
            for path in sorted(place.glob(f"*{_SUFFIX}")):
                if path.stem.isdecimal():
                    yield int(path.stem), path
