"""Documents of a contract, and of the changes from one to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.base.words import NOTHING, plural, size
from overlapscope.contracts.compare import Promise
from overlapscope.contracts.model import Beside, CallPlace, Contract, HostCall, TransferGroup
from overlapscope.documents import table
from overlapscope.documents.model import Block, Document, Section, Text
from overlapscope.documents.table import Column, Table, Tone


def shown(contract: Contract) -> Document:
    """Return a contract as a page."""
    return Document("overlapscope contract", tuple(_blocks(contract)))


def _blocks(contract: Contract) -> Iterator[Block]:
    yield Text(
        f"A typical of {plural(contract.steps, 'step')}: {contract.kernels:,} kernels, "
        f"{contract.launches:,} launches, {contract.graph_launches:,} of them of CUDA graphs. "
        f"Numbers may change by {contract.margin_pct}%."
    )
    for sentence in (contract.not_promised,) if contract.not_promised else contract.unknown:
        yield Text(sentence, "fair")
    for title, transfers in (("Copies", contract.copies), ("Collectives", contract.collectives)):
        if transfers:
            yield _transfers(title, transfers)
    for title, calls in (("Host waits", contract.syncs), ("Allocations", contract.allocations)):
        if calls:
            yield _calls(title, calls)
    if contract.loader:
        yield Text(f"DataLoader: {contract.loader}.")


def _transfers(title: str, transfers: Sequence[TransferGroup]) -> Table:
    columns = (
        table.words(title, heads=True),
        table.words("at", flexible=True),
        Column("a step"),
        Column("beside kernels"),
        table.words("runs", flexible=True),
    )
    lines = (
        (
            f"{transfer.kind} {size(transfer.bytes or None)} {transfer.memory}".rstrip(),
            _place(transfer),
            f"{transfer.count:,}",
            ", ".join(map(_run, transfer.beside)),
            "; ".join(filter(None, (transfer.begins, transfer.ends))) or NOTHING,
        )
        for transfer in transfers
    )
    return Table(title, columns, table.rows(lines))


def _calls(title: str, calls: Sequence[HostCall]) -> Table:
    columns = (table.words(title, heads=True), table.words("at", flexible=True), Column("a step"))
    return Table(title, columns, table.rows((call.call, _place(call), f"{call.count:,}") for call in calls))


def _place(place: CallPlace) -> str:
    return ", ".join(filter(None, (place.op, place.line))) or NOTHING


def _run(run: Beside) -> str:
    """Return `2 x 14 to 20`."""
    times = f"{run.times:,} x " if run.times > 1 else ""
    return f"{times}{run.least:,}" + (f" to {run.most:,}" if run.most > run.least else "")


_TONES: dict[str, Tone] = {"lost": "poor", "gained": "good", "unknown": "fair"}


def changes(promises: Sequence[Promise]) -> Document:
    """Return the losses and gains of a contract, and the promises that can't be judged."""
    blocks: list[Block] = []
    for result, tone in _TONES.items():
        some = [promise for promise in promises if promise.result == result]
        blocks += [Section((Text(promise.message),), f"{result}: {promise.name}", "panel", tone) for promise in some]
    kept = sum(promise.result == "kept" for promise in promises)
    blocks.append(Text(f"{plural(kept, 'promise')} kept, of {len(promises):,}.", tone="muted"))
    return Document("overlapscope contract diff", tuple(blocks))
