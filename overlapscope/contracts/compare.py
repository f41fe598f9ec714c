"""Comparison of two contracts: losses, gains, and promises that can't be judged."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import plural, size
from overlapscope.budgets.verdicts import Unit
from overlapscope.compare.groups import pairs
from overlapscope.contracts.model import Beside, CallPlace, Contract, HostCall, TransferGroup
from overlapscope.documents.model import Block, Document, Section, Text
from overlapscope.documents.table import Tone
from overlapscope.trace.host import shown_line

Result = Literal["kept", "lost", "gained", "unknown"]
Part = Literal["overlap", "memory", "amount", "sync", "allocation", "launches", "loader"]

ADVICE: Final = {
    "overlap": "Issue it on a stream of its own, and let other streams wait for it only where they use its data.",
    "memory": "Keep the host's side in pinned memory (`pin_memory=True`), and copy with `non_blocking=True`.",
    "amount": "Take it out of the step, or join it with another copy.",
    "sync": "Move the call out of the step, or wait for an event where the value is used.",
    "allocation": "Allocate once before the loop, and use the memory again.",
    "launches": "`overlapscope diff` of two recordings lists the ops that launch more; without a GPU, "
    "`overlapscope analyze` lists those of each.",
    "loader": "Pass `num_workers` to the DataLoader again.",
}
"""Remedies for a lost promise, by its part."""
_MAX_COPY_GROWTH = 2
"""Factor by which copies of a group may grow, such as with the batch size."""
SMALL_BYTES = 64
"""Maximum size of a value that the host reads, as by `item()`."""
_WORKER_ITERATOR = "MultiProcessing"
"""Part of the name of an iterator whose workers load."""


class Promise(Struct, frozen=True):
    """A promise of a contract, and whether the second contract keeps it."""

    result: Result
    part: Part
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

    @property
    def of_transfer(self) -> bool:
        """True if it is about the overlap of copies or collectives that a recording has."""
        return self.part == "overlap" and self.name.startswith("overlap of ")


def _result(*, lost: bool, unknown: bool = False, gained: bool = False) -> Result:
    return "lost" if lost else "unknown" if unknown else "gained" if gained else "kept"


def compare(contract: Contract, now: Contract) -> tuple[Promise, ...]:
    """Return the result of each promise of a contract, and losses that it has no entry for."""
    if contract.host_ops is not None and now.host_ops is not None:
        return (
            *_calls("sync", "read of a value", contract.syncs, now.syncs),
            _counted("ops", contract.host_ops, now.host_ops, contract),
            *_loader(contract, now),
        )
    if not contract.launches or not now.launches:
        unknown = (now if contract.launches else contract).unknown
        message = " ".join(unknown) or "Nothing is known of the GPU."
        return (Promise("unknown", "overlap", "overlap", message), *_loader(contract, now))
    promises = [
        *_unrecorded(contract, now),
        *_transfers(contract, contract.copies, now.copies, now),
        *_calls("sync", "host sync", contract.syncs, now.syncs),
        *_calls("allocation", "allocation", contract.allocations, now.allocations),
        *_transfers(contract, contract.collectives, now.collectives, now),
        *_launches(contract, now),
        *_loader(contract, now),
    ]
    # Its recording doesn't exclude overlap, either.
    if contract.not_promised and not any(group.promised for group in contract.transfers):
        message = f"The contract promises no overlap. {contract.not_promised}"
        promises.insert(0, Promise("unknown", "overlap", "overlap", message))
    return tuple(promises)


def _unrecorded(contract: Contract, now: Contract) -> Iterator[Promise]:
    limit, value = contract.unrecorded_copies, now.unrecorded_copies
    if value > limit:
        message = (
            f"Of {plural(value, 'copy')} a step, only the call or only the GPU's record is in the recording; by the "
            f"contract of {limit}."
        )
        yield Promise("unknown", "amount", "copies recorded in part", message, "", limit, value, "copies")


# -- Copies and collectives ---------------------------------------------------------------------------


def _transfers(
    contract: Contract, before: Sequence[TransferGroup], after: Sequence[TransferGroup], now: Contract
) -> Iterator[Promise]:
    matched, gone, new = pairs(_by_place(before), _by_place(after), _TRANSFER_KEYS)
    for old, other in matched:
        yield from _memory(old, other)
        yield from _overlap(contract, old, other, now)
        yield from _amount(contract, old, other)
    unknown = now.unrecorded_copies > contract.unrecorded_copies
    maybe = ", perhaps only from the recording" if unknown else ""
    for old in gone:
        result: Result = "unknown" if unknown and before is contract.copies else "gained"
        message = f"{_words(old)} is gone{maybe}."
        yield Promise(result, "amount", f"amount of {_words(old)}", message, "", old.count, 0, "copies")
    awaited = Counter({_place(call): call.count for call in now.syncs})
    awaited -= Counter({_place(call): call.count for call in contract.syncs})
    for other in new:
        # The wait for a small copy is a loss that says it all.
        if other.bytes > SMALL_BYTES or other.count > awaited[_place(other)]:
            pageable = ", from pageable memory" if other.memory == "pageable" else ""
            message = f"new {_words(other)}, {other.count} a step: may run beside {_beside(other)}{pageable}."
            name = f"amount of {_words(other)}"
            yield Promise("lost", "amount", name, message, other.line, 0, other.count, "copies")


def _by_place(groups: Sequence[TransferGroup]) -> list[TransferGroup]:
    """Return groups by line, then the largest first, which is the order in which equal ones are paired."""
    return sorted(groups, key=lambda group: (_line_number(group), -group.bytes * group.count))


_TRANSFER_KEYS: tuple[Callable[[TransferGroup], Hashable], ...] = (
    lambda group: (group.kind, group.op, group.line, group.memory, group.bytes),
    lambda group: (group.kind, group.op, group.line, group.memory),
    lambda group: (group.kind, group.op, group.line),
    lambda group: (group.kind, group.op, _function(group), group.memory, group.bytes),
    lambda group: (group.kind, group.op, _function(group)),
    lambda group: (group.kind, group.op, group.bytes),
    lambda group: (group.kind, group.op),
    lambda group: (group.kind, group.bytes),
)
"""Keys by which copies and collectives are the same. Edits move lines, and a recording may have none."""


def _memory(old: TransferGroup, new: TransferGroup) -> Iterator[Promise]:
    """Yield the promise about a group's memory, unless it was pageable before and still is."""
    was, now = old.memory, new.memory
    if was in ("", "pageable", "unknown") and now in (was, "unknown"):
        return
    lost = was != now == "pageable" or (was, now) == ("pinned", "managed")
    gained = was == "pageable" and now not in ("pageable", "unknown")
    message = f"{_words(new)} is {now or 'between devices'}"
    if was != now:
        message += f", by the contract {was}"
    if lost:
        message = f"pinned memory lost: {message}"
    if lost and now == "pageable":
        message += (
            ". The host is in the call until the driver has staged the data, and nothing launched after it can run "
            "beside it"
        )
    result = _result(lost=lost, unknown=was != now == "unknown", gained=gained)
    value = new.count if lost else 0
    yield Promise(result, "memory", f"memory of {_words(old)}", f"{message}.", new.line, 0, value, "copies")


