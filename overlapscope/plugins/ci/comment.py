"""Comment of a check on a pull request: the verdict, the change against the base branch, a picture, and how to see it.

All text of recordings, branches and files passes through `render.markdown`, which shows it literally.
"""

from __future__ import annotations

import filecmp
import re
import shlex
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.output import tell
from overlapscope.base.words import clean, listed, unit_for
from overlapscope.budgets import document as check_document
from overlapscope.budgets import words
from overlapscope.documents.colors import palette
from overlapscope.documents.model import Block, Code, Document, Heading, Items, Room, Section, Span, Text, Words, brief
from overlapscope.errors import OverlapscopeError
from overlapscope.render import markdown
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from overlapscope.analysis import TraceAnalysis
    from overlapscope.analysis.strip import Strip
    from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult


MAX_BYTES: Final = 65_536
"""Size limit of a comment on GitHub, in characters; GitLab's is larger."""
_DETAILS_BYTES: Final = 24_000
"""Size limit of the check, and of the comparison."""
_MAX_FAILURES: Final = 5
_MAX_SENTENCE_LENGTH: Final = 400
"""Maximum length of a sentence that all of the check has in full."""
_MAX_NAME_LENGTH: Final = 100
_ADDRESS: Final = re.compile(r"https?://[\w.:/#?=&%+-]+")
_MARKER: Final = "<!-- overlapscope:{} -->"


class CommentedJob(NamedTuple):
    """The job that a comment is about."""

    base: str = "the base branch"
    """Name of the branch that the change is compared with."""
    recording: str = ""
    """Command that gets the recording; empty if it is there."""
    artifacts: str = ""
    """Address of the page with the picture."""
    conclusion: str = ""
    """Sentence on the check of the branch itself, if this one judged by the limits of the base branch."""


def marker(name: str) -> str:
    """Return the first line of a comment, by which it is found again."""
    return _MARKER.format(re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:_MAX_NAME_LENGTH].strip("-"))


def write(
    traces: Sequence[str], check: Path, before: str | None, name: str, job: CommentedJob
) -> tuple[str, bytes | None]:
    """Return the comment, and a picture of the step before and after.

    Args:
        traces: Recordings that were checked.
        check: File of the check's result. If it can't be read, the comment states that nothing was checked.
        before: Recording of the base branch.
        name: Name that sets several comments apart.
        job: The job that checked.
    """
    from overlapscope.inputs import read_check

    try:
        result = read_check(check)
    except (OverlapscopeError, OSError) as error:
        tell(f"overlapscope: {error}")
        result = None
    after_sides = _analyses(traces)
    judged = {PurePath(source).name for source in result.sources} if result else set()
    if judged and after_sides and judged != {PurePath(side.result.source).name for side in after_sides}:
        tell(f"overlapscope: {check}: is the check of other recordings: {listed(map(clean, sorted(judged)), 4)}.")
        result = None
    before_sides = _analyses([before]) if before is not None else []
    picture = _picture(before_sides, after_sides)
    commands = [job.recording, shlex.join(["overlapscope", "check", *traces])]
    commands += [shlex.join(["overlapscope", "diff", before, *traces[:1]])] if before_sides and before else []
    first = [*_verdict(result), *_reservations(traces, before, job)]
    is_linked = picture is not None and _ADDRESS.fullmatch(job.artifacts) is not None
    link = f"[Picture of the step before and after]({job.artifacts})\n\n" if is_linked else ""
    to_see = Code("\n".join(map(clean, filter(None, commands))), language="sh")
    last: list[Block] = [Section((to_see,), "To see it on your machine")]
    details: list[Block] = []
    if result is not None:
        page = check_document.page(result, Room(markdown.lines, _DETAILS_BYTES), folded=True)
        details = [Section(page.blocks[1:], "All of the check", folded=True)]
    text = ""
    for comparison in _comparisons(before_sides, after_sides, job):
        text = f"{marker(name)}\n{_drawn([*first, *comparison])}\n{link}{_drawn([*last, *details])}"
        if len(text.encode("utf-8", "replace")) <= MAX_BYTES:
            return text, picture
    return text.removesuffix(_drawn(details)), picture


def _drawn(blocks: Sequence[Block]) -> str:
    return markdown.render(Document("", tuple(blocks)))


def _analyses(paths: Sequence[str]) -> list[TraceAnalysis]:
    """Return the analyses of some recordings; none, with a message, if one can't be read."""
    from overlapscope.analysis import analyze_trace
    from overlapscope.inputs import read_recordings

    try:
        return [analyze_trace(trace) for trace in read_recordings(paths)]
    except (OverlapscopeError, OSError) as error:
        tell(f"overlapscope: {error}")
        return []


def _picture(before: Sequence[TraceAnalysis], after: Sequence[TraceAnalysis]) -> bytes | None:

    sides = [("before", before), ("after", after)]
    shown = [(name, strip) for name, side in sides for strip in [_strip(side)] if strip is not None]
    return draw(shown) if shown else None


