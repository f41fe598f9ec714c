"""Tools with which assistants query traces in SQL.

Each query runs in a child process, whose end frees its memory and threads even if the query can't be interrupted.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Lock
from typing import Annotated, Any, Final

from msgspec import Struct
from pydantic import Field

from overlapscope.analysis.results import Device
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.plugins.sql.engine import Answer, ask, require
from overlapscope.plugins.sql.formats import values
from overlapscope.plugins.sql.rows import fill
from overlapscope.plugins.sql.tables import PROGRAM_WORDS, TABLES, unit_of
from overlapscope.report.model import Report
from overlapscope.tools import QueriedTraces, Server

_TIMEOUT_S: Final = 20.0
_LIMIT_S: Final = 3 * _TIMEOUT_S
"""Time after which a query's process is killed. Usually, it ends by itself soon after `_TIMEOUT_S`."""
_MAX_ROWS: Final = 10_000
"""Maximum number of rows that a statement may return."""
_IN_SPAN: Final = """
SELECT start_ns, end_ns, kind AS what, name, stream, bytes, NULL AS cause, op FROM gpu_ops
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
UNION ALL SELECT start_ns, end_ns, 'exposed-copy', NULL, NULL, NULL, cause, op FROM exposed_pieces
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
UNION ALL SELECT start_ns, end_ns, 'idle', call, NULL, NULL, cause, op FROM idle_pieces
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
ORDER BY start_ns, end_ns, what, stream
"""
_DIES_WITH_PARENT: Final = 1
"""Linux's number of the request to be killed when the parent ends."""
_turn: Final = Lock()

Trace = Annotated[str, Field(description="name of a trace, as list_traces gives it")]
Job = Annotated[str, Field(description="name of a trace, or of a directory with the traces of a job")]
PageNumber = Annotated[int, Field(description="page of the answer, from 1")]


def tools(server: Server) -> tuple[Callable[..., str], ...]:
    """Return the tools."""
    methods = _Tools(server)
    return methods.timeline, methods.query, methods.tables


class _Tools(Struct, frozen=True):
    server: Server

    def timeline(
        self,
        path: Trace,
        step: Annotated[str | None, Field(description="name of a step, as `steps` of open_trace")] = None,
        start_ns: Annotated[int | None, Field(description="begin of the span, as times in answers")] = None,
        end_ns: Annotated[int | None, Field(description="end of the span")] = None,
        device: Annotated[int | None, Field(description="ordinal of the GPU; needed if there are several")] = None,
        page: PageNumber = 1,
    ) -> str:
        """List everything that ran on a GPU in a step or span, and each piece of exposed copy and idle time with its
        cause, in order. Give `step`, or `start_ns` and `end_ns`.
        """
        job = self.server.trace(path)
        chosen = _device_of(job.report, path, device)
        begin, end = _span_of(chosen, step, start_ns, end_ns)
        head = {"device": chosen.device, "start_ns": begin, "end_ns": end}

        def render(answer: Answer, rows: list[tuple[Any, ...]]) -> str:
            pieces = [dict(zip(answer.rows.column_names, row, strict=True)) for row in rows]
            doubts = self.server.doubts(job.report)
            return self.server.answer(
                head, pieces, figures=PROGRAM_WORDS["recorded"], unknown=doubts, called="pieces", page=page
            )

        return _run_query(job, _IN_SPAN.format(device=chosen.device, start=begin, end=end), render)

    def query(
        self,
        path: Job,
        sql: Annotated[str, Field(description="one SELECT statement in DuckDB's dialect, over the tables of `tables`")],
        page: PageNumber = 1,
    ) -> str:
        """Query a trace, or all traces in a directory, with SQL, for questions that no other tool answers. Aggregate
        in SQL, and use LIMIT. The tool `tables` lists tables and columns.
        """
        job = self.server.traces(path)

        def render(answer: Answer, rows: list[tuple[Any, ...]]) -> str:
            figures = "; ".join(f"{name}: {answer.figures_of(name)}" for name in answer.tables) or "none"
            columns = [{"name": name, "unit_by_name": unit_of(name)} for name in answer.rows.column_names]
            head = {"columns": columns, "rows": answer.row_count}
            unknown = list(answer.doubts())
            if len(rows) < answer.row_count:
                unknown.append(f"Only the first {len(rows):,} rows are kept; use LIMIT, or aggregate.")
            return self.server.answer(head, rows, figures=figures, unknown=unknown, called="values", page=page)

        return _run_query(job, sql, render)

    def tables(
        self,
        table: Annotated[str | None, Field(description="a table, whose columns are listed")] = None,
        page: PageNumber = 1,
    ) -> str:
        """List the tables of `query`, or the columns of one table with their units and meanings."""
        if table is None:
            items = [{"table": each.name, "a_row_is": each.rows, "figures": each.figures} for each in TABLES.values()]
            return self.server.answer(PROGRAM_WORDS, items, figures="as each table says", called="tables", page=page)
        if table not in TABLES:
            raise UsageError(f"there is no table {table!r}; tables: {', '.join(TABLES)}.")
        chosen = TABLES[table]
        columns = [f"{each.name} ({each.type}): {each.meaning}" for each in chosen.columns]
        return self.server.answer(
            {"table": chosen.name, "a_row_is": chosen.rows},
            columns,
            figures=PROGRAM_WORDS[chosen.figures],
            called="columns",
            page=page,
        )