def _overlap(contract: Contract, old: TransferGroup, new: TransferGroup, now: Contract) -> Iterator[Promise]:
    """Yield the promise about a group's overlap, if there was any or is some now.

    The copies of a group are compared in the order of their overlap, the least one first. If some are gone, the
    contract doesn't state which. Then overlap is lost if the others break even the least promises, and kept if they
    keep the largest.
    """
    fewer, keep = old.count - new.count, 100 - contract.margin_pct
    each, strict = (_side_by_side(old.beside, new.beside, left_out) for left_out in (min(0, fewer), fewer))
    if not each or not any(run.most for run in (*old.beside, *new.beside)):
        return
    limits = [(math.ceil(was.least * keep / 100), run) for was, run in (*each, *strict)]
    lost = [(limit, run) for limit, run in limits[: len(each)] if run.most < limit]
    unsure = [(limit, run) for limit, run in limits if run.least < limit]
    excluded = [(1, run) for was, run in each if was.most and not was.least and not run.most]
    gained = any(run.least * keep > 100 * was.most for was, run in each)
    result = _result(lost=bool(lost), unknown=bool(unsure or excluded), gained=gained)
    message = f"{_words(new)} may run beside {_beside(new)}"
    if result != "kept":
        message += f"; by the contract beside {_beside(old)}"
    if result in ("lost", "unknown"):
        doubts = now.unknown if result == "unknown" else ()
        parts = [f"overlap {'lost' if lost else 'uncertain'}: {message}.", _ordered(old, new), *doubts]
        message = " ".join(parts).rstrip(". ")
    limit, run = (lost or unsure or excluded or limits)[0]
    name = f"overlap of {_words(old)}"
    yield Promise(result, "overlap", name, f"{message}.", new.line, limit, run.least, "kernels", at_least=True)


