"""The one recording of this process that is under way, and `step()`, which marks the end of a step of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlapscope.recorder.recording import Recording

_begun: list[Recording] = []
"""At most one."""


def step() -> None:
    """Mark the end of a step of the recording under way; where there is none, do nothing."""
    if _begun:
        _begun[0].step()


def current() -> Recording | None:
    """The recording that has begun and not ended."""
    return _begun[0] if _begun else None


def set_current(recording: Recording | None) -> None:
    """For `Recording` alone."""
    _begun[:] = [] if recording is None else [recording]
