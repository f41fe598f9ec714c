"""What a diff consists of when it is shown: the answer, what is compared and how well it can be, and each device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from overlapscope.base.words import clean, listed
from overlapscope.compare import tables
from overlapscope.compare.charts import before_after
from overlapscope.compare.difference import DeviceDiff, Diff
from overlapscope.compare.words import device_title, doubt_words, side_name, standing
from overlapscope.documents.model import Block, Chart, Document, Heading, Items, Room, Section, Span, Text, panel
from overlapscope.documents.table import Table

COMMENT_CHARACTERS = 60_000
"""A comment on GitHub holds no more than 65,536."""


def document(diff: Diff, *, verbose: bool = False, room: Room | None = None) -> Document:
    """The diff as it is read from top to bottom.

    A comment has only so much `room`: what lies behind the answer is folded away there, and devices that do not fit are
    counted.
    """
    title = f"{side_name(diff.before, diff.after)} → {side_name(diff.after, diff.before)}"
    blocks = [*_head(diff, title)]
    several = len(diff.devices) > 1
    devices = []
    for number, device in enumerate(diff.devices):
        shown = tuple(_device(device, number, verbose, folded=room is not None))
        name = device_title(diff, device)
        said = Text((Span(f"{name}: {clean(device.verdict)}", strong=True),))
        devices.append(Section((said, *shown), name, "article") if several else Section(shown))
    kept = len(devices)
    if room is not None and several and not verbose:
        kept = room.less(blocks).fitting(devices)
    blocks += devices[:kept]
    if left := [section.title for section in devices[kept:]]:
        blocks.append(Text(f"Left out, as there is no room: {listed(left, tables.MOST)}."))
    return Document(f"overlapscope diff: {title}", tuple(blocks))


def _head(diff: Diff, title: str) -> Iterator[Block]:
    stands = standing(diff)
    yield Heading(f"overlapscope diff: {title}", 1)
    yield Section((Text(clean(diff.verdict), tone=stands.tone, badge=stands.word),), kind="verdict")
    yield tables.sides(diff)
    if diff.doubts:
        said = tuple((f"{what}\n", Span(holds, tone="muted")) for what, holds in map(doubt_words, diff.doubts))
        yield panel("Compare with care", Items(said, sign="!"), tone="fair")
    if len(diff.devices) > 1:
        yield tables.summary(diff)


def _device(device: DeviceDiff, number: int, verbose: bool, *, folded: bool) -> Iterator[Block]:
    yield Chart(f"buckets-{number}", "Before and after", partial(before_after, device.figures), wide=True)
    yield tables.buckets(device)
    yield from tables.causes(device, verbose=verbose)
    for table in tables.details(device, verbose=verbose):
        yield _folded(table) if folded else table


def _folded(table: Table) -> Section:
    return Section((Table("", table.columns, table.rows, table.note, table.total),), table.title, folded=True)
