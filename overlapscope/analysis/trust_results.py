"""Results on whether a trace can be believed, and on the environment that it was recorded in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from overlapscope.trace.lost import Part, in_order


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trust check of a trace."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    lost: tuple[Part, ...] | None
    """Parts of the recording that may be lost or wrong, so that everything based on them is unknown; null if there are
    none."""

    @classmethod
    def ok(cls, id: str, detail: str) -> Check:
        """Return a check that found nothing."""
        return cls(id=id, status="ok", detail=detail, lost=None)

    @classmethod
    def warn(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Return a check that makes some numbers less exact."""
        return cls(id=id, status="warn", detail=detail, lost=None if lost is None else in_order(lost))

    @classmethod
    def fail(cls, id: str, detail: str, lost: Iterable[Part] | None = None) -> Check:
        """Return a check that makes some numbers unknown."""
        return cls(id=id, status="fail", detail=detail, lost=None if lost is None else in_order(lost))

    @property
    def lost_parts(self) -> frozenset[Part]:
        """Return `lost`, empty if there are none."""
        return frozenset(self.lost or ())


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Trustworthiness of a trace's numbers."""

    verdict: Literal["trusted", "degraded", "unusable"]
    checks: tuple[Check, ...]

    @property
    def lost(self) -> frozenset[Part]:
        """Parts of the recording that may be lost or wrong according to any check."""
        return frozenset().union(*(check.lost_parts for check in self.checks))


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of a recording, as far as the trace states it; absent otherwise."""

    gpus: tuple[str, ...] = ()
    """Product names of the devices that worked, sorted, each once."""
    recorder: str = "kineto"
    """Recorder: `kineto` is torch.profiler, `nsys` Nsight Systems."""
    world_size: int | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    """Highest CUDA version that the driver supports."""
    flags: dict[str, bool] = {}
    """Recorded besides times: `sync_events`, `stacks`, `shapes`, `memory`."""
