"""An entry of the history: what is kept of one report, and where that comes from."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from overlapscope.base import zstd
from overlapscope.base.saved import decode
from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.errors import UnreadableTrace
from overlapscope.report.model import Report

SCHEMA_VERSION = 1
SUFFIX: Final = ".json.zst"
"""Of the file of an entry: `ID.json.zst`."""
MOST_PACKED: Final = 8 << 20
"""Bytes of such a file, and of what stands in it."""
MOST_UNPACKED: Final = 128 << 20

Name = Annotated[str, Meta(max_length=500)]
Ordinal = Annotated[int, Meta(ge=0, lt=2**31)]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a report comes from; None is what nobody knows."""

    at_ns: Annotated[int, Meta(ge=0, le=2**62)]
    """When it was recorded, in nanoseconds since 1970 (UTC)."""
    job: Name
    """What the runs of one program have in common: by default the name of the script."""
    commit: Name | None = None
    """With `-dirty` behind it where the working tree had changes that are not committed."""
    branch: Name | None = None
    host: Name | None = None
    labels: Annotated[dict[Name, Name], Meta(max_length=100)] = {}
    """Whatever else runs are told apart by."""


class HistoryFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one device of one rank, over the steps that are judged."""

    metric: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,60}(/[a-z0-9-]{1,60})?$")]
    """An id of `budgets.metrics.METRICS`, or a cause: `idle_time/host-sync`."""
    rank: Ordinal | None
    device: Ordinal
    value: float
    """Nanoseconds, percent or 1e9 bytes a second: of a step, as `check` judges it."""
    spread: float | None
    """Standard deviation of the steps; None of fewer than two."""
    samples: Ordinal
    """Steps that it is made of."""
    floor: float | None = None
    """The least change of it that is more than noise between recordings, as `check` has it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one report, as it stands in a file drop, too."""

    kind: Literal["history-entry"] = "history-entry"
    schema_version: int = SCHEMA_VERSION
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """A digest of the origin, and of what was recorded when (`digest`): who adds an entry twice has it once."""
    origin: Origin
    plain: bool
    """The figures are of the plain program, else of the recording: the two are never compared."""
    gpu: Name | None
    figures: Annotated[tuple[HistoryFigure, ...], Meta(max_length=100_000)]
    report: Report
    check: CheckResult | None = None


def digest(origin: Origin, report: Report, *, plain: bool) -> str:
    """The id of an entry. It stays the same where another version analyses the same recording, or does so again."""
    windows = [
        (trace.rank, [(device.device, device.window) for device in trace.devices], trace.host and trace.host.steps[0])
        for trace in report.traces
    ]
    content = msgspec.json.encode((origin, plain, windows), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:32]


def repeated(figures: tuple[HistoryFigure, ...]) -> bool:
    """Whether a metric of one device is there twice."""
    return len({(one.metric, one.rank, one.device) for one in figures}) < len(figures)


def pack(entry: Entry) -> bytes:
    """The entry as it is stored, and dropped: JSON, packed with zstd."""
    return zstd.pack(msgspec.json.encode(entry))


def unpack(packed: bytes, source: str) -> Entry:
    """An entry read back, which anybody may have written; `source` is named where it is none.

    Raises UnreadableTrace.
    """
    try:
        entry = decode(zstd.unpack(packed, MOST_UNPACKED), Entry)
    except (ValueError, msgspec.DecodeError) as error:
        raise UnreadableTrace(f"{source}: is not an entry of a history ({clean(str(error), 300)}).") from None
    if entry.schema_version != SCHEMA_VERSION:
        raise UnreadableTrace(
            f"{source}: is an entry of schema version {entry.schema_version}, and this version of overlapscope reads "
            f"{SCHEMA_VERSION}."
        )
    if repeated(entry.figures):
        raise UnreadableTrace(f"{source}: has two values of one figure.")
    if entry.id != digest(entry.origin, entry.report, plain=entry.plain):
        raise UnreadableTrace(f"{source}: was changed after it was written (its id does not match).")
    return entry