def _strip(side: Sequence[TraceAnalysis]) -> Strip | None:
    """Return the strip of the first device; None if there is none."""
    from overlapscope.analysis.strip import measure

    devices = [device for analysis in side for device in analysis.devices if device.result.span_ns > 0]
    return measure(devices[0].timeline, devices[0].result, slices=STRIP_WIDTH_PX, lanes=4) if devices else None


def _reservations(traces: Sequence[str], before: str | None, job: CommentedJob) -> Iterator[Block]:
    """Yield what keeps the verdict from being about the change."""
    if job.conclusion:
        yield Text(job.conclusion)
    with suppress(OSError):
        if before is not None and len(traces) == 1 and filecmp.cmp(traces[0], before, shallow=False):
            yield Text(
                (
                    "The recording is that of ",
                    Span(clean(job.base, _MAX_NAME_LENGTH)),
                    ". The change was not recorded, so "
                    "this says nothing about it: record the program again, and commit the recording.",
                ),
                strong=True,
            )


# -- Text -------------------------------------------------------------------------------------------


def _verdict(result: CheckResult | None) -> Iterator[Block]:
    if result is None:
        yield Heading("overlapscope check: nothing was checked", 1)
        yield Text("The recording, or the check of it, failed; the job's log says why. This is no pass.")
        return
    yield Heading(f"overlapscope check: {words.OUTCOME[result.outcome]}", 1)
    yield Text(clean(words.prose(result.summary), _MAX_SENTENCE_LENGTH))
    failures = [verdict for verdict in result.verdicts if words.counted(verdict)]
    yield Items(tuple(_failure(verdict) for verdict in failures[:_MAX_FAILURES]))
    if len(failures) > _MAX_FAILURES:
        yield Text(f"{len(failures) - _MAX_FAILURES:,} more are listed below.")


def _failure(verdict: BudgetVerdict) -> Words:
    """Return what failed, where, and what to do."""
    reason = verdict.reasons[0] if verdict.reasons else None
    where = words.name(verdict.where) if verdict.where else words.within(reason) if reason else ""
    advice = words.prose(reason.advice.split("\n")[0]) if reason else ""
    lines = [
        clean(words.prose(verdict.message), _MAX_SENTENCE_LENGTH),
        f"At {where}." if where else "",
        clean(advice, _MAX_SENTENCE_LENGTH),
    ]
    return (Span(words.name(verdict.budget), strong=True), *(Span(f"\n{line}") for line in lines if line))


def _comparisons(
    before: Sequence[TraceAnalysis], after: Sequence[TraceAnalysis], job: CommentedJob
) -> Iterator[list[Block]]:
    """Yield what changed against the base branch: first in full, then shorter, at last in a sentence."""
    branch = Span(clean(job.base, _MAX_NAME_LENGTH), strong=True)
    if not before or not after:
        missing = "this change" if before else "the base branch"
        yield [Text((f"There is no readable recording of {missing}, so nothing is compared with ", branch, "."))]
        return
    from overlapscope.compare.diff import diff
    from overlapscope.compare.document import document
    from overlapscope.report.model import build

    title = Heading("Against the base branch", 2)
    try:
        changes = diff(build(before, replayed=False), build(after, replayed=False))
    except OverlapscopeError as error:
        yield [title, Text(clean(str(error), words.PROSE_LIMIT))]
        return
    whole = document(changes, room=Room(markdown.lines, _DETAILS_BYTES))
    beside = Text(("Before is ", branch, ", after is this change."))
    for each in (whole, brief(whole)):
        # Its heading names two files.
        verdict, *tables = each.blocks[1:]
        yield [title, verdict, beside, Section(tuple(tables), "What changed", folded=True)]
    yield [title, Text(clean(changes.verdict, words.PROSE_LIMIT))]


# -- The picture, as PNG: a row for each stream, for exposed copies and for idle time ----------------


Pixels = NDArray[np.uint8]
_Colors = dict[str, NDArray[np.float64]]

STRIP_WIDTH_PX: Final = 1000
"""Width of the longer step, in pixels; `Strip` needs as many slices."""
_LEFT, _MARGIN, _ROW, _GAP = 160, 16, 20, 6
_PIXELS_PER_DOT: Final = 2
"""Pixels per dot of the letters."""
_COLORS: Final = {
    Kind.COMPUTE: ("compute", "compute"),
    Kind.COMM: ("communication", "comm"),
    Kind.H2D: ("copy to device", "h2d-pinned"),
    Kind.D2H: ("copy to host", "d2h-pinned"),
    Kind.P2P: ("copy between devices", "p2p"),
    Kind.OTHER: ("other memory work", "other"),
}
"""Name and color of each kind of op."""
_LETTERS: Final = " .,:-0123456789abcdefghijklmnopqrstuvwxyz"
_DOTS: Final = np.unpackbits(
    np.frombuffer(
        bytes.fromhex(
            "0000000000 0060600000 0050300000 0000140000 0808080808 3e5149453e 00427f4000 7249494946 2141494d33"
            "1814127f10 2745454539 3c4a494931 4121110907 3649494936 464949291e 2054547840 7f28444438 3844444428"
            "384444287f 3854545418 00087e0902 18a4a49c78 7f08040478 00447d4000 2040403d00 7f10284400 00417f4000"
            "7c04780478 7c08040478 3844444438 fc18242418 18242418fc 7c08040408 4854545424 04043f4424 3c4040207c"
            "1c2040201c 3c4030403c 4428102844 4c9090907c 4464544c44"
        ),
        np.uint8,
    ).reshape(-1, 5, 1),
    axis=2,
    bitorder="little",
)
"""Dots of each letter, of shape (letters, 5 columns, 8 rows). The picture needs no others, since it has no names."""