def _side_by_side(before: Sequence[Beside], after: Sequence[Beside], left_out: int) -> list[tuple[Beside, Beside]]:
    """Return the runs of both sides that have copies of the same numbers, the copies with the least overlap first.

    `left_out` is how many of the first copies before have no counterpart. If negative, there are as many more copies
    after, which are compared with the first one before.
    """
    sides = [sorted(runs, key=lambda run: (run.least, run.most)) for runs in (before, after)]
    ends, ends_after = (list(accumulate(run.times for run in side)) for side in sides)
    numbers = sorted({0, *ends_after, *(end - left_out for end in ends)})
    count = min(sum(ends[-1:]) - left_out, sum(ends_after[-1:])) if ends else 0
    return [
        (sides[0][bisect_right(ends, max(0, number + left_out))], sides[1][bisect_right(ends_after, number)])
        for number in numbers
        if 0 <= number < count
    ]


def _beside(transfer: TransferGroup) -> str:
    """Return `22 kernels (1 of 3) and 39 kernels (2)`."""
    runs = transfer.beside
    if not runs:
        return "no kernel"
    if len(runs) > _MAX_SHOWN_RUNS:
        runs = (runs[0], Beside(transfer.count - runs[0].times, runs[-1].least, runs[-1].most))
    words = []
    for number, run in enumerate(runs):
        text = plural(run.least, "kernel") if run.least else "no kernel"
        if run.most > run.least:
            text += f" for certain, at best {run.most:,}"
        if len(runs) > 1:
            up_to = "up to " if runs is not transfer.beside and number else ""
            text = f"{up_to}{text} ({run.times:,}{'' if number else f' of {transfer.count:,}'})"
        words.append(text)
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


_MAX_SHOWN_RUNS = 3


def _ordered(old: TransferGroup, new: TransferGroup) -> str:
    """Return what orders a group now, on the side on which that changed."""
    if new.memory == "pageable" != old.memory:
        return "The reason is pageable memory."
    sides = [(old.begins, new.begins), (old.ends, new.ends)]
    changed = [now for was, now in sides if _NUMBER.sub("", was) != _NUMBER.sub("", now)]
    return " ".join(f"It runs {side}." for side in changed or [now for _, now in sides] if side)


_NUMBER = re.compile(r"\d+")


def _amount(contract: Contract, old: TransferGroup, new: TransferGroup) -> Iterator[Promise]:
    """Yield a loss if a group moves much more or has more ops."""
    unit: Unit
    limit, value, unit = _upper_limit(old.count, contract), new.count, "copies"
    message = f"{_words(new)}: {new.count} a step; by the contract {old.count}."
    if old.bytes and new.bytes * new.count > _MAX_COPY_GROWTH * old.bytes * max(old.count, 1):
        limit, value, unit = _MAX_COPY_GROWTH * old.bytes * old.count, new.bytes * new.count, "bytes"
        message = f"{_words(new)} moves {size(value)} a step; by the contract {size(old.bytes * old.count)}."
    if value > limit:
        yield Promise("lost", "amount", f"amount of {_words(old)}", message, new.line, limit, value, unit)


# -- Calls of the host --------------------------------------------------------------------------------


