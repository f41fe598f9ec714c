"""Drawing of a timeline strip: a line per stream, a character per slice of time.

The character shows the kind that ran longest in its slice. Shades of compute, and upper or lower case of all else, show
how full the slice was. Color only repeats the characters.
"""

from __future__ import annotations

from overlapscope.analysis.strip import Lane, Strip
from overlapscope.base.words import Unit, clean, plural
from overlapscope.documents.strip import LABEL_WIDTH, UNICODE, Drawing, Glyphs, Line
from overlapscope.trace.model import Kind

LETTERS = {Kind.COMM: "n", Kind.H2D: "h", Kind.D2H: "d", Kind.P2P: "p", Kind.OTHER: "o"}
LEGEND = {Kind.COMM: "comm", Kind.H2D: "h2d", Kind.D2H: "d2h", Kind.P2P: "p2p", Kind.OTHER: "memset/D2D"}


def draw(strip: Strip, unit: Unit, glyphs: Glyphs = UNICODE, *, beside_plain: bool = False) -> Drawing:
    """Return the strip as lines with a character per slice, plus `LABEL_WIDTH`.

    `beside_plain` is whether the figures beside it are of the program without the profiler.
    """
    width = len(strip.slice_ns)
    begin, end = "0", unit.text(strip.end_ns - strip.start_ns)
    gap = max(1, width - len(begin) - len(end) - 2)
    present = {kind for lane in strip.lanes for kind in Kind if lane.busy_ns[kind].any()}
    legend = [f"{glyphs.compute} compute"] if Kind.COMPUTE in present else []
    legend += [f"{LETTERS[kind].upper()} {LEGEND[kind]}" for kind in LETTERS if kind in present]
    if present - {Kind.COMPUTE}:
        legend.append("lower case: < half")
    left_out = f" ({plural(strip.left_out, 'stream')} with less work not shown)" if strip.left_out else ""
    what = clean(strip.label, 60) if strip.label else "all that was recorded"
    if strip.label and beside_plain:
        what += " as recorded"
    if strip.of > 1:
        what += f" (the median of {strip.of})"
    return Drawing(
        title=f"Timeline of {what}{left_out}",
        lanes=tuple(_lane(lane, strip, glyphs) for lane in strip.lanes),
        totals=(
            _level("exposed copy", strip.exposed_copy_ns.tolist(), strip, glyphs),
            _level("idle", strip.idle_ns.tolist(), strip, glyphs),
        ),
        scale=f"{'':<{LABEL_WIDTH}}{begin} {glyphs.rule * gap} {end}",
        legend=", ".join(legend),
    )


def _lane(lane: Lane, strip: Strip, glyphs: Glyphs) -> Line:
    characters: list[str] = []
    kinds: list[Kind | None] = []
    for busy, length in zip(lane.busy_ns.T.tolist(), strip.slice_ns.tolist(), strict=True):
        most = max(busy)
        if most == 0:
            characters.append(glyphs.empty)
            kinds.append(None)
            continue
        kind = Kind(busy.index(most))
        full = min(1.0, sum(busy) / length)
        if kind is Kind.COMPUTE:
            characters.append(_step(glyphs.compute, full))
        else:
            characters.append(LETTERS[kind].upper() if full >= 0.5 else LETTERS[kind])
        kinds.append(kind)
    return Line(f"stream {lane.stream}" if lane.stream >= 0 else "no stream", "".join(characters), tuple(kinds))


def _level(label: str, values: list[int], strip: Strip, glyphs: Glyphs) -> Line:
    text = "".join(
        _step(glyphs.level, value / length) if value else " "
        for value, length in zip(values, strip.slice_ns.tolist(), strict=True)
    )
    return Line(label, text, (None,) * len(text))


def _step(characters: str, full: float) -> str:
    """Return the character for a fullness; only slices that are full to within a step get the last."""
    return characters[min(len(characters) - 1, int(full * len(characters)))]
