"""Comparison of two contracts: losses, gains, and promises that can't be judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host import shown_line
from overlapscope.base.words import plural, size
from overlapscope.budgets.verdicts import Unit
from overlapscope.contracts.match import pairs
from overlapscope.contracts.model import CallPlace, Contract, HostCall, TransferGroup

Result = Literal["kept", "lost", "gained", "unknown"]

_LARGER = 2
"""Factor by which copies of a group may grow, such as with the batch size."""
_WORKERS = "MultiProcessing"
"""Part of the name of an iterator whose workers load."""
_SMALL_BYTES = 64 << 10
"""Size in a step up to which new copies are ignored, unless the host waits for them."""


class Promise(Struct, frozen=True, kw_only=True):
    """A promise of a contract, and whether the second contract keeps it."""

    result: Result
    part: Literal["overlap", "memory", "amount", "sync", "allocation", "launches", "loader"]
    name: str
    """Name of the promise: `overlap of H2D 16.8 MB (aten::copy_, train.py:88)`."""
    message: str
    """Result in sentences."""
    line: str = ""
    """Line of the program that the message is about."""
    limit: int = 0
    """Smallest or largest value that keeps the promise."""
    value: int | None = None
    unit: Unit = "calls"
    at_least: bool = False
    """True if values below the limit break the promise, rather than values above it."""


def compare(contract: Contract, now: Contract) -> tuple[Promise, ...]:
    """Return the result of each promise of a contract, and losses that it has no entry for."""
    if contract.kernels is None or now.kernels is None:
        gpu: list[Promise] = [] if contract.kernels is None else [_nothing_shown(now)]
    else:
        gpu = [*_transfers(contract, contract.copies, now.copies, now), *_host_calls(contract, now)]
        gpu += [*_transfers(contract, contract.collectives, now.collectives, now), *_launches(contract, now)]
    return (*gpu, *_loader(contract, now))


def _nothing_shown(now: Contract) -> Promise:
    return Promise(
        result="unknown",
        part="overlap",
        name="overlap",
        message=" ".join(now.unknown) or "Nothing is known of the GPU.",
    )


# -- Copies and collectives ---------------------------------------------------------------------------


def _transfers(
    contract: Contract, before: Sequence[TransferGroup], after: Sequence[TransferGroup], now: Contract
) -> Iterator[Promise]:
    matched, gone, new = pairs(before, after, _transfer_distance)
    for old, other in matched:
        yield from _memory(old, other)
        yield from _overlap(contract, old, other, now)
        yield from _amount(contract, old, other)
    for old in gone:
        yield Promise(
            result="gained",
            part="amount",
            name=f"amount of {_words(old)}",
            message=f"{_words(old)} is gone.",
            limit=old.count,
            value=0,
            unit="copies",
        )
    for other in new:
        yield from _new(other)


def _transfer_distance(old: TransferGroup, new: TransferGroup) -> tuple[float, ...] | None:
    """Return how far two groups are from being the same; None if they can't be."""
    if old.kind != new.kind:
        return None
    ratio = abs(math.log2(max(old.bytes, 1) / max(new.bytes, 1))) if old.bytes and new.bytes else 0.0
    if ratio > _MOST_OCTAVES:
        return None
    return (*place_distance(old, new), old.memory != new.memory, ratio)


_MOST_OCTAVES = 2.0
"""Copies that differ by more than this power of two are not the same ones."""


def _memory(old: TransferGroup, new: TransferGroup) -> Iterator[Promise]:
    """Yield the promise about a group's memory, unless it was pageable before and still is."""
    if old.memory in ("", "pageable", "unknown") and new.memory in (old.memory, "unknown"):
        return
    name = f"memory of {_words(old)}"
    lost = old.memory != new.memory and new.memory == "pageable"
    gained = old.memory == "pageable" and new.memory not in ("pageable", "unknown")
    unknown = new.memory == "unknown" != old.memory
    result: Result = "lost" if lost else "gained" if gained else "unknown" if unknown else "kept"
    message = f"{_words(new)} is {new.memory or 'between devices'}"
    if old.memory != new.memory:
        message += f", by the contract {old.memory}"
    if lost:
        message = (
            f"pinned memory lost: {_words(new)} is pageable, by the contract {old.memory}. The host is in the call "
            "until the driver has staged the data, and nothing launched after it can run beside it"
        )
    yield Promise(
        result=result,
        part="memory",
        name=name,
        message=f"{message}.",
        line=new.line,
        value=new.count if lost else 0,
        unit="copies",
    )


