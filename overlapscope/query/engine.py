"""Asks SQL of a job's tables: DuckDB in memory, which can only read them, for so long and in so much memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

from overlapscope.base.extras import how_to_install, missing
from overlapscope.base.words import clean, did_you_mean, listed, shorten, size
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.query.rows import QueriedTraces, fill
from overlapscope.query.tables import OF, TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

TIMEOUT_S: Final = 60.0
MOST_CHARACTERS: Final = 100_000
"""Of a statement."""
MEMORY_BYTES: Final = 2 << 30
"""For DuckDB to work with, besides the tables."""
RESULT_BYTES: Final = 1 << 30
"""Of the rows of a result that are kept."""
_BATCH_ROWS: Final = 10_000
_GRACE_S: Final = 2.0
"""How long an interrupted query has to end: some functions cannot be interrupted."""
_AGAIN_S: Final = 0.05
_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Functions that make rows of nothing but their arguments. All others that stand for a table are refused."""
_SOURCES: Final = frozenset(
    {
        *("PYTHON_ARROW_SCAN", "CTE_SCAN", "DELIM_SCAN", "DELIM_GET", "DUMMY_SCAN", "EMPTY_RESULT", "EXPRESSION_GET"),
        *("CHUNK_GET", "COLUMN_DATA_SCAN", "PRAGMA_SHOW", *map(str.upper, _FUNCTIONS)),
    }
)
"""Leaves of a bound plan that read the tables of a job, or nothing. DuckDB's own tables are others."""
_READS_SETTINGS: Final = "current_setting"
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "secret_directory": "",
    "memory_limit": f"{MEMORY_BYTES}B",
    "threads": str(min(4, os.cpu_count() or 1)),
}


class Answer(msgspec.Struct, frozen=True, eq=False):
    """What a statement gave."""

    rows: pa.Table
    """Whole numbers are int64, unless they are too large for that."""
    row_count: int
    """Of the statement; `rows` has fewer where fewer were asked for."""
    tables: tuple[str, ...]
    """Those of `TABLES` that it names."""
    job: QueriedTraces

    def notes(self) -> tuple[str, ...]:
        """What has to be said with it, in sentences: which program figures are of, and which traces are in doubt."""
        by_figures: dict[str, list[str]] = {}
        for name in self.tables:
            by_figures.setdefault(self.figures_of(name), []).append(name)
        told = (f"The figures of {listed(names)} are {figures}." for figures, names in by_figures.items())
        return (*told, *self.doubts())

    def doubts(self) -> tuple[str, ...]:
        """Which traces are in doubt, or are none, in sentences."""
        notes = []
        for done in self.job.analyses:
            source, verdict = clean(done.result.source, 200), done.result.trust.verdict
            if verdict != "trusted":
                notes.append(f"{source} is {verdict}: the table `checks` says what is in doubt, and why.")
            if done.result.predicted_by is not None:
                notes.append(f"{source} is a timeline that `overlapscope whatif` predicted, not a recording.")
        return tuple(notes)

    def figures_of(self, table: str) -> str:
        """Which program a table's figures are of, in words."""
        figures = TABLES[table].figures
        if figures == "spoken":
            known = {finding.plain_bound_ns is not None for finding in self.job.report.findings}
            if len(known) == 1:
                return "of the program without the profiler" if known.pop() else OF["recorded"]
        return OF[figures]


def require() -> None:
    """Raises MissingPackage where the packages are not there."""
    if missing("query"):
        raise MissingPackage(f"SQL needs DuckDB and PyArrow. {how_to_install('query')}")


def ask(job: QueriedTraces, statement: str, *, most_rows: int | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """The answer to one SELECT statement, with at most so many rows of it.

    Raises UsageError where the statement is refused, fails, takes too long or too much memory, MissingPackage without
    DuckDB.
    """
    require()
    import duckdb

    # Never closed, which a query that goes on would refuse: it goes when nothing refers to it.
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    # On in a prompt, a notebook and `python -c`, where it would write into standard output.
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET explain_output = 'all'")
    names = _tables_of(connection, statement)
    for name in names:
        connection.register(name, fill(TABLES[name], job))
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")
    rows, row_count = _within(connection, statement, most_rows, timeout_s)
    return Answer(rows, row_count, names, job)


# -- what may be asked ------------------------------------------------------------------------------


def _tables_of(connection: duckdb.DuckDBPyConnection, statement: str) -> tuple[str, ...]:
    """The tables that a statement names. Raises UsageError unless it is one that selects from these alone."""
    if len(statement) > MOST_CHARACTERS:
        raise UsageError(f"the SQL has more than {MOST_CHARACTERS:,} characters; ask for less at once.")
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [_text(statement)]).fetchall()
    try:
        parsed = msgspec.json.decode(serialized)
    except (RecursionError, msgspec.DecodeError):
        raise UsageError("the SQL is nested too deeply; ask for less at once.") from None
    if parsed["error"] and parsed["error_type"] == "parser":
        raise UsageError(f"the SQL cannot be read: {_sentence(parsed['error_message'])}")
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise UsageError("only one SELECT statement (or WITH, FROM, DESCRIBE, SUMMARIZE) can be asked, nothing else.")
    named, made, functions = _references(parsed)
    if _READS_SETTINGS in functions:
        raise UsageError(f"the function {_READS_SETTINGS!r} cannot be used, as settings are none of our tables.")
    for function in sorted(functions - _FUNCTIONS):
        raise UsageError(f"the function {shorten(function, 80)!r} cannot be used as a table, as it is none of ours.")
    for name in sorted(named - made - {*TABLES}):
        hint = did_you_mean(name, TABLES)
        raise UsageError(f"there is no table {shorten(name, 80)!r}{hint}; tables: {', '.join(TABLES)}.")
    return tuple(name for name in TABLES if name in named)


