"""Execution of one of HTA's analyses, and its frames as a result to write and show."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overlapscope.base.saved import SCHEMA_VERSION
from overlapscope.base.words import in_spreadsheet
from overlapscope.errors import OverlapscopeError
from overlapscope.inputs import Source, read_traces
from overlapscope.plugins.hta.build import quiet, require, trace_analysis
from overlapscope.plugins.hta.catalog import ANALYSES, HtaOptions, check_name
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd


Value = int | float | str | bool | None


class HtaFailed(OverlapscopeError):
    """HolisticTraceAnalysis failed; the text has its message."""


class HtaTable(msgspec.Struct, frozen=True, kw_only=True):
    """One of HTA's frames. Times are in microseconds unless a column says otherwise."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """Cells in the order of the columns; null where HTA has none."""


class HtaResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an analysis of HTA."""

    kind: Literal["hta"] = "hta"
    schema_version: int = SCHEMA_VERSION
    analysis: str
    hta: str
    """Name and version of the HTA that computed it."""
    ranks: tuple[int, ...]
    tables: tuple[HtaTable, ...]
    missing: tuple[str, ...] = ()
    """Titles of tables that HTA did not make, because the traces lack the data."""


def run(
    name: str,
    traces: Source | Iterable[Source],
    options: HtaOptions | None = None,
    *,
    nanoseconds: bool | None = None,
) -> HtaResult:
    """Run an analysis of `ANALYSES` on our traces, or on files.

    Args:
        name: Name of the analysis.
        traces: Traces, or paths and patterns of files.
        options: Options of the analysis.
        nanoseconds: As for `trace_analysis`.

    Returns:
        The tables that HTA made, and the titles of those it could not make.

    Raises:
        UsageError: The name is unknown, or the analysis cannot take the traces.
        HtaFailed: HTA fails.
        OverlapscopeError: As for `trace_analysis`.
    """
    check_name(name)
    package, version = require()
    held = read_traces(traces)
    analysis = trace_analysis(held, nanoseconds=nanoseconds)
    tables, missing = [], []
    try:
        with quiet():
            for title, frame in ANALYSES[name].run(analysis, options or HtaOptions()):
                if frame is None or frame.empty:
                    missing.append(title)
                else:
                    tables.append(_table(title, frame))
    except OverlapscopeError:
        raise
    except Exception as error:
        # HTA checks with asserts, and fails on unexpected data with any type of exception.
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        rounded = not nanoseconds and any(map(_has_nanoseconds, held))
        hint = " HTA rounds times to whole microseconds, which can cause this; try --nanoseconds."
        raise HtaFailed(f"HTA's {ANALYSES[name].method} failed ({what}).{hint if rounded else ''}") from error
    return HtaResult(
        analysis=name,
        hta=f"{package} {version}",
        ranks=tuple(analysis.t.get_ranks()),
        tables=tuple(tables),
        missing=tuple(missing),
    )


def to_json(result: HtaResult) -> bytes:
    """Return the result as JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(result)) + b"\n"


def to_csv(result: HtaResult) -> str:
    """Return all rows as CSV. If there are several tables, each has its title before it, with empty lines between."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, table in enumerate(result.tables):
        if number:
            writer.writerow([])
        if len(result.tables) > 1:
            writer.writerow([table.title])
        writer.writerow(map(_harmless, table.columns))
        writer.writerows(map(_harmless, row) for row in table.rows)
    return out.getvalue()


def _harmless(value: Value) -> Value:
    return in_spreadsheet(value) if isinstance(value, str) else value


def _has_nanoseconds(trace: Trace) -> bool:
    return bool(((trace.gpu_ops.start_ns - trace.base_ns) % 1000).any())


def _table(title: str, frame: pd.DataFrame) -> HtaTable:
    """Return a frame's cells as plain values; the columns of its index come first if they have names."""
    named = [name for name in frame.index.names if name is not None]
    if named:
        frame = frame.reset_index()
    columns = tuple(_heading(column) for column in frame.columns)
    cells = [[_value(cell) for cell in frame.iloc[:, at].tolist()] for at in range(len(columns))]
    return HtaTable(title=title, columns=columns, rows=tuple(zip(*cells, strict=True)))


def _heading(column: Any) -> str:
    """Return a column's name; the names of several levels are joined."""
    if isinstance(column, tuple):
        return " ".join(str(part) for part in column if part != "")
    return str(column)


def _value(cell: Any) -> Value:
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if cell is None or isinstance(cell, bool | int | str):
        return cell
    return str(cell)
