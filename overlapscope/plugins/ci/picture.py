"""Image of a step before and after a change, as PNG: a row for each stream, for exposed copies and for idle time."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.words import unit_for
from overlapscope.documents.colors import palette
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from overlapscope.analysis.strip import Strip

Pixels = NDArray[np.uint8]
_Colors = dict[str, NDArray[np.float64]]

WIDTH: Final = 1000
"""Width of the longer step, in pixels; `Strip` needs as many slices."""
_LEFT, _MARGIN, _ROW, _GAP = 160, 16, 20, 6
_SCALE: Final = 2
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
    """Return a PNG of strips with `WIDTH` slices, below each other and on the same scale.

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
        width = max(1, WIDTH * span // longest)
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
        dots = _DOTS[max(0, _LETTERS.find(letter))].T.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
        part = row[2 : 2 + dots.shape[0], left : left + dots.shape[1]]
        part[dots[: part.shape[0], : part.shape[1]] > 0] = color
        left += dots.shape[1] + _SCALE
    return left


def _blank(height: int, colors: _Colors) -> Pixels:
    row = np.empty((height, _LEFT + WIDTH + _MARGIN, 3), np.uint8)
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
