"""Entries of the history: a report, its origin and its figures, which are those that `overlapscope check` judges."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from statistics import stdev
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from overlapscope.analysis.results import CopiesByStep, Device, EvidenceByStep, StallsByStep
from overlapscope.base.saved import SCHEMA_VERSION, Quantity, decode
from overlapscope.base.words import clean, listed
from overlapscope.budgets.places import JudgedFigure
from overlapscope.budgets.places import figures as judged_figures
from overlapscope.budgets.verdicts import CheckResult
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.reading.files import zstd_module
from overlapscope.report.model import Report, of_program
from overlapscope.report.origin import Name, Origin

SUFFIX: Final = ".json.zst"
"""Suffix of an entry's file, `ID.json.zst`."""
MOST_PACKED: Final = 8 << 20
"""Maximum size of an entry's file in bytes; `MOST_UNPACKED` is that of its content."""
MOST_UNPACKED: Final = 128 << 20
_LEVEL: Final = 9
"""Level at which zstd compresses entries."""
_SHORT = 10
"""Number of shown digits of a commit."""

EntryId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}(?!\n)$")]
Ordinal = Annotated[int, Meta(ge=0, lt=2**31)]


class HistoryFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a device of a rank, over the judged steps."""

    metric: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,60}(/[a-z0-9-]{1,60})?(?!\n)$")]
    """Id in `catalog.measures.METRICS`, or a part by cause: `idle_time/host-sync`."""
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
    """Return the entry as JSON in a single frame of zstd, with a checksum."""
    zstd = zstd_module()
    options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    packed: bytes = zstd.compress(msgspec.json.encode(entry), options=options)
    return packed


def unpack(packed: bytes, source: str) -> Entry:
    """Decode an entry, which is not trusted. Raises UnreadableTrace with the name of the `source`."""
    try:
        entry = decode(_unpacked(packed), Entry)
    except (ValueError, msgspec.DecodeError) as error:
        raise UnreadableTrace(f"{source}: is not an entry of a history ({clean(str(error), 300)}).") from None
    if repeated(entry.figures):
        raise UnreadableTrace(f"{source}: has two values of one figure.")
    if entry.id != digest(entry.origin, entry.report, plain=entry.plain):
        raise UnreadableTrace(f"{source}: was changed after it was written (its id does not match).")
    return entry


def _unpacked(packed: bytes) -> bytes:
    """Return the content of a single frame of zstd.

    Raises:
        ValueError: It is not a frame, is cut or followed by other bytes, or holds more than `MOST_UNPACKED` bytes.
    """
    zstd = zstd_module()
    unpacker = zstd.ZstdDecompressor()
    try:
        data: bytes = unpacker.decompress(packed, MOST_UNPACKED + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"it is not valid zstd data ({error})") from None
    if len(data) > MOST_UNPACKED:
        raise ValueError(f"it holds more than {MOST_UNPACKED:,} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("its zstd data does not end where the file does")
    return data


def moment(at_ns: int) -> str:
    """Return `2026-11-23 02:08`, in UTC."""
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at_ns // 1000)
    return at.strftime("%Y-%m-%d %H:%M")


def short(commit: str) -> str:
    """Return the first digits of a commit, and its suffix such as `-dirty`."""
    digits, dash, rest = commit.partition("-")
    return f"{digits[:_SHORT]}{dash}{rest}"


# -- Figures of a report -----------------------------------------------------------------------------

KEPT_BYTES: Final = 16 << 10
"""Maximum size of a packed entry in bytes. Parts that make it larger are left out."""


def figures(report: Report) -> tuple[HistoryFigure, ...]:
    """Return all figures of a report (`budgets.places.figures`)."""
    return tuple(map(_figure, judged_figures(report)))


def _figure(figure: JudgedFigure) -> HistoryFigure:
    metric, place, numbers = figure.metric, figure.place, figure.values.numbers
    return HistoryFigure(
        metric=metric.metric,
        rank=place.subject.rank,
        # Figures of the host belong to no device.
        device=place.subject.device or 0,
        value=figure.value,
        spread=stdev(numbers) if len(numbers) > 1 else None,
        samples=len(numbers),
        floor=figure.noise_floor,
    )


# -- Entries ----------------------------------------------------------------------------------------


def entry(report: Report, origin: Origin, check: CheckResult | None = None) -> Entry:
    """Return the entry for a report, with the result of its check if there was one.

    If the packed entry exceeds `KEPT_BYTES`, parts of the report are left out. A note in it states which.

    Raises:
        UsageError: A trace was predicted, or two traces are of the same device, and so not of the same job.
    """
    plain, recorded = of_program(report) is not report, figures(report)
    for trace in report.traces:
        if trace.predicted_by is not None:
            raise UsageError(
                f"{clean(trace.source)}: was predicted by `overlapscope whatif`, and a history is of recordings; add a "
                "recording of the changed program."
            )
    if repeated(recorded):
        raise UsageError(
            f"{clean(report.traces[0].source)} and the traces beside it are of the same rank, and an entry of the "
            "history belongs to one job; add them one by one."
        )
    whole = Entry(
        id=digest(origin, report, plain=plain),
        origin=origin,
        plain=plain,
        gpu=gpu_of(report),
        figures=recorded,
        report=report,
        check=check,
    )
    kept, cuts = whole, []
    for part, cut in _CUTS.items():
        if len(pack(kept)) <= KEPT_BYTES:
            break
        cuts.append(part)
        kept = replace(kept, report=_without(kept.report, cut))
    if not cuts:
        return whole
    note = f"The history keeps no {listed(cuts)} of this report, because it is large."
    return replace(kept, left_out=tuple(cuts), report=replace(kept.report, notes=(*kept.report.notes, note)))


def gpu_of(report: Report) -> str | None:
    """Return the names of the report's GPUs as the history keeps them."""
    gpus = sorted({gpu for trace in report.traces for gpu in trace.environment.gpus})
    return ", ".join(gpus)[:500] or None


def _without(report: Report, cut: Callable[[Device], Device]) -> Report:
    def both(device: Device) -> Device:
        plain = device.plain
        if plain is not None and plain.program is not None:
            plain = replace(plain, program=cut(plain.program))
        return replace(cut(device), plain=plain)

    traces = (replace(trace, devices=tuple(map(both, trace.devices))) for trace in report.traces)
    return replace(report, traces=tuple(traces))


def _without_steps(device: Device) -> Device:
    copies = CopiesByStep(count=(), bytes=(), duration_ns=(), time_ns=(), exposed_ns=())
    stalls = StallsByStep(count=(), host_wait_ns=(), idle_caused_ns=())
    cases = EvidenceByStep(count=(), time_ns=())
    return replace(
        device,
        steps=(),
        copies=tuple(replace(group, by_step=copies) for group in device.copies),
        host_stalls=tuple(replace(stall, by_step=stalls) for stall in device.host_stalls),
        evidence=tuple(replace(case, by_step=cases) for case in device.evidence),
    )


_CUTS: Final[dict[str, Callable[[Device], Device]]] = {
    "kernels": lambda device: replace(device, kernels=()),
    "ranges": lambda device: replace(device, ranges=()),
    "steps": _without_steps,
}
"""Parts to leave out of large reports, in this order."""
