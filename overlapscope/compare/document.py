"""Document of a diff: the answer, the compared traces, warnings, and each device."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from overlapscope.base.words import clean, listed
from overlapscope.compare import tables
from overlapscope.compare.difference import DeviceDiff, Diff
from overlapscope.compare.words import device_title, doubt_words, side_name, standing
from overlapscope.documents.model import (
    Block,
    Document,
    Heading,
    Items,
    Room,
    Section,
    Span,
    Text,
    brief,
    detail,
    panel,
)

COMMENT_CHARACTERS = 60_000
"""Size limit of a comment; GitHub refuses more than 65,536 characters."""


_MOST_DOUBTS = 3
"""Maximum number of warnings in the short form, the gravest first."""


def document(diff: Diff, *, verbose: bool = False, room: Room | None = None) -> Document:
    """Return the document of a diff.

    Args:
        diff: The comparison.
        verbose: Whether to show rows that did not change.
        room: Room in a comment. Details are folded, and devices that don't fit even in the short form are listed.
    """
    title = f"{side_name(diff.before, diff.after)} → {side_name(diff.after, diff.before)}"
    blocks: list[Block] = [Heading(f"overlapscope diff: {title}", 1), *head(diff)]
    several = len(diff.devices) > 1
    devices = []
    for device in diff.devices:
        shown = tuple(of_device(device, verbose, several=several, folded=room is not None))
        name = device_title(diff, device)
        verdict = Text((Span(f"{name}: {clean(device.verdict)}", strong=True),))
        devices.append(Section((verdict, *shown), name, "article") if several else Section(shown))
    kept = len(devices)
    if room is not None and several and not verbose:
        kept = room.less(blocks).fitting([Section(brief(Document("", (section,))).blocks) for section in devices])
    blocks += devices[:kept]
    if omitted := [section.title for section in devices[kept:]]:
        blocks.append(Text(f"Left out for lack of space: {listed(omitted, tables.MOST)}."))
    return Document(f"overlapscope diff: {title}", tuple(blocks))


def head(diff: Diff) -> Iterator[Block]:
    """Yield the answer, the compared traces, warnings, and a row for each device if there are several."""
    word, tone = standing(diff)
    yield Section((Text(clean(diff.verdict), tone=tone, badge=word),), kind="verdict", id="compare")
    yield tables.sides(diff)
    if diff.doubts:
        warnings = tuple((f"{what}\n", Span(holds, tone="muted")) for what, holds in map(doubt_words, diff.doubts))
        yield panel("Warnings", Items(warnings[:_MOST_DOUBTS], sign="!"), tone="fair")
        if more := warnings[_MOST_DOUBTS:]:
            yield from detail("more warnings", [panel("More warnings", Items(more, sign="!"), tone="fair")])
    if len(diff.devices) > 1:
        yield tables.summary(diff)


def of_device(device: DeviceDiff, verbose: bool, *, several: bool, folded: bool) -> Iterator[Block]:
    """Yield the figures of a device.

    Buckets, causes and findings are always shown for a single device. With several, everything is a detail.
    """
    evidence = [tables.buckets(device), tables.phases(device), *tables.causes(device, verbose=verbose)]
    evidence.append(tables.findings(device, verbose=verbose))
    for table in (*(each for each in evidence if each.rows), *tables.details(device, verbose=verbose)):
        answers = table in evidence
        block: Block = table
        if folded and not answers:
            block = Section((replace(table, title=""),), table.title, folded=True)
        if several or not answers:
            yield from detail(table.id or table.title.lower(), [block])
        else:
            yield block