def _calls(
    part: Literal["sync", "allocation"], noun: str, before: Sequence[HostCall], after: Sequence[HostCall]
) -> Iterator[Promise]:
    per = "a step" if part == "sync" else "a step that has any"
    # The op counts if both recordings have ops.
    ops = all(any(call.op for call in calls) for calls in (before, after))
    keys: tuple[Callable[[HostCall], Hashable], ...] = (
        lambda call: (call.call, call.op, call.line),
        lambda call: (call.call, call.op, _function(call)),
        lambda call: (call.call, call.op if ops else ""),
    )
    matched, gone, new = pairs(sorted(before, key=_line_number), sorted(after, key=_line_number), keys)
    added = [(replace(call, count=0), call) for call in new]
    for old, other in [*matched, *((old, replace(old, count=0)) for old in gone), *added]:
        result = _result(lost=other.count > old.count, gained=other.count < old.count)
        where, more = _where(replace(other, op=other.op or other.call)), "more of " if result == "lost" else ""
        what = f"new {noun}: {where}," if other in new else f"{more}{noun} {where}:"
        message = f"{what} {other.count} {per}; by the contract {old.count}."
        yield Promise(result, part, f"{noun} {_stable(old)}", message, other.line, old.count, other.count)
    if not before and not new:
        yield Promise("kept", part, f"no {noun}", f"There is no {noun}, as in the contract.", value=0)


def _counted(name: str, before: int, after: int, contract: Contract) -> Promise:
    """Return the promise about a number of calls or ops a step."""
    limit = _upper_limit(before, contract)
    result = _result(lost=after > limit, gained=_upper_limit(after, contract) < before)
    message = f"{after:,} {name} a step; by the contract {before:,}."
    return Promise(result, "launches", name, message, "", limit, after)


def _launches(contract: Contract, now: Contract) -> Iterator[Promise]:
    yield _counted("launches", contract.launches, now.launches, contract)
    limit, value = contract.graph_launches, now.graph_launches
    if limit:
        message = f"{value} CUDA graph launches a step; by the contract {limit}."
        result = _result(lost=value < limit)
        yield Promise(result, "launches", "CUDA graph launches", message, "", limit, value, at_least=True)


def _loader(contract: Contract, now: Contract) -> Iterator[Promise]:
    if contract.loader:
        before, after = (_WORKER_ITERATOR in each.loader for each in (contract, now))
        lost = "loader workers lost: " if before > after else ""
        message = f"{lost}The DataLoader's iterator is {now.loader or 'not used'}; by the contract {contract.loader}."
        result = _result(lost=before > after, gained=after > before)
        yield Promise(result, "loader", "loader", message, value=int(before > after))


# -- Places -------------------------------------------------------------------------------------------


def _function(place: CallPlace) -> tuple[str, str]:
    """Return file and function of a place, which stay the same when lines move."""
    shown = shown_line(place.line)
    return (shown.file, shown.function) if shown else ("", "")


def _place(place: CallPlace) -> tuple[str, str]:
    return place.op, place.line


def _line_number(place: CallPlace) -> int:
    shown = shown_line(place.line)
    return int(shown.line) if shown else 0


def _upper_limit(count: int, contract: Contract) -> int:
    """Return the largest number that is within the margin of a number."""
    return count + math.floor(count * contract.margin_pct / 100)


def _words(transfer: TransferGroup) -> str:
    """Return `H2D 16.8 MB (aten::copy_, train.py:88)`."""
    amount = f" {size(transfer.bytes)}" if transfer.bytes else ""
    where = _where(transfer)
    return f"{transfer.kind}{amount}{f' ({where})' if where else ''}"


def _where(place: CallPlace) -> str:
    return ", ".join(filter(None, (place.op, place.line.rpartition(" in ")[0])))


def _stable(call: HostCall) -> str:
    """Return a name that stays the same when lines move."""
    file, function = _function(call)
    return ", ".join(dict.fromkeys(filter(None, (call.call, call.op, f"{file} in {function}" if file else ""))))


# -- Document -----------------------------------------------------------------------------------------

_TONES: Final[dict[Result, Tone]] = {"lost": "poor", "gained": "good", "unknown": "fair"}


def changes(promises: Sequence[Promise]) -> Document:
    """Return the losses and gains of a contract, and the promises that can't be judged, as a document."""
    blocks: list[Block] = []
    for result, tone in _TONES.items():
        some = [promise for promise in promises if promise.result == result]
        blocks += [Section((Text(promise.message),), f"{result}: {promise.name}", "panel", tone) for promise in some]
    kept = sum(promise.result == "kept" for promise in promises)
    blocks.append(Text(f"{plural(kept, 'promise')} kept, of {len(promises):,}.", tone="muted"))
    return Document("overlapscope contract diff", tuple(blocks))
