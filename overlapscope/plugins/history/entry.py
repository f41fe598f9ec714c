"""Entries of the history: a report, its figures and its origin."""

from __future__ import annotations

import datetime
import hashlib
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from overlapscope.base import zstd
from overlapscope.base.saved import Quantity, decode
from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.errors import UnreadableTrace
from overlapscope.report.model import Report
from overlapscope.report.origin import Name, Origin

SCHEMA_VERSION = 1
SUFFIX: Final = ".json.zst"
"""Suffix of an entry's file, `ID.json.zst`."""
MOST_PACKED: Final = 8 << 20
"""Maximum size of an entry's file in bytes; `MOST_UNPACKED` is that of its content."""
MOST_UNPACKED: Final = 128 << 20
_SHORT = 10
"""Number of shown digits of a commit."""

EntryId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}(?!\n)$")]
Ordinal = Annotated[int, Meta(ge=0, lt=2**31)]


class HistoryFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a device of a rank, over the judged steps."""

    metric: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,60}(/[a-z0-9-]{1,60})?(?!\n)$")]
    """Id in `budgets.metrics.METRICS`, or a part by cause: `idle_time/host-sync`."""
    rank: Ordinal | None
    device: Ordinal
    value: Quantity
    """Value per step, as `check` judges it, in nanoseconds, percent or 1e9 bytes per second."""
    spread: Quantity | None
    """Standard deviation of the steps; None with fewer than two steps."""
    samples: Ordinal
    """Number of steps."""
    floor: Quantity
    """Minimum change that is more than noise between recordings, as in `check`."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, as stored in the history and in file drops."""

    kind: Literal["history-entry"] = "history-entry"
    schema_version: int = SCHEMA_VERSION
    id: EntryId
    """Digest of the origin and of the recorded windows (`digest`). Adding an entry twice stores it once."""
    origin: Origin
    plain: bool
    """True if the figures are of the plain program, False for the recording. The two are never compared."""
    gpu: Name | None
    figures: Annotated[tuple[HistoryFigure, ...], Meta(max_length=100_000)]
    report: Report
    left_out: tuple[Name, ...] = ()
    """Parts that a large report was stored without."""
    check: CheckResult | None = None


def digest(origin: Origin, report: Report, *, plain: bool) -> str:
    """Return the id of an entry, which is the same for every analysis of a recording, by any version."""
    windows = [
        (trace.rank, [(device.device, device.window) for device in trace.devices], trace.host and trace.host.steps[0])
        for trace in report.traces
    ]
    content = msgspec.json.encode((origin, plain, windows), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:32]


def repeated(figures: tuple[HistoryFigure, ...]) -> bool:
    """Return whether a metric of a device occurs twice."""
    return len({(figure.metric, figure.rank, figure.device) for figure in figures}) < len(figures)


def pack(entry: Entry) -> bytes:
    """Return the entry as JSON, compressed with zstd."""
    return zstd.pack(msgspec.json.encode(entry))


def unpack(packed: bytes, source: str) -> Entry:
    """Decode an entry, which is not trusted. Raises UnreadableTrace with the name of the `source`."""
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


def moment(at_ns: int) -> str:
    """Return `2026-11-23 02:08`, in UTC."""
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at_ns // 1000)
    return at.strftime("%Y-%m-%d %H:%M")


def short(commit: str) -> str:
    """Return the first digits of a commit, and its suffix such as `-dirty`."""
    digits, dash, rest = commit.partition("-")
    return f"{digits[:_SHORT]}{dash}{rest}"
