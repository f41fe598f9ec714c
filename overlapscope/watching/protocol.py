"""What a watched process and whoever asks it say to each other: lines of JSON over a Unix socket."""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from overlapscope.errors import UsageError

MOST_BYTES: Final = 1 << 16
"""Of a line. What is longer is not from us."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """A recording that is wanted."""

    path: str
    """The trace file, absolute; of several ranks each writes its own beside it."""
    steps: int = 5
    """That are judged."""
    seconds: float | None = None
    """So long, in the place of steps."""
    at_step: int | None = None
    """It begins when so many steps are finished; None: at the next end of a step."""
    plain_steps: int = 10
    """That are timed right before and right behind it, while nothing is recorded."""
    light: bool = False
    stacks: bool = False


class Ask(msgspec.Struct, frozen=True, tag="status"):
    """How a process is."""


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """A watched process."""

    pid: int
    script: str
    rank: int | None
    world_size: int | None
    job: str | None
    """What the ranks of a job on this host have in common; None of a process that has no rank."""
    steps: int
    """Finished ones."""
    plain_step_ns: int | None
    """What a step took lately while nothing was recorded, by the host's clock; None before there are any."""
    recording: bool
    recorded_at_ns: int | None
    """When the last recording was complete, in nanoseconds since 1970."""
    version: str


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The recording has begun."""

    step: int
    """So many were finished."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What became of a request."""

    path: str | None = None
    """The trace that was written."""
    failure: str = ""
    """Why there is none, in a sentence."""
    begun: int | None = None
    """The recording began when so many steps were finished."""
    busy: bool = False
    """Another recording is being made, or was just withdrawn."""
    too_late: bool = False
    """The step that it was to begin with is over."""
    ended: bool = False
    """The program ended before the recording was complete."""
    notes: tuple[str, ...] = ()


Asked = Request | Ask
Said = Status | Begun | Outcome


def send(to: socket.socket, message: Asked | Said) -> None:
    """Raises OSError where the other side has gone."""
    to.sendall(msgspec.json.encode(message) + b"\n")


class Lines:
    """The messages that come through a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._rest = b""

    def receive(self) -> bytes | None:
        """The next line; None where the other side has gone. Raises UsageError for one that is too long, OSError."""
        while b"\n" not in self._rest:
            part = self._source.recv(MOST_BYTES)
            if not part:
                return None
            self._rest += part
            if len(self._rest) > MOST_BYTES:
                raise UsageError("what came through the socket is not from overlapscope.")
        line, _, self._rest = self._rest.partition(b"\n")
        return line
