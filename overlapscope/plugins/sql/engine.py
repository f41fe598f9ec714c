"""SQL queries of a job's tables, by DuckDB in memory: read-only, with limits on time and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

from overlapscope.base.extras import how_to_install, missing
from overlapscope.base.memory import at_most
from overlapscope.base.words import clean, did_you_mean, listed, shorten, size
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.inputs import Source, read_traces
from overlapscope.plugins.sql.rows import fill
from overlapscope.plugins.sql.tables import PROGRAM_WORDS, TABLES
from overlapscope.report.page import Page
from overlapscope.tools import QueriedTraces

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

TIMEOUT_S: Final = 60.0
MAX_CHARACTERS: Final = 100_000
"""Maximum length of a statement."""
MEMORY_BYTES: Final = 2 << 30
"""Maximum memory that a query takes, not counting the tables."""
RESULT_BYTES: Final = 1 << 30
"""Maximum size of a result's rows."""
_BATCH_ROWS: Final = 10_000
_GRACE_S: Final = 2.0
"""Time to wait for an interrupted query to end, in seconds. Some functions can't be interrupted."""
_AGAIN_S: Final = 0.05
_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Table functions that depend only on their arguments. All other table functions are refused."""
_SOURCES: Final = frozenset(
    {
        *("PYTHON_ARROW_SCAN", "CTE_SCAN", "DELIM_SCAN", "DELIM_GET", "DUMMY_SCAN", "EMPTY_RESULT", "EXPRESSION_GET"),
        *("CHUNK_GET", "COLUMN_DATA_SCAN", "PRAGMA_SHOW", *map(str.upper, _FUNCTIONS)),
    }
)
"""Leaves of a bound plan that read a job's tables, or no table. DuckDB's internal tables have other leaves."""
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
    """Result of a statement."""

    rows: pa.Table
    """Rows of the result. Whole numbers are int64 unless they are too large."""
    row_count: int
    """Number of rows of the statement. `rows` has fewer if the caller limited them."""
    tables: tuple[str, ...]
    """Names of the `TABLES` in the statement."""
    job: QueriedTraces

    def notes(self) -> tuple[str, ...]:
        """Return sentences on which program the figures describe, and on doubtful traces."""
        by_figures: dict[str, list[str]] = {}
        for name in self.tables:
            by_figures.setdefault(self.figures_of(name), []).append(name)
        notes = (f"The figures in {listed(names)} are those {figures}." for figures, names in by_figures.items())
        return (*notes, *self.doubts())

    def doubts(self) -> tuple[str, ...]:
        """Return sentences about traces that are doubtful, or predicted."""
        notes = []
        for done in self.job.analyses:
            source, verdict = clean(done.result.source, 200), done.result.trust.verdict
            if verdict != "trusted":
                notes.append(f"{source} is {verdict}: the table `checks` states what is doubtful and why.")
            if done.result.predicted_by is not None:
                notes.append(f"{source} is a timeline that `overlapscope whatif` predicted, not a recording.")
        return tuple(notes)

    def figures_of(self, table: str) -> str:
        """Return which program a table's figures describe, in words."""
        figures = TABLES[table].figures
        if figures == "spoken":
            origins = {section.plain_origin for section in Page(self.job.report).sections() if section.device}
            if origins <= {None}:
                return PROGRAM_WORDS["recorded"]
            if None not in origins:
                return "of the program without the profiler"
        return PROGRAM_WORDS[figures]


def require() -> None:
    """Raise MissingPackage if packages for queries aren't installed."""
    if missing("sql"):
        raise MissingPackage(f"SQL needs DuckDB and PyArrow. {how_to_install('sql')}")


