"""`overlapscope query`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.commands import DONE
from overlapscope.commands._options import (
    add_format,
    add_output,
    add_reading,
    add_steps_by,
    less_common,
    size_limit,
    whole_number,
)
from overlapscope.commands._output import check_output, drawn, write
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.plugins.sql.engine import Answer

DEFAULT_ROWS = 100
"""Default limit on rows in text and markdown."""
_MAX_ROWS = 10**9
_MAX_SECONDS = 86_400


class QueryCommand:
    """Query traces with SQL: their GPU ops, copies, calls and ranges, and the
    results of their analysis: buckets, causes, stalls, findings, trust checks.

    The last argument is a SELECT statement in DuckDB's dialect. It can read the
    tables that --schema lists, and nothing else: no files and no network. The
    columns `source` and `rank` set several traces apart.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "given", nargs="*", metavar="TRACE ... SQL", help="trace files, directories or patterns, then the statement"
        )
        parser.add_argument("--file", metavar="FILE", help="read the statement from FILE, or from stdin if it is -")
        parser.add_argument("--schema", action="store_true", help="list the tables and their columns")
        add_format(parser, ("text", "json", "markdown", "csv", "parquet"))
        add_output(parser)
        parser.add_argument(
            "--limit",
            metavar="N",
            type=whole_number(f"a number from 0 to {_MAX_ROWS:,}", 0, _MAX_ROWS),
            help=f"show at most N rows (default: {DEFAULT_ROWS} as text or markdown, all otherwise)",
        )
        rare = less_common(parser)
        rare.add_argument(
            "--timeout",
            metavar="SECONDS",
            type=whole_number(f"a number from 1 to {_MAX_SECONDS:,}", 1, _MAX_SECONDS),
            help="time limit of the statement (default: 60)",
        )
        add_steps_by(rare)
        add_reading(rare)

    def run(self, args: argparse.Namespace) -> int:
        if args.schema:
            check_output(args.output, force=args.force)
            write(_schema(args), args.output, force=args.force)
            return DONE
        traces, statement = _arguments(args)
        if args.format == "parquet" and args.output is None:
            raise UsageError("Parquet is binary; name a file for it with -o FILE.")
        check_output(args.output, force=args.force, inputs=[*traces, args.file])
        from overlapscope.plugins.sql.engine import TIMEOUT_S, ask, require
        from overlapscope.reading import find_traces, load
        from overlapscope.tools import QueriedTraces

        require()
        found = find_traces(traces)
        for note in found.notes:
            tell(note)
        job = QueriedTraces(
            tuple(
                load(path, limit_bytes=size_limit(args), cache=args.cache, steps_by=args.steps_by)
                for path in found.files
            )
        )
        limit = DEFAULT_ROWS if args.limit is None and args.format in ("text", "markdown") else args.limit
        answer = ask(job, statement, most_rows=limit, timeout_s=args.timeout or TIMEOUT_S)
        write(_written(answer, args), args.output, force=args.force)
        return DONE


def _arguments(args: argparse.Namespace) -> tuple[list[str], str]:
    """Return the traces and the statement."""
    traces = list(args.given)
    if args.file is None and len(traces) < 2:
        raise UsageError('write: overlapscope query TRACE "SELECT ..."; --schema lists the tables.')
    if args.file is None:
        return traces, traces.pop()
    if not traces:
        raise UsageError("no trace is named; write: overlapscope query TRACE --file FILE.")
    return traces, _read(args.file)


def _read(file: str) -> str:
    from overlapscope.plugins.sql.engine import MAX_CHARACTERS

    try:
        if file == "-":
            return sys.stdin.read(MAX_CHARACTERS + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: the SQL cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def _schema(args: argparse.Namespace) -> bytes:
    from overlapscope.plugins.sql import formats

    match args.format:
        case "json":
            return formats.tables_json()
        case "text" | "markdown":
            return drawn(formats.tables_document(), args)
        case _:
            raise UsageError(f"the tables cannot be listed as {args.format}; use text, json or markdown.")


def _written(answer: Answer, args: argparse.Namespace) -> bytes:
    from overlapscope.plugins.sql import formats

    match args.format:
        case "json":
            return formats.to_json(answer)
        case "csv":
            return formats.to_csv(answer).encode("utf-8", "replace")
        case "parquet":
            return formats.to_parquet(answer)
        case "text":
            from overlapscope.render import terminal

            width = terminal.width_of(None if args.output else sys.stdout)
            return drawn(formats.answer_document(answer, width=width), args)
        case _:
            return drawn(formats.answer_document(answer), args)
