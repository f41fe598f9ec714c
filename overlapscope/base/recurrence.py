"""Detection of the period of a sequence of symbols, such as the kernels that a program launches over and over.

A program's work is nested: layers in a step, steps between two logs. The outermost unit that recurs is found so:

1. An anchor is a symbol, or a run of four symbols, that occurs once in each unit. A radix sort over 16-bit keys finds
the occurrences of all candidates. A candidate is an anchor if its occurrences are evenly spaced and span most of the
sequence.
2. Anchors with the same spacing belong to one level of nesting. From the widest spacing down, the first level whose
segments consist of the same symbols is the unit. A narrower level is chosen if it lacks almost nothing and marks of
iterations occur once in its units: a loop that logs every tenth step has the step as its unit.
3. Among that level's anchors, the anchor with the longest pause before it begins the unit.

All of this is linear in the length of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlapscope.base.columns import Index
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64

MIN_UNITS: Final = 3
"""Minimum units of a period."""
_MIN_UNIT_SYMBOLS: Final = 2
"""Minimum symbols of a unit. A symbol that follows itself is not a period."""
_RUN_SYMBOLS: Final = 4
"""Symbols of a run."""
_MIN_SHARE: Final = 0.5
"""Minimum share of the sequence that units cover, and of their span that lies between evenly spaced anchors."""
_MIN_LIKENESS: Final = 0.6
"""Minimum share of its symbols by which a unit at either end must resemble the typical unit."""
MIN_REGULARITY: Final = 0.7
"""Minimum regularity of a period."""
_FEW_UNITS: Final = 6
"""With fewer units, runs of symbols must be as regular as symbols, because three are evenly spaced by chance."""
_WANTED_COVERAGE: Final = 0.9
"""Share of the sequence that units should cover, even if they begin at a less clear place."""
_MIN_COMMON_SHARE: Final = 0.8
"""Minimum share of a unit's symbols that a sequence must begin with to begin within a unit."""
_MAX_LEVELS: Final = 40
_MAX_ANCHORS: Final = 64
"""Maximum anchors of a level to compare by the pauses before them."""
_SAMPLED_UNITS: Final = 64
"""Number of units that represent all units when levels are compared."""
_MAX_CELLS: Final = 1 << 22
"""Maximum size of the table of counts, units by symbols."""
_MAX_EXTRA_SHARE: Final = 0.005
"""Maximum share of its symbols that an outer unit may add to its inner units to count as a loop with a log."""
_MIN_PAUSE_SHARE: Final = 0.5
"""Minimum share of the longest pause at which a pause is equally good."""
_MIN_MARKS_PER_UNIT: Final = 1.5
"""Number of marks of a kind at which a unit holds several."""

_Keys = NDArray[np.uint16]
_Floats = NDArray[np.float64]


class Recurrence(Struct, frozen=True, eq=False):
    """Units of a sequence: unit `i` is `[starts[i], starts[i + 1])`, and the last unit ends at `end`."""

    starts: I64
    end: int
    length: int
    """Median number of symbols in a unit."""
    regular: float
    """Share of the symbols that the typical unit has as well, from 0 to 1."""

    @property
    def bounds(self) -> I64:
        """Return the starts of the units, and the end of the last."""
        return np.append(self.starts, self.end)


_Anchors = tuple[list[Index], _Floats, _Floats]
"""Places where each candidate occurs, ascending; their usual distance; and the share of the span of all its occurrences
that lies between evenly spaced ones."""


def find_recurrence(symbols: I64, pause: I64, marks: Sequence[Index] = ()) -> Recurrence | None:
    """Return the outermost period of a sequence, or None where there is none.

    Args:
        symbols: Whole numbers of at least 0, a different number for each symbol.
        pause: How clearly the program paused before each symbol. It decides where a unit begins.
        marks: For each kind of mark that stands for an iteration, the places in the sequence where it occurs, if any. A
            unit with several marks of every kind is rejected.
    """
    if len(symbols) < 2 * MIN_UNITS:
        return None
    names, runs = (symbols & 0xFFFF).astype(np.uint16), _runs(symbols)
    best: Recurrence | None = None
    for level in islice(_levels([_find_anchors(names), _find_anchors(runs)]), _MAX_LEVELS):
        if best is not None and 2 * np.median(np.diff(level[0])) > best.length:
            continue
        units = (_trimmed(places, names, runs) for places in _by_pause(level, pause))
        unit = next((unit for unit in units if unit is not None), None)
        if unit is None:
            continue
        each = [((places >= unit.starts[0]) & (places < unit.end)).sum() / len(unit.starts) for places in marks]
        if best is None:
            best = None if each and min(each) >= _MIN_MARKS_PER_UNIT else unit
        elif 1 - unit.regular <= _MAX_EXTRA_SHARE and any(
            1 / _MIN_MARKS_PER_UNIT < number < _MIN_MARKS_PER_UNIT for number in each
        ):
            best = unit
    return best


def _runs(symbols: I64) -> _Keys:
    """Return a key for the run of symbols that begins at each place; runs at the end are shorter."""
    mixed = np.zeros(len(symbols), np.uint32)
    values = symbols.astype(np.uint32) + np.uint32(1)
    for shift in range(min(_RUN_SYMBOLS, len(symbols))):
        mixed *= np.uint32(0x9E3779B1)
        mixed[: len(symbols) - shift] += values[shift:]
    mixed *= np.uint32(0x85EBCA6B)
    return (mixed >> np.uint32(16)).astype(np.uint16)


