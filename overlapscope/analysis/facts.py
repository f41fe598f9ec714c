"""Facts: figures of a device's time as columns of a table, with a row for each step, range or window.

A column has lengths in nanoseconds, by the name that measures are computed from (`catalog.measures.Amount`): of a set
such as `copy`, of a bucket, of the `span`, of a cause such as `idle:host-sync`, or of the host. All sums and means of
them are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final

import numpy as np

from overlapscope.analysis.figures import HostTime, Period, TimeFigures, Window, by_cause
from overlapscope.analysis.measured import figures_of
from overlapscope.base.intervals import I64, Bool
from overlapscope.catalog.measures import BY_CAUSE, FIELD_OF_LENGTH, JOINED_BY_MAXIMUM, PARTS_OF_SPAN, of_group

Facts = Mapping[str, I64]
UNKNOWN: Final[int] = np.iinfo(np.int64).min
"""Value of the host's columns in a row without them."""

_HOST: Final = {f"host:{field.removesuffix('_ns')}": field for field in HostTime.__struct_fields__}
_HOST_PARTS: Final = tuple(name for name, field in _HOST.items() if field.endswith("_ns"))
"""Columns that add up to the step on the host."""
_FIELDS: Final = {
    "span": "span_ns",
    **{measure.name: f"buckets.{measure.id}" for measure in of_group("buckets")},
    **{name: f"{group}.{id}" for name, (group, id) in FIELD_OF_LENGTH.items()},
}
_CAUSES: Final = {
    f"{bucket}_by_cause": [name.partition(":")[2] for name in parts] for bucket, parts in BY_CAUSE.items()
}
_read_fields: Final = attrgetter(*_FIELDS.values())
_read_host: Final = attrgetter(*_HOST.values())


# -- From and to the structures of JSON --------------------------------------------------------------


def facts_of(parts: Sequence[TimeFigures]) -> Facts:
    """Return the figures of parts of a report."""
    names = (*_FIELDS, *PARTS_OF_SPAN[1:], *_HOST)
    return dict(zip(names, np.array([_row(part) for part in parts], np.int64).reshape(-1, len(names)).T, strict=True))


def _row(part: TimeFigures) -> list[int]:
    row: list[int] = [*_read_fields(part)]
    for field, causes in _CAUSES.items():
        times: Mapping[str, int] = getattr(part, field)
        row += [times.get(cause, 0) for cause in causes]
    host: HostTime | None = getattr(part, "host", None)
    return row + ([UNKNOWN] * len(_HOST) if host is None else [*_read_host(host)])


def periods_of(facts: Facts, names: Iterable[str], starts: I64, ends: I64, partial: Bool) -> tuple[Period, ...]:
    """Return each row's figures."""
    rows = zip(*(column.tolist() for column in facts.values()), strict=True)
    windows = zip(names, starts.tolist(), ends.tolist(), partial.tolist(), strict=True)
    return tuple(
        period(name, start, end, dict(zip(facts, row, strict=True)), partial=cut)
        for (name, start, end, cut), row in zip(windows, rows, strict=True)
    )


def period(name: str, start: int, end: int, ns: Mapping[str, int], *, partial: bool = False) -> Period:
    """Return the figures of a window from its lengths."""
    return Period(
        name=name,
        window=Window(start_ns=start, end_ns=end),
        span_ns=ns["span"],
        partial=partial,
        host=host_time(ns),
        **figures_of(ns),
        **by_cause(ns),
    )


def host_time(ns: Mapping[str, int]) -> HostTime | None:
    """Return the host's part of some lengths; None if it is unknown."""
    if ns.get("host:launches", UNKNOWN) == UNKNOWN:
        return None
    times = {field: ns[name] for name, field in _HOST.items() if field != "gc_known"}
    return HostTime(**times, gc_known=bool(ns["host:gc_known"]))


# -- Sums and means ----------------------------------------------------------------------------------


def select(facts: Facts, rows: list[int] | slice) -> Facts:
    """Return some of the rows."""
    return {name: column[rows] for name, column in facts.items()}


def sums(facts: Facts) -> dict[str, int]:
    """Return the sum of each column, without those that are unknown in some row."""
    return {name: int(column.sum()) for name, column in facts.items() if not (column == UNKNOWN).any()}


def together(facts: Facts) -> dict[str, int]:
    """Return the lengths in all windows together, from those in each of them."""
    ns = sums(facts)
    ns |= {name: int(facts[name].max(initial=0)) for name in JOINED_BY_MAXIMUM}
    return ns | {"ideal": max(ns["sm"], ns["h2d"], ns["d2h"])}


def means(facts: Facts) -> dict[str, int]:
    """Return the mean of each column in whole nanoseconds, rounded so that sums stay exact.

    The parts of the span add up to its mean. Time exposed in one direction, in the other and in both at once adds up
    to the exposed copy.
    """
    exact, count = sums(facts), len(facts["span"])
    ns = {name: rounded_mean(exact[name], count) for name in FIELD_OF_LENGTH}
    ns |= rounded_parts({name: exact[name] for name in PARTS_OF_SPAN}, count)
    ns |= {name: sum(ns[part] for part in parts) for name, parts in BY_CAUSE.items()}
    ns["span"] = sum(ns[part] for part in PARTS_OF_SPAN)
    exposed, exposed_total = ns["exposed_copy"], sum(exact[part] for part in BY_CAUSE["exposed_copy"])
    ns["copy"] = exposed + rounded_mean(exact["copy"] - exposed_total, count)
    only_h2d = min(exposed, rounded_mean(exposed_total - exact["exposed_d2h"], count))
    in_one = min(exposed, rounded_mean(2 * exposed_total - exact["exposed_d2h"] - exact["exposed_h2d"], count))
    ns["exposed_h2d"] = only_h2d + exposed - in_one
    ns["exposed_d2h"] = exposed - only_h2d
    if "host:launches" in exact:
        ns |= rounded_parts({name: exact[name] for name in _HOST_PARTS}, count)
        ns["host:launches"] = rounded_mean(exact["host:launches"], count)
        ns["host:gc_known"] = exact["host:gc_known"] // count
    return ns


def rounded_parts(exact: Mapping[str, int], count: int) -> dict[str, int]:
    """Return the means of parts of a whole, from their sums. Rounding the running sum keeps their sum exact."""
    running = [rounded_mean(total, count) for total in accumulate(exact.values(), initial=0)]
    return {name: end - begin for name, (begin, end) in zip(exact, pairwise(running), strict=True)}


def rounded_mean(total: int, count: int) -> int:
    """Return the mean, rounded to the nearest whole number."""
    return (2 * total + count) // (2 * count)
