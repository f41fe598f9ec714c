"""Exact conversion of microseconds with decimals to integer nanoseconds, and a test for impossible times.

Numbers of untyped JSON are read here too, in time proportional to the length of their text, however large the exponent.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.clock import NS_PER_S
from overlapscope.trace.model import I64, Bool

UNREADABLE = np.iinfo(np.int64).min
"""Stands for a time that is missing, not finite, or too large for 64 bits."""

_LARGEST_US = 4e15
"""Over a century since the epoch. No recording has a larger time, and a base time can be added without overflow."""

DOUBLES_BELOW_US = 2.0**43
"""From this value, the distance between doubles exceeds one nanosecond."""

_SMALL_US = 2.0**32
"""Below this value, a nanosecond is much larger than the error of a multiplication."""

_SLACK_NS = 60 * NS_PER_S
_LONGEST_SLACK_NS = 10 * NS_PER_S
_GAP_NS = 600 * NS_PER_S
LARGEST_TOTAL_NS = 1 << 56
"""Maximum total duration of a recording: two years. Any sums of it fit 64 bits."""


def to_ns(microseconds: NDArray[np.float64]) -> I64:
    """Return nanoseconds; UNREADABLE where not finite or absurd.

    The result is exact for texts of up to three decimals below 2**43 microseconds. There the nearest double is off by
    less than half a nanosecond. Large values are split first, so that the multiplication adds no error.
    """
    good = np.abs(microseconds) <= _LARGEST_US
    if not good.all():
        microseconds = np.where(good, microseconds, 0.0)
    small = np.abs(microseconds) < _SMALL_US
    if small.all():
        ns: I64 = np.rint(microseconds * 1000).astype(np.int64)
    else:
        whole = np.floor(microseconds)
        ns = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
        # A time must not depend on the times beside it.
        ns[small] = np.rint(microseconds[small] * 1000).astype(np.int64)
    if not good.all():
        ns[~good] = UNREADABLE
    return ns


def number_to_ns(number: Decimal | None) -> int:
    """Return the nanoseconds in a number of microseconds; UNREADABLE where it is missing, not finite or absurd.

    The result is that of `to_ns` for the nearest double where doubles are precise enough, else exact.
    """
    microseconds = math.nan if number is None else float(number)
    if not abs(microseconds) <= _LARGEST_US:
        return int(UNREADABLE)
    if number is not None and microseconds >= DOUBLES_BELOW_US:
        return int((number * 1000).to_integral_value(ROUND_HALF_EVEN))
    if abs(microseconds) < _SMALL_US:
        return round(microseconds * 1000)
    whole = math.floor(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def recording(start_ns: I64, span: tuple[int, int] | None) -> tuple[int, int]:
    """Return when recording began and ended, as far as the file shows.

    Args:
        start_ns: Starts of all events that could be read.
        span: Beginning and end that the file states. It may be nonsense, such as years or a marker copied from another
            file, so it counts only if the events lie about there. Otherwise the result is the stretch of events around
            the median that has no gap of ten minutes.
    """
    if not len(start_ns):
        return span or (0, 0)
    first, last = int(start_ns.min()), int(start_ns.max())
    gapless = last - first <= _GAP_NS
    if span is not None and gapless and span[0] <= first and last <= span[1] and _fits(span, first, last):
        return span
    middle = int(np.partition(start_ns, len(start_ns) // 2)[len(start_ns) // 2])
    if not gapless:
        ordered = np.sort(start_ns)
        gaps = np.flatnonzero(np.diff(ordered) > _GAP_NS)
        before, after = gaps[ordered[gaps] < middle], gaps[ordered[gaps] >= middle]
        first = int(ordered[before[-1] + 1]) if len(before) else first
        last = int(ordered[after[0]]) if len(after) else last
    if span is not None:
        near = span[0] - _SLACK_NS <= middle <= span[1] + _SLACK_NS
        if near and _fits(span, first, last):
            return span
    return first, last


def _fits(span: tuple[int, int], first: int, last: int) -> bool:
    """Return whether events from `first` to `last` can account for the length of a span."""
    return span[1] - span[0] <= max(10 * (last - first), last - first + 3600 * NS_PER_S)


def is_possible(start_ns: I64, dur_ns: I64, begin_ns: int, end_ns: int) -> Bool:
    """Return which events can have happened in a recording `[begin_ns, end_ns]`.

    One corrupt duration would stretch the analyzed window, and with it every percentage.
    """
    length = end_ns - begin_ns
    longest = max(2 * length, length + _LONGEST_SLACK_NS)
    fits = (dur_ns >= 0) & (dur_ns <= longest)
    near = (start_ns >= begin_ns - _SLACK_NS) & (start_ns <= end_ns + _SLACK_NS)
    verdict: Bool = (start_ns != UNREADABLE) & fits & near
    return verdict


_CONTEXT = Context(prec=100, Emin=-40, Emax=40, traps=[])
"""Rounds numbers beyond any time, size or identity to zero or infinity, and turns other text into NaN. Without these
limits, `1e99999999` would become an integer of a hundred million digits."""


def decimal(text: str) -> Decimal:
    """Return the number in a text: infinite if too large, zero if too small, NaN if it is not a number."""
    return _CONTEXT.create_decimal(text)


def to_number(value: Any) -> Decimal | None:
    """Return the finite number in a JSON value or in its text, hexadecimal included; None where there is none."""
    if isinstance(value, str):
        if len(value) >= 64:
            return None
        value = value.strip()
        if value[:2].lower() == "0x":
            try:
                value = int(value, 16)
            except ValueError:
                return None
    elif isinstance(value, float):
        value = repr(value)
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = _CONTEXT.create_decimal(value)
    return number if number.is_finite() else None