def ask(job: QueriedTraces, statement: str, *, most_rows: int | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run a SELECT statement.

    Returns:
        The result, with at most `most_rows` rows.

    Raises:
        UsageError: The statement is refused, fails, or exceeds the limits on time and memory.
        MissingPackage: DuckDB isn't installed.
    """
    require()
    import duckdb

    # Not closed, because closing fails while a query is running. The connection ends with its last reference.
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    # By default on in prompts, notebooks and `python -c`, where the progress bar would go to stdout.
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET explain_output = 'all'")
    names = _tables_of(connection, statement)
    for name in names:
        connection.register(name, fill(TABLES[name], job))
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")
    rows, row_count = _within(connection, statement, most_rows, timeout_s)
    return Answer(rows, row_count, names, job)


def sql(traces: Source | Iterable[Source], statement: str, *, timeout_s: float = TIMEOUT_S) -> pd.DataFrame:
    """Run a SELECT statement on traces and their results (`docs/guides/query.md`).

    Args:
        traces: Traces or their files.
        statement: The SELECT statement.
        timeout_s: Time limit in seconds.

    Returns:
        The rows. `attrs["notes"]` states which program the figures describe, and which traces are doubtful. In columns
        of whole numbers, NULL becomes `pd.NA`.

    Raises:
        UnreadableTrace: A file can't be read.
        UsageError: The statement is refused, fails, or exceeds the time limit.
        MissingPackage: DuckDB isn't installed.
    """
    answer = ask(QueriedTraces(tuple(read_traces(traces))), statement, timeout_s=timeout_s)
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = answer.rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    frame.attrs["notes"] = list(answer.notes())
    return frame


# -- Allowed statements ----------------------------------------------------------------------------


def _tables_of(connection: duckdb.DuckDBPyConnection, statement: str) -> tuple[str, ...]:
    """Return the tables in a statement. Raises UsageError unless it is a SELECT from these tables only."""
    if len(statement) > MAX_CHARACTERS:
        raise UsageError(f"the SQL has more than {MAX_CHARACTERS:,} characters; ask for less at once.")
    try:
        statement.encode()
    except UnicodeEncodeError:
        raise UsageError("the SQL holds characters that are not valid text; write it in UTF-8.") from None
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    try:
        parsed = msgspec.json.decode(serialized)
    except (RecursionError, msgspec.DecodeError):
        raise UsageError("the SQL is nested too deeply; ask for less at once.") from None
    if parsed["error"] and parsed["error_type"] == "parser":
        raise UsageError(f"the SQL cannot be read: {_sentence(parsed['error_message'])}")
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise UsageError("only one SELECT statement (or WITH, FROM, DESCRIBE, SUMMARIZE) can be asked, nothing else.")
    named, defined, functions = _references(parsed)
    if _READS_SETTINGS in functions:
        raise UsageError(f"the function {_READS_SETTINGS!r} cannot be used, because it reads settings.")
    for function in sorted(functions - _FUNCTIONS):
        raise UsageError(f"the function {shorten(function, 80)!r} cannot be used as a table.")
    for name in sorted(named - defined - {*TABLES}):
        hint = did_you_mean(name, TABLES)
        raise UsageError(f"there is no table {shorten(name, 80)!r}{hint}; tables: {', '.join(TABLES)}.")
    return tuple(name for name in TABLES if name in named)


def _references(parsed: Any) -> tuple[set[str], set[str], set[str]]:
    """Return the names of tables and functions in a syntax tree.

    They are the tables used, the tables that it defines (WITH), and table functions and functions that read settings.
    """
    named, defined, shown, functions = set[str](), set[str](), set[str](), set[str]()
    pending = [parsed]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            pending += node.values()
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
            defined |= {entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", ())}
        elif isinstance(node, list):
            pending += node
    # SHOW also accepts the name of a setting, even if WITH defines a table of that name.
    return named | shown, defined - shown, functions


def _sentence(error: object) -> str:
    """Return the first sentence of a DuckDB error, without the quoted statement."""
    message = " ".join(str(error).partition("\n\nLINE ")[0].split())
    return f"{clean(message, 600).rstrip('.!')}."


# -- Execution -------------------------------------------------------------------------------------


def _within(
    connection: duckdb.DuckDBPyConnection, statement: str, most_rows: int | None, timeout_s: float
) -> tuple[pa.Table, int]:
    """Run `_fetched` on another thread, so that a timeout or Ctrl-C can end the wait."""
    outcome: SimpleQueue[tuple[pa.Table, int] | Exception] = SimpleQueue()

    def work() -> None:
        # DuckDB's own limit doesn't include the values that functions make, such as `repeat`.
        with at_most(MEMORY_BYTES):
            try:
                outcome.put(_fetched(connection, statement, most_rows))
            except Exception as error:
                outcome.put(error)

    thread = Thread(target=work, name="overlapscope-query", daemon=True)
    try:
        thread.start()
        result = outcome.get(timeout=timeout_s)
    except Empty:
        _stop(connection, outcome, thread)
        stopped = f"the query was stopped after {timeout_s:g} s; ask for less, or"
        raise UsageError(f"{stopped} allow more with --timeout.", for_assistants=f"{stopped} aggregate.") from None
    except KeyboardInterrupt:
        _stop(connection, outcome, thread)
        raise
    thread.join(_GRACE_S)
    if isinstance(result, Exception):
        raise _query_error(result) from None
    return result


def _stop(connection: duckdb.DuckDBPyConnection, outcome: SimpleQueue[Any], thread: Thread) -> None:
    """Interrupt a query, and wait a limited time until it has ended."""
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        # Repeated, because an interrupt has no effect on a query that has not started.
        connection.interrupt()
        with suppress(Empty):
            outcome.get(timeout=_AGAIN_S)
            thread.join(_GRACE_S)
            return


def _fetched(connection: duckdb.DuckDBPyConnection, statement: str, most_rows: int | None) -> tuple[pa.Table, int]:
    """Return the rows to keep, and the number of all rows."""
    import pyarrow as pa

    _check_plan(connection, statement)
    with connection.sql(statement).to_arrow_reader(_BATCH_ROWS) as reader:
        kept: list[pa.RecordBatch] = []
        kept_bytes = row_count = 0
        for batch in reader:
            wanted = batch.num_rows if most_rows is None else max(0, most_rows - row_count)
            row_count += batch.num_rows
            if wanted:
                kept.append(batch.slice(0, wanted))
                kept_bytes += batch.nbytes
            if kept_bytes > RESULT_BYTES:
                raise UsageError(f"the result is larger than {size(RESULT_BYTES)}; ask for fewer rows, or aggregate.")
        return _whole_numbers(pa.Table.from_batches(kept, reader.schema)), row_count


def _check_plan(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Check that a statement reads only the tables of the job.

    The meaning of a name depends on the scopes of WITH, so only DuckDB's bound plan shows what a statement reads.

    Raises:
        UsageError: It reads something else.
    """
    (alone,) = connection.extract_statements(statement)
    plans = dict(connection.execute(f"EXPLAIN (FORMAT json) {alone.query}").fetchall())
    try:
        pending = msgspec.json.decode(plans["logical_plan"])
    except (RecursionError, msgspec.DecodeError):
        raise UsageError("the SQL is nested too deeply; ask for less at once.") from None
    while pending:
        node = pending.pop()
        pending += node["children"]
        if not node["children"] and node["name"].strip() not in _SOURCES:
            raise UsageError(
                f"the SQL reads {clean(node['name'], 80)}, which is not one of the tables: {', '.join(TABLES)}."
            )


def _whole_numbers(rows: pa.Table) -> pa.Table:
    """Convert decimals to whole or floating-point numbers. DuckDB returns sums of whole numbers as decimals."""
    import pyarrow as pa

    for place, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type):
            try:
                column = rows.column(place).cast(pa.int64() if field.type.scale == 0 else pa.float64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(place, field.name, column)
    return rows


def _query_error(error: Exception) -> UsageError:
    """Return the error of a query as UsageError. Raise any other error."""
    import duckdb
    import pyarrow as pa

    if isinstance(error, UsageError):
        return error
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or str(error).startswith("Out of Memory Error"):
        return UsageError(f"the query needs more than {size(MEMORY_BYTES)} of memory; ask for less, or aggregate.")
    if isinstance(error, duckdb.Error | pa.ArrowException | OSError):
        return UsageError(f"the query failed: {_sentence(error)}")
    raise error
