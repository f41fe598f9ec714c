"""An answer in the forms in which it is written or handed on: JSON, CSV, Parquet, a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overlapscope.base.saved import Tool, encode
from overlapscope.base.words import in_spreadsheet
from overlapscope.query.engine import Answer
from overlapscope.query.tables import OF, TABLES, unit_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1


class AskedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was asked about."""

    source: str
    rank: int | None
    verdict: Literal["trusted", "degraded", "unusable"]


class AskedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that the statement names."""

    name: str
    figures: str
    """Which program its figures are of."""


class ResultColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the result."""

    name: str
    type: str
    """As Arrow names it."""
    unit: str | None
    """As the end of the name says; null where it says none."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What `overlapscope query` found."""

    kind: Literal["query"] = "query"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    notes: tuple[str, ...]
    """Which program the figures are of, and which traces are in doubt, in sentences."""
    traces: tuple[AskedTrace, ...]
    tables: tuple[AskedTable, ...]
    columns: tuple[ResultColumn, ...]
    row_count: int
    """Of the statement; `rows` has fewer where --limit left some out."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of `columns`. null is what is unknown, or what there is none of."""


def result(answer: Answer) -> Result:
    """An answer as what JSON holds."""
    analysed = (done.result for done in answer.job.analyses)
    return Result(
        notes=answer.notes(),
        traces=tuple(AskedTrace(source=one.source, rank=one.rank, verdict=one.trust.verdict) for one in analysed),
        tables=tuple(AskedTable(name=name, figures=answer.figures_of(name)) for name in answer.tables),
        columns=tuple(
            ResultColumn(name=column.name, type=str(column.type), unit=unit_of(column.name))
            for column in answer.rows.schema
        ),
        row_count=answer.row_count,
        rows=tuple(values(answer)),
    )


def to_json(answer: Answer) -> bytes:
    """The answer as indented JSON, ending in a newline."""
    return encode(result(answer))


def tables_json() -> bytes:
    """What `overlapscope query --schema` prints as JSON: the tables with their columns."""
    tables = [
        {
            "name": table.name,
            "rows": table.rows,
            "figures": OF[table.figures],
            "columns": [
                {"name": one.name, "type": one.type, "unit": unit_of(one.name), "meaning": one.meaning}
                for one in table.columns
            ],
        }
        for table in TABLES.values()
    ]
    return encode({"kind": "query-schema", "schema_version": SCHEMA_VERSION, "tables": tables})


def to_csv(answer: Answer) -> str:
    """The answer as CSV, with a line of names. NULL is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(in_spreadsheet, answer.rows.column_names))
    for row in values(answer):
        writer.writerow(in_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row)
    return out.getvalue()


def to_parquet(answer: Answer) -> bytes:
    """The answer as a Parquet file, its notes as metadata."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(answer.rows.replace_schema_metadata({"overlapscope": "\n".join(answer.notes())}), out)
    return out.getvalue()


def to_frame(answer: Answer) -> pd.DataFrame:
    """The answer as a data frame, its notes in `attrs["notes"]`. Whole numbers stay whole where some are unknown."""
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = answer.rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    frame.attrs["notes"] = list(answer.notes())
    return frame


def values(answer: Answer) -> Iterator[tuple[Any, ...]]:
    """The rows, of what JSON can hold."""
    for batch in answer.rows.to_batches():
        yield from zip(*(map(_value, column.to_pylist()) for column in batch.columns), strict=True)


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _value(one) for key, one in value.items()}
    return value if value is None or isinstance(value, str | int) else str(value)