def _find_anchors(keys: _Keys) -> _Anchors:
    """Return the keys that occur at even distances over most of the sequence."""
    places = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=1 << 16)
    count = counts[counts > 0]
    first = np.cumsum(count) - count
    last = first + count - 1
    distance = np.diff(places, append=0).astype(np.int32)
    # The distance after the last occurrence leads to another key.
    distance[last] = 0
    span = places[last] - places[first]
    spacing = span / np.maximum(count - 1, 1)
    # Long interruptions make the average too large.
    usual = distance <= np.repeat((3 * spacing).astype(np.int32), count)
    number = np.add.reduceat(usual, first, dtype=np.int64) - 1
    spacing = np.add.reduceat(distance * usual, first, dtype=np.int64) / np.maximum(number, 1)
    near = distance >= np.repeat((spacing / 2).astype(np.int32), count)
    near &= distance <= np.repeat((spacing * 1.5).astype(np.int32), count)
    even = np.add.reduceat(distance * near, first, dtype=np.int64) / np.maximum(span, 1)
    kept = (count >= MIN_UNITS) & (even >= _MIN_SHARE) & (span + spacing >= _MIN_SHARE * len(keys)) & (spacing > 1)
    sides = zip(first[kept].tolist(), (last[kept] + 1).tolist(), strict=True)
    return [places[begin:end] for begin, end in sides], spacing[kept], even[kept]


def _levels(candidates: Sequence[_Anchors]) -> Iterator[list[I64]]:
    """Yield the occurrences of the most even anchors of each spacing, from the widest spacing to the narrowest."""
    places = [each for anchors, _, _ in candidates for each in anchors]
    if not places:
        return
    spacing = np.concatenate([spacing for _, spacing, _ in candidates])
    even = np.concatenate([even for *_, even in candidates])
    order = np.argsort(-spacing, kind="stable")
    # Spacings within 5% of the next wider spacing belong to the same level.
    widths = spacing[order]
    edges = np.flatnonzero(np.append(True, widths[1:] < 0.95 * widths[:-1]))
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        of_level = order[begin:end]
        best = of_level[even[of_level] >= even[of_level].max() - 0.01][:_MAX_ANCHORS]
        yield [places[row].astype(np.int64) for row in best.tolist()]


def _by_pause(level: Sequence[I64], pause: I64) -> list[I64]:
    """Return the first of the anchors before which the program pauses longest, and the first of all anchors."""
    ordered = sorted(level, key=lambda places: int(places[0]))
    pauses = [float(np.median(pause[places])) for places in ordered]
    longest = _MIN_PAUSE_SHARE * max(pauses)
    return [next(places for places, length in zip(ordered, pauses, strict=True) if length >= longest), ordered[0]]


def _trimmed(places: I64, names: _Keys, runs: _Keys) -> Recurrence | None:
    """Return the units between anchors, without unlike units at either end; None where the units differ."""
    total = len(names)
    length = int(np.median(np.diff(places)))
    cut = int(places[0])
    bounds = _whole(places, length, total)
    # A unit is not given up for a better beginning if that leaves too much out.
    much = bounds[-1] - bounds[0] < _WANTED_COVERAGE * total and 0 < cut < length <= places[1]
    if much and (names[:cut] == names[places[1] - cut : places[1]]).mean() >= _MIN_COMMON_SHARE:
        bounds = _whole(bounds - cut, length, total)
    if length < _MIN_UNIT_SYMBOLS or len(bounds) <= MIN_UNITS:
        return None
    alike = _likeness(bounds, names)
    good = np.flatnonzero(alike >= _MIN_LIKENESS)
    if len(good) < MIN_UNITS:
        return None
    bounds = bounds[good[0] : good[-1] + 2]
    shares = alike[good[0] : good[-1] + 1]
    regular = float((shares * np.diff(bounds)).sum() / (bounds[-1] - bounds[0]))
    if regular < MIN_REGULARITY or bounds[-1] - bounds[0] < _MIN_SHARE * total:
        return None
    if len(bounds) <= _FEW_UNITS and _likeness(bounds, runs).mean() < _MIN_LIKENESS:
        return None
    return Recurrence(bounds[:-1], int(bounds[-1]), length, regular)


def _whole(places: I64, length: int, total: int) -> I64:
    """Return the bounds of the units that begin at some places; the last one may be cut off by the end."""
    end = int(places[-1]) + length
    return np.append(places, end) if end <= total else places


def _likeness(bounds: I64, keys: _Keys) -> _Floats:
    """Return the share of each unit's keys that the typical unit has too.

    The typical unit has each key as often as the median of evenly spread units.
    """
    units = len(bounds) - 1
    used = np.bincount(keys[bounds[0] : bounds[-1]], minlength=1 << 16) > 0
    kinds, number = int(used.sum()), (np.cumsum(used) - 1).astype(np.int32)
    sample = distinct(np.linspace(0, units - 1, min(units, _SAMPLED_UNITS)).astype(np.int64))
    typical = np.median([_counts(bounds[row : row + 2], keys, number, kinds)[0] for row in sample], axis=0)
    whole = typical.sum()
    alike = np.empty(units)
    at_once = max(1, _MAX_CELLS // kinds)
    for begin in range(0, units, at_once):
        counts = _counts(bounds[begin : begin + at_once + 1], keys, number, kinds)
        common = np.minimum(counts, typical).sum(axis=1)
        alike[begin : begin + at_once] = common / np.maximum(counts.sum(axis=1), whole)
    return alike


def _counts(bounds: I64, keys: _Keys, number: NDArray[np.int32], kinds: int) -> NDArray[Any]:
    """Count each key in each of some units."""
    units = len(bounds) - 1
    cell = np.repeat(np.arange(units) * kinds, np.diff(bounds)) + number[keys[bounds[0] : bounds[-1]]]
    return np.bincount(cell, minlength=units * kinds).reshape(units, kinds)