def _overlap(contract: Contract, old: TransferGroup, new: TransferGroup, now: Contract) -> Iterator[Promise]:
    """Yield the promise about a group's overlap, if there was any or is some now."""
    if old.kernels is None or not (old.kernels or new.kernels):
        return
    limit, alone, before = math.ceil(old.kernels * (100 - contract.margin_pct) / 100), new.alone or 0, old.alone or 0
    result: Result = "kept"
    message = f"{_words(new)} may run beside {_beside(new)}"
    change = f"{message}; by the contract beside {_beside(old)}. {_ordered(old, new)}".rstrip(". ")
    unknown = " ".join(now.unknown)
    if new.kernels is None:
        result, message = "unknown", f"{_words(new)}: its overlap is unknown. {unknown}".rstrip(". ")
    elif (new.kernels if new.up_to is None else new.up_to) < limit or (alone > before and new.up_to is None):
        result, message = "lost", f"overlap lost: {change}"
    elif new.kernels < limit or alone > before:
        result, message = "unknown", f"overlap uncertain: {change}. {unknown}".rstrip(". ")
    elif new.kernels * (100 - contract.margin_pct) > 100 * (old.kernels if old.up_to is None else old.up_to) or (
        alone < before and old.up_to is None
    ):
        result, message = "gained", f"{message}; by the contract beside {_beside(old)}"
    yield Promise(
        result=result,
        part="overlap",
        name=f"overlap of {_words(old)}",
        message=f"{message}.",
        line=new.line,
        limit=limit,
        value=new.kernels,
        unit="kernels",
        at_least=True,
    )


def _beside(transfer: TransferGroup) -> str:
    count = plural(transfer.kernels, "kernel") if transfer.kernels else "no kernel"
    if transfer.up_to is not None:
        count += f" for certain, at best {transfer.up_to:,}"
    if transfer.alone and transfer.kernels:
        count += f", and {transfer.alone} of {transfer.count} beside none"
    return count


def _ordered(old: TransferGroup, new: TransferGroup) -> str:
    """Return what orders a group now, on the side on which it lost most."""
    if new.memory == "pageable" != old.memory:
        return "The reason is pageable memory."
    sides = [
        ((old.kernels_before or 0) - (new.kernels_before or 0), f"It runs {new.begins}.", bool(new.begins)),
        ((old.kernels_after or 0) - (new.kernels_after or 0), f"It runs {new.ends}.", bool(new.ends)),
    ]
    sentences = [text for loss, text, known in sorted(sides, key=lambda side: -side[0]) if known and loss > 0]
    return " ".join(sentences or [text for _, text, known in sides if known])


def _amount(contract: Contract, old: TransferGroup, new: TransferGroup) -> Iterator[Promise]:
    """Yield a loss if a group moves much more or has more ops."""
    if old.bytes and new.bytes * new.count <= _SMALL_BYTES:
        return
    unit: Unit
    limit, value, unit = _most(old.count, contract), new.count, "copies"
    message = f"{_words(new)}: {new.count} a step; by the contract {old.count}."
    if old.bytes and new.bytes * new.count > _LARGER * old.bytes * max(old.count, 1):
        limit, value, unit = _LARGER * old.bytes * old.count, new.bytes * new.count, "bytes"
        message = f"{_words(new)} moves {size(value)} a step; by the contract {size(old.bytes * old.count)}."
    if value > limit:
        yield Promise(
            result="lost",
            part="amount",
            name=f"amount of {_words(old)}",
            message=message,
            line=new.line,
            limit=limit,
            value=value,
            unit=unit,
        )


def _new(new: TransferGroup) -> Iterator[Promise]:
    """Yield a loss for a group that the contract doesn't have."""
    if new.bytes and new.bytes * new.count <= _SMALL_BYTES:
        return
    how = f"may run beside {_beside(new)}" if new.kernels is not None else "its overlap is unknown"
    message = (
        f"new {_words(new)}, {new.count} a step: {how}{', from pageable memory' if new.memory == 'pageable' else ''}."
    )
    yield Promise(
        result="lost",
        part="amount",
        name=f"amount of {_words(new)}",
        message=message,
        line=new.line,
        value=new.count,
        unit="copies",
    )


# -- Calls of the host --------------------------------------------------------------------------------


def _host_calls(contract: Contract, now: Contract) -> Iterator[Promise]:
    yield from _calls("sync", "host sync", contract.syncs, now.syncs)
    yield from _calls("allocation", "allocation", contract.allocations, now.allocations)