def _references(parsed: Any) -> tuple[set[str], set[str], set[str]]:
    """The names of tables that a syntax tree refers to, of those that it defines (WITH), and of functions that stand
    for tables or read settings."""
    named, made, shown, functions = set[str](), set[str](), set[str](), set[str]()
    left = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            left += node.values()
            match node.get("type"):
                case "BASE_TABLE":
                    schema = [node[part] for part in ("catalog_name", "schema_name") if node[part]]
                    named.add(".".join([*schema, node["table_name"]]).lower())
                case "SHOW_REF" if node["table_name"]:
                    shown.add(node["table_name"].strip('"').lower())
                case "FUNCTION" if node["function_name"].lower() == _READS_SETTINGS:
                    functions.add(_READS_SETTINGS)
                case "TABLE_FUNCTION":
                    functions.add(node["function"]["function_name"].lower())
            made |= {entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", ())}
        elif isinstance(node, list):
            left += node
    # SHOW also takes the name of a setting, whatever WITH defines.
    return named | shown, made - shown, functions


def _text(statement: str) -> str:
    try:
        statement.encode()
    except UnicodeEncodeError:
        raise UsageError("the SQL holds characters that are not valid text; write it in UTF-8.") from None
    return statement


def _sentence(error: object) -> str:
    """What DuckDB said first, without the picture of the statement behind it."""
    said = " ".join(str(error).partition("\n\nLINE ")[0].split())
    return f"{clean(said, 600).rstrip('.!')}."


# -- asking -----------------------------------------------------------------------------------------


def _within(
    connection: duckdb.DuckDBPyConnection, statement: str, most_rows: int | None, timeout_s: float
) -> tuple[pa.Table, int]:
    """`_fetched`, on a thread of its own, so that it can be left: when the time is over, or by Ctrl-C."""
    outcome: SimpleQueue[tuple[pa.Table, int] | Exception] = SimpleQueue()

    def work() -> None:
        try:
            outcome.put(_fetched(connection, statement, most_rows))
        except Exception as error:
            outcome.put(error)

    thread = Thread(target=work, name="overlapscope-query", daemon=True)
    try:
        thread.start()
        found = outcome.get(timeout=timeout_s)
    except Empty:
        _stop(connection, outcome, thread)
        raise UsageError(
            f"the query was stopped after {timeout_s:g} s; ask for less, or allow more with --timeout."
        ) from None
    except KeyboardInterrupt:
        _stop(connection, outcome, thread)
        raise
    thread.join(_GRACE_S)
    if isinstance(found, Exception):
        raise _told(found) from None
    return found


def _stop(connection: duckdb.DuckDBPyConnection, outcome: SimpleQueue[Any], thread: Thread) -> None:
    """Interrupt a query and wait until it has ended, as far as it does."""
    given_up = time.monotonic() + _GRACE_S
    while time.monotonic() < given_up:
        # Again and again: what has not begun to run is not interrupted.
        connection.interrupt()
        with suppress(Empty):
            outcome.get(timeout=_AGAIN_S)
            thread.join(_GRACE_S)
            return


def _fetched(connection: duckdb.DuckDBPyConnection, statement: str, most_rows: int | None) -> tuple[pa.Table, int]:
    """The rows that are kept, and how many there are: the others are counted as they come."""
    import pyarrow as pa

    _check_plan(connection, statement)
    with connection.sql(statement).to_arrow_reader(_BATCH_ROWS) as reader:
        kept: list[pa.RecordBatch] = []
        kept_bytes = row_count = 0
        for batch in reader:
            left = batch.num_rows if most_rows is None else max(0, most_rows - row_count)
            row_count += batch.num_rows
            if left:
                kept.append(batch.slice(0, left))
                kept_bytes += batch.nbytes
            if kept_bytes > RESULT_BYTES:
                raise UsageError(f"the result is larger than {size(RESULT_BYTES)}; ask for fewer rows, or aggregate.")
        return _whole_numbers(pa.Table.from_batches(kept, reader.schema)), row_count


def _check_plan(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Raise UsageError where a statement, as DuckDB binds it, reads anything but the tables of the job.

    Which table a name stands for depends on the scopes of WITH, so only the bound plan can tell.
    """
    (alone,) = connection.extract_statements(statement)
    plans = dict(connection.execute(f"EXPLAIN (FORMAT json) {alone.query}").fetchall())
    try:
        left = msgspec.json.decode(plans["logical_plan"])
    except (RecursionError, msgspec.DecodeError):
        raise UsageError("the SQL is nested too deeply; ask for less at once.") from None
    while left:
        node = left.pop()
        left += node["children"]
        if not node["children"] and node["name"].strip() not in _SOURCES:
            raise UsageError(
                f"the SQL reads {clean(node['name'], 80)}, which is none of the tables: {', '.join(TABLES)}."
            )


def _whole_numbers(rows: pa.Table) -> pa.Table:
    """Sums of whole numbers, which DuckDB gives as decimals, as whole numbers; other decimals as floating point."""
    import pyarrow as pa

    for place, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type):
            try:
                column = rows.column(place).cast(pa.int64() if field.type.scale == 0 else pa.float64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(place, field.name, column)
    return rows


def _told(error: Exception) -> UsageError:
    """What went wrong in a query, for the person who wrote it; anything else is raised as it is."""
    import duckdb
    import pyarrow as pa

    if isinstance(error, UsageError):
        return error
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageError(f"the query needs more than {size(MEMORY_BYTES)} of memory; ask for less, or aggregate.")
    if isinstance(error, duckdb.Error | pa.ArrowException | OSError):
        return UsageError(f"the query failed: {_sentence(error)}")
    raise error