def draw(sides: list[tuple[str, Strip]]) -> bytes:
    """Return a PNG of strips with `STRIP_WIDTH_PX` slices, below each other and on the same scale.

    Args:
        sides: Each strip with its name, in lower case: `before`.
    """
    colors = {name: np.array([*bytes.fromhex(color[1:])], np.float64) for name, color in palette(dark=False).items()}
    longest = max(strip.span_ns for _, strip in sides)
    shown = {kind for _, strip in sides for lane in strip.lanes for kind in Kind if lane.busy_ns[kind].any()}
    legend = [_COLORS[kind] for kind in Kind if kind in shown]
    rows = [_legend([*legend, ("copy alone", "exposed-copy"), ("idle", "idle")], colors)]
    for name, strip in sides:
        span = strip.span_ns
        rows.append(_titled(f"{name}: {unit_for(span).text(span)}{' a step' if strip.extent.label else ''}", colors))
        width = max(1, STRIP_WIDTH_PX * span // longest)
        for lane in strip.lanes:
            kind = lane.busy_ns.argmax(axis=0)
            by_kind = np.array([colors[_COLORS[each][1]] for each in Kind])[kind]
            label = f"stream {lane.stream}" if lane.stream >= 0 else "no stream"
            rows.append(_row(label, by_kind, lane.busy_ns.sum(axis=0) / strip.slice_ns, width, colors))
        for label, color, time in (
            ("copy alone", "exposed-copy", strip.exposed_copy_ns),
            ("idle", "idle", strip.idle_ns),
        ):
            rows.append(
                _row(label, np.broadcast_to(colors[color], (len(time), 3)), time / strip.slice_ns, width, colors)
            )
    gap = _blank(_GAP, colors)
    return _png(np.concatenate([gap, *(part for row in rows for part in (row, gap))]))


def _row(label: str, color: NDArray[np.float64], full: NDArray[np.float64], width: int, colors: _Colors) -> Pixels:
    """Return a row of the picture: its label, and for each slice a column, which is faint if it isn't full."""
    row = _blank(_ROW, colors)
    _write(row, label, _MARGIN, colors["text"])
    row[:, _LEFT : _LEFT + width] = colors["grid"]
    slices = np.arange(width) * len(full) // width
    share = np.clip(full, 0, 1)[slices, None]
    mixed = colors["grid"] + (color[slices] - colors["grid"]) * share
    row[:, _LEFT : _LEFT + width] = np.rint(mixed).astype(np.uint8)
    return row


def _titled(text: str, colors: _Colors) -> Pixels:
    row = _blank(2 * _ROW, colors)
    _write(row[_ROW:], text, _MARGIN, colors["text"])
    return row


def _legend(entries: list[tuple[str, str]], colors: _Colors) -> Pixels:
    row, left = _blank(_ROW, colors), _MARGIN
    for name, color in entries:
        row[3:17, left : left + 14] = colors[color]
        left = _write(row, name, left + 20, colors["text"]) + 2 * _MARGIN
    return row


def _write(row: Pixels, text: str, left: int, color: NDArray[np.float64]) -> int:
    """Write text into a row, and return where it ends."""
    for letter in text:
        dots = _DOTS[max(0, _LETTERS.find(letter))].T.repeat(_PIXELS_PER_DOT, axis=0).repeat(_PIXELS_PER_DOT, axis=1)
        part = row[2 : 2 + dots.shape[0], left : left + dots.shape[1]]
        part[dots[: part.shape[0], : part.shape[1]] > 0] = color
        left += dots.shape[1] + _PIXELS_PER_DOT
    return left


def _blank(height: int, colors: _Colors) -> Pixels:
    row = np.empty((height, _LEFT + STRIP_WIDTH_PX + _MARGIN, 3), np.uint8)
    row[:] = colors["panel"]
    return row


def _png(pixels: Pixels) -> bytes:
    """Return an image of shape (height, width, 3) as PNG (https://www.w3.org/TR/png-3/)."""
    height, width, _ = pixels.shape
    # Each line begins with its filter; 0 is none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