def _device_of(report: Report, path: str, ordinal: int | None) -> Device:
    """Return the device with this ordinal, or the only one. Raises NotInTrace, or UsageError if there are several."""
    devices = [each for trace in report.traces for each in trace.devices if ordinal in (None, each.device)]
    if len(devices) == 1:
        return devices[0]
    if not devices:
        raise NotInTrace(f"{path}: has no {'GPU op with a time' if ordinal is None else f'device {ordinal}'}.")
    raise UsageError(f"{path}: has several devices ({', '.join(str(each.device) for each in devices)}); name one.")


def _span_of(device: Device, step: str | None, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    """Return begin and end of a step or of a span given by its times. Raises NotInTrace and UsageError."""
    if step is not None:
        for period in (*device.steps, *device.ranges):
            if period.name == step:
                return period.window.start_ns, period.window.end_ns
        raise NotInTrace(f"device {device.device} has no step {step!r}; open_trace lists the first ones.")
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        raise UsageError("give step, or start_ns and a larger end_ns.")
    return start_ns, end_ns


def _run_query(job: QueriedTraces, sql: str, render: Callable[[Answer, list[tuple[Any, ...]]], str]) -> str:
    """Run a statement in a child process, and return what `render` makes of its result and first rows.

    The tables that it names are filled here before, so that later statements find them.
    """
    require()
    # Imported before the fork, so that the child needn't.
    import duckdb  # noqa: F401

    _ = job.report
    for name, table in TABLES.items():
        if name in sql.lower():
            fill(table, job)

    def work() -> str:
        result = ask(job, sql, most_rows=_MAX_ROWS, timeout_s=_TIMEOUT_S)
        return render(result, list(values(result)))

    text = in_child_process(work, _LIMIT_S)
    if text is None:
        raise UsageError("the query took too much time or memory; ask for less, or aggregate.")
    return text


# -- Processes -------------------------------------------------------------------------------------


def in_child_process(work: Callable[[], str], limit_s: float) -> str | None:
    """Fork this process, and return the text that `work` makes in the child. Only one child exists at a time.

    Some SQL functions can't be interrupted, so only the end of their process frees their memory. Systems other than
    Linux don't support a fork of a process with threads; there, `work` runs in this process.

    Returns:
        The text; None if the process died, or took longer than the limit.

    Raises:
        Exception: `work` raised it.
    """
    if sys.platform != "linux":
        return work()
    processes = multiprocessing.get_context("fork")
    # With a single child, the limit on its memory limits all memory.
    with _turn:
        reading, writing = processes.Pipe(duplex=False)
        child = processes.Process(target=_run_in_child, args=(work, writing), daemon=True)
        with warnings.catch_warnings():
            # Python warns that other threads may hold locks. A child that waits for a lock is killed at the limit.
            warnings.simplefilter("ignore", DeprecationWarning)
            child.start()
        writing.close()
        try:
            answer: str | Exception | None = reading.recv() if reading.poll(limit_s) else None
        except EOFError:
            answer = None
        finally:
            reading.close()
            child.kill()
            child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _run_in_child(work: Callable[[], str], writing: Connection) -> None:
    """Write the result of `work`, or its exception, to the pipe."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    # Stdin and stdout belong to the client, and libraries that run out of memory write to stderr.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    try:
        writing.send(work())
    except Exception as error:
        writing.send(error)
