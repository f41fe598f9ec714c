"""A diff as GitHub markdown, for a comment on a pull request: the answer first, what lies behind it folded away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overlapscope.compare.difference import DeviceDiff, Diff
from overlapscope.views.diff import tables
from overlapscope.views.diff.rows import MOST
from overlapscope.views.diff.words import device_title, standing
from overlapscope.views.markdown import escape, table_lines
from overlapscope.views.old_tables import Table

MOST_CHARACTERS = 60_000
"""A comment on GitHub holds no more than 65,536; devices that do not fit are counted."""


def render(diff: Diff, *, verbose: bool = False) -> str:
    """The diff as one markdown document; with `verbose` however long it is."""
    text = "\n".join(_head(diff))
    several = len(diff.devices) > 1
    left_out = []
    for device in diff.devices:
        section = "\n".join(_device(diff, device, several, verbose))
        if several and not verbose and len(text) + len(section) > MOST_CHARACTERS:
            left_out.append(device_title(diff, device))
        else:
            text += f"\n{section}"
    if left_out:
        text += f"\nLeft out, as there is no room: {escape(', '.join(left_out[:MOST]))}"
        text += f" and {len(left_out) - MOST} more.\n" if len(left_out) > MOST else ".\n"
    return text.rstrip("\n") + "\n"


def _head(diff: Diff) -> Iterator[str]:
    word = standing(diff).word
    yield "## overlapscope diff"
    yield ""
    yield f"**{word.capitalize()}.** {escape(diff.verdict)}"
    yield ""
    doubts = tables.doubts(diff)
    if doubts:
        yield "Compare with care:"
        yield ""
        yield from (f"- {escape(' '.join(doubt))}" for doubt in doubts)
        yield ""
    yield from _folded([tables.sides(diff)])
    if len(diff.devices) > 1:
        yield from _titled(tables.summary(diff))


def _device(diff: Diff, device: DeviceDiff, several: bool, verbose: bool) -> Iterator[str]:
    if several:
        yield f"### {escape(device_title(diff, device))}"
        yield ""
        yield escape(device.verdict)
        yield ""
    answers = [tables.buckets(device), *tables.causes(device, verbose=verbose)]
    for table in answers:
        yield from _titled(table)
    yield from _folded(tables.details(device, verbose=verbose))


def _titled(table: Table) -> Iterator[str]:
    if table.rows:
        yield f"**{escape(table.title)}**"
        yield ""
        yield from table_lines(tables.untitled(table))


def _folded(shown: Iterable[Table]) -> Iterator[str]:
    for table in shown:
        if table.rows:
            # Markdown inside of HTML needs the empty lines.
            yield f"<details><summary>{escape(table.title)}</summary>"
            yield ""
            yield from table_lines(tables.untitled(table))
            yield "</details>"
            yield ""