def _calls(
    part: Literal["sync", "allocation"], noun: str, before: Sequence[HostCall], after: Sequence[HostCall]
) -> Iterator[Promise]:
    per = "a step" if part == "sync" else "a step that has any"
    matched, gone, new = pairs(before, after, _call_distance)
    for old, other in [*matched, *((old, replace(old, count=0)) for old in gone)]:
        count = other.count
        result: Result = "lost" if count > old.count else "gained" if count < old.count else "kept"
        where = _place_words(other)
        message = f"{noun} {where}: {count} {per}; by the contract {old.count}."
        if result == "lost":
            message = f"more of {message}"
        yield Promise(
            result=result,
            part=part,
            name=f"{noun} {_stable(old)}",
            message=message,
            line=other.line,
            limit=old.count,
            value=count,
        )
    for other in new:
        message = f"new {noun}: {_place_words(other)}, {other.count} {per}; by the contract 0."
        yield Promise(
            result="lost",
            part=part,
            name=f"{noun} {_stable(other)}",
            message=message,
            line=other.line,
            limit=0,
            value=other.count,
        )
    if not before and not new:
        yield Promise(
            result="kept", part=part, name=f"no {noun}", message=f"There is no {noun}, as in the contract.", value=0
        )


def _call_distance(old: HostCall, new: HostCall) -> tuple[float, ...] | None:
    """Return how far two groups of calls are from being the same; None if they can't be."""
    same = old.op == new.op or not (old.op and new.op)
    return place_distance(old, new) if old.call == new.call and same else None


def _launches(contract: Contract, now: Contract) -> Iterator[Promise]:
    if contract.launches is not None and now.launches is not None:
        limit = _most(contract.launches, contract)
        fewer = _most(now.launches, contract) < contract.launches
        yield Promise(
            result="lost" if now.launches > limit else "gained" if fewer else "kept",
            part="launches",
            name="launches",
            message=f"{now.launches:,} launches a step; by the contract {contract.launches:,}.",
            limit=limit,
            value=now.launches,
        )
    if contract.graph_launches:
        value = now.graph_launches or 0
        yield Promise(
            result="lost" if value < contract.graph_launches else "kept",
            part="launches",
            name="CUDA graph launches",
            message=f"{value} CUDA graph launches a step; by the contract {contract.graph_launches}.",
            limit=contract.graph_launches,
            value=value,
            at_least=True,
        )


def _loader(contract: Contract, now: Contract) -> Iterator[Promise]:
    if contract.loader:
        before, after = (_WORKERS in each.loader for each in (contract, now))
        message = f"The DataLoader's iterator is {now.loader or 'not used'}; by the contract {contract.loader}."
        yield Promise(
            result="lost" if before > after else "gained" if after > before else "kept",
            part="loader",
            name="loader",
            message=f"loader workers lost: {message}" if before > after else message,
            value=int(before > after),
        )


# -- Places -------------------------------------------------------------------------------------------


def place_distance(old: CallPlace, new: CallPlace) -> tuple[float, float, float]:
    """Return how far two places are apart: function, op and line. Edits move lines, and a recording may have none."""
    before, after = shown_line(old.line), shown_line(new.line)
    if before is None or after is None:
        return (0.0 if before is after else 0.5), float(old.op != new.op), 0.0
    same = (before.file, before.function) == (after.file, after.function)
    moved = abs(int(before.line) - int(after.line)) if same else 0
    return float(not same), float(old.op != new.op), float(moved)


def _most(count: int, contract: Contract) -> int:
    """Return the largest number that is within the margin of a number."""
    return count + math.floor(count * contract.margin_pct / 100)


def _words(transfer: TransferGroup) -> str:
    """Return `H2D 16.8 MB (aten::copy_, train.py:88)`."""
    amount = f" {size(transfer.bytes)}" if transfer.bytes else ""
    where = _where(transfer)
    return f"{transfer.kind}{amount}{f' ({where})' if where else ''}"


def _where(place: CallPlace) -> str:
    return ", ".join(filter(None, (place.op, place.line.rpartition(" in ")[0])))


def _place_words(call: HostCall) -> str:
    """Return `aten::item, train.py:103`, or the call in place of an op."""
    return _where(replace(call, op=call.op or call.call))


def _stable(call: HostCall) -> str:
    """Return a name that stays the same when lines move."""
    shown = shown_line(call.line)
    where = f"{shown.file} in {shown.function}" if shown else ""
    return ", ".join(filter(None, (call.call, call.op, where)))
