"""Output formats of an answer: JSON, CSV, Parquet, a data frame."""

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
    """A queried trace."""

    source: str
    rank: int | None
    verdict: Literal["trusted", "degraded", "unusable"]


class AskedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the statement."""

    name: str
    figures: str
    """Program that its figures describe."""


class ResultColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the result."""

    name: str
    type: str
    """Arrow's name of the type."""
    unit: str | None
    """Unit, from the end of the name; null if it states none."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `overlapscope query`."""

    kind: Literal["query"] = "query"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    notes: tuple[str, ...]
    """Sentences on which program the figures describe, and on doubtful traces."""
    traces: tuple[AskedTrace, ...]
    tables: tuple[AskedTable, ...]
    columns: tuple[ResultColumn, ...]
    row_count: int
    """Number of rows of the statement. `rows` has fewer if --limit left some out."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of `columns`. null means unknown or none."""


def result(answer: Answer) -> Result:
    """Return an answer as a structure for JSON."""
    analysed = (done.result for done in answer.job.analyses)
    return Result(
        notes=answer.notes(),
        traces=tuple(AskedTrace(source=each.source, rank=each.rank, verdict=each.trust.verdict) for each in analysed),
        tables=tuple(AskedTable(name=name, figures=answer.figures_of(name)) for name in answer.tables),
        columns=tuple(
            ResultColumn(name=column.name, type=str(column.type), unit=unit_of(column.name))
            for column in answer.rows.schema
        ),
        row_count=answer.row_count,
        rows=tuple(values(answer)),
    )


def to_json(answer: Answer) -> bytes:
    """Return the answer as indented JSON that ends in a newline."""
    return encode(result(answer))


def tables_json() -> bytes:
    """Return the tables with their columns as JSON, for `overlapscope query --schema`."""
    tables = [
        {
            "name": table.name,
            "rows": table.rows,
            "figures": OF[table.figures],
            "columns": [
                {"name": column.name, "type": column.type, "unit": unit_of(column.name), "meaning": column.meaning}
                for column in table.columns
            ],
        }
        for table in TABLES.values()
    ]
    return encode({"kind": "query-schema", "schema_version": SCHEMA_VERSION, "tables": tables})


def to_csv(answer: Answer) -> str:
    """Return the answer as CSV with a header. NULL is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(in_spreadsheet, answer.rows.column_names))
    for row in values(answer):
        writer.writerow(in_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row)
    return out.getvalue()


def to_parquet(answer: Answer) -> bytes:
    """Return the answer as a Parquet file with its notes as metadata."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(answer.rows.replace_schema_metadata({"overlapscope": "\n".join(answer.notes())}), out)
    return out.getvalue()


def to_frame(answer: Answer) -> pd.DataFrame:
    """Return the answer as a data frame, with notes in `attrs["notes"]`. Whole numbers stay whole despite NULL."""
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = answer.rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    frame.attrs["notes"] = list(answer.notes())
    return frame


def values(answer: Answer) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as values that JSON supports."""
    for batch in answer.rows.to_batches():
        yield from zip(*(map(_value, column.to_pylist()) for column in batch.columns), strict=True)


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_value(element) for element in value]
    if isinstance(value, dict):
        return {str(key): _value(element) for key, element in value.items()}
    return value if value is None or isinstance(value, str | int) else str(value)
