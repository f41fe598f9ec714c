"""What `overlapscope doctor` finds, as frozen structures; their names are those of its JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.base.saved import Tool

SCHEMA_VERSION = 1

Status = Literal["ok", "missing", "broken"]
"""Missing is what can be done without; broken is what is there and fails."""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """None for what is not there, or does not say."""

    python: str
    system: str
    """`Linux 6.1.0 x86_64`."""
    torch: str | None = None
    cuda: str | None = None
    """That PyTorch was built for."""
    rocm: str | None = None
    driver: str | None = None
    """Of NVIDIA's kernel module, else of AMD's."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the installation."""

    id: str
    status: Status
    detail: str
    """A sentence."""
    remedy: str = ""
    """What to do about it, where anything can be done."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All parts, in the order in which they are used."""

    kind: Literal["doctor"] = "doctor"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    location: str
    """The directory of the package."""
    versions: Versions
    gpus: tuple[str, ...]
    checks: tuple[Examined, ...]

    def having(self, status: Status) -> list[str]:
        """The parts of that status, by id."""
        return [check.id for check in self.checks if check.status == status]
