"""Results of `overlapscope doctor`, as frozen structures whose names are those of its JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.base.saved import SCHEMA_VERSION, Tool

Status = Literal["ok", "missing", "broken"]
"""State of a part: a missing part is optional, and a broken part is installed and fails."""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of programs and libraries; None for a missing or unknown version."""

    python: str
    system: str
    """Operating system, such as `Linux 6.1.0 x86_64`."""
    torch: str | None = None
    cuda: str | None = None
    """Version of CUDA that PyTorch was built for."""
    rocm: str | None = None
    driver: str | None = None
    """Version of NVIDIA's kernel module, or else of AMD's."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the installation."""

    id: str
    status: Status
    detail: str
    """Sentence on the state."""
    remedy: str = ""
    """Advice on how to install or repair it; empty without any."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All parts, in the order of their use."""

    kind: Literal["doctor"] = "doctor"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    location: str
    """Directory of the package."""
    versions: Versions
    gpus: tuple[str, ...]
    checks: tuple[Examined, ...]

    def having(self, status: Status) -> list[str]:
        """Return the ids of the parts with this status."""
        return [check.id for check in self.checks if check.status == status]
