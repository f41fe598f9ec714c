"""`overlapscope record`."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.base.output import tell
from overlapscope.base.words import clean, duration, listed
from overlapscope.commands import DONE
from overlapscope.commands._options import add_captures, add_format, capture_options, less_common, whole_number
from overlapscope.commands._output import check_output, drawn, write
from overlapscope.documents.model import Block, Document, Text, with_code
from overlapscope.documents.table import Cell, Column, table_of, words
from overlapscope.errors import UsageError
from overlapscope.plugin import built_in
from overlapscope.plugins.watch.protocol import RecordingRequest, RequestOutcome, Status

if TYPE_CHECKING:
    from overlapscope.plugins.watch.ask import SilentProcess

FAILED: Final = 1
_SERVER_S: Final = 2.0
"""Time to record a server by default, in seconds."""
_NONE: Final = (
    "No process of this user is watched here. Start one with `overlapscope run --on-demand`, call overlapscope.watch() "
    "in it, or set OVERLAPSCOPE_WATCH=1 for it."
)
_NS_PER_S: Final = 1_000_000_000


class RecordCommand:
    """Record a running process for a few steps, and report whether copies
    overlap with compute. The process goes on as before.

    The process has to be watched: it was started with `overlapscope run
    --on-demand` or with OVERLAPSCOPE_WATCH=1, or it calls
    overlapscope.watch(). --list shows those of the same user on this machine,
    with their steps. An inference server that has the endpoints
    /start_profile and /stop_profile (vLLM, SGLang) is recorded with --url.
    On Python 3.14, --attach watches a process that was
    started without overlapscope: with the same version of Python, where you
    may trace it (ptrace).

    Under torchrun all ranks of its job on this machine are recorded, beginning
    with the same step. Ctrl-C stops the recording, not the process. The report
    goes to stdout. The exit code is 1 if nothing was recorded.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=int, nargs="?", help="process to record")
        parser.set_defaults(url=None, traces=None)
        if _recorder_of_servers():
            parser.add_argument(
                "--url", metavar="URL", help="inference server to record, such as http://localhost:8000"
            )
            parser.add_argument(
                "--traces",
                metavar="DIR",
                type=Path,
                help="with --url: directory into which the server writes its traces",
            )
        parser.add_argument("--list", action="store_true", help="list the processes that can be recorded")
        parser.add_argument(
            "--attach", action="store_true", help="begin to watch the process first (Python 3.14), and record it"
        )
        rare = less_common(parser)
        length = parser.add_mutually_exclusive_group()
        length.add_argument(
            "--steps",
            metavar="N",
            type=whole_number("a number of steps", 1, 10**9),
            default=5,
            help="steps to record and judge (default: 5)",
        )
        length.add_argument(
            "--seconds", metavar="S", type=float, help="record for S seconds instead, for programs without steps"
        )
        parser.add_argument("--stacks", action="store_true", help="record Python stacks (slows the host down)")
        rare.add_argument(
            "--light", action="store_true", help="do not record PyTorch ops, so that the host slows down less"
        )
        add_captures(rare)
        rare.add_argument("--alone", action="store_true", help="record only this process, not the other ranks")
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            type=Path,
            help="trace file (default: NAME-TIME.trace.json.gz, after the script)",
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
        add_format(parser, ("text", "json"))

    def run(self, args: argparse.Namespace) -> int:
        if [args.list, args.url is not None, args.pid is not None].count(True) != 1:
            raise UsageError("name one process as PID or a server with --url, or pass --list to see the processes.")
        if (args.url is None) != (args.traces is None):
            raise UsageError(
                "--url and --traces belong together: the server's address, and where it writes its traces."
            )
        if args.seconds is not None and not 0 < args.seconds < math.inf:
            raise UsageError(f"--seconds is {args.seconds}; it must be more than 0.")
        if args.list:
            return list_processes(args.format)
        if args.url is not None:
            return _record_server(args)
        from overlapscope.plugins.watch.ask import attach, ranks_of, record, status_of
        from overlapscope.recorder.destination import Destination
        from overlapscope.recorder.options import DEFAULT_PLAIN_STEPS, Options

        status = attach(args.pid) if args.attach else status_of(args.pid)
        output = args.output or Path(f"{_name(status)}-{time.strftime('%Y%m%d-%H%M%S')}.trace.json.gz")
        check_output(output, force=args.force)
        by_time = args.seconds is not None
        options = Options(
            active=None if by_time else args.steps,
            duration_s=args.seconds,
            plain_steps=0 if by_time else DEFAULT_PLAIN_STEPS,
            light=args.light,
            stacks=args.stacks,
        )
        request = RecordingRequest(path=os.path.abspath(output), options=options)
        # Raises UsageError for a file name that makes no sense before a process is asked.
        Destination.for_path(request.path)
        processes = [status] if args.alone else ranks_of(status)
        length = f"{args.seconds:g} s" if args.seconds is not None else f"{args.steps} steps"
        others = f", with all {len(processes)} ranks of its job here" if len(processes) > 1 else ""
        tell(f"overlapscope: waiting for process {args.pid} to record {length}{others}.")
        outcomes = record(
            processes,
            request,
            lambda status, step: tell(f"overlapscope: process {status.pid} is recorded from step {step:,} on."),
        )
        written = _tell(processes, outcomes)
        if not written:
            return FAILED
        # The traces of several ranks are in a directory.
        job = written[0] if len(processes) == 1 else str(Path(written[0]).parent)
        return _report([job], args)


def _recorder_of_servers() -> str | None:
    """Return the place of the function that has servers record themselves, if a plugin has one."""
    return next((plugin.servers for plugin in built_in() if plugin.servers), None)


def _record_server(args: argparse.Namespace) -> int:
    from overlapscope.base.registry import load

    record_server = load(_recorder_of_servers() or "")
    seconds = _SERVER_S if args.seconds is None else args.seconds
    traces = record_server(
        args.url,
        args.traces,
        seconds,
        stacks=args.stacks,
        begun=lambda: tell(f"overlapscope: {args.url} records for {seconds:g} s."),
    )
    tell(f"overlapscope: the server wrote {listed([os.path.relpath(path) for path in traces])}.")
    return _report(traces, args)


def _report(traces: Iterable[str | Path], args: argparse.Namespace) -> int:
    from overlapscope.commands import main

    analysis = ["analyze", *map(os.path.relpath, traces), *capture_options(args.capture)]
    tell(f"overlapscope: `{shlex.join(['overlapscope', *analysis])}` shows the report again.")
    return main([*analysis, "--format", args.format])


def list_processes(format: str) -> int:
    """Print the processes that can be recorded, with their steps."""
    from overlapscope.plugins.watch.ask import processes

    programs = processes()
    if format == "json":
        from overlapscope.base.saved import encode

        write(encode(programs), None)
        return DONE
    write(drawn(document(programs), argparse.Namespace(format="text", output=None)), None)
    return DONE


def _tell(processes: Sequence[Status], outcomes: Sequence[RequestOutcome]) -> list[str]:
    """Print the outcomes, and return the traces."""
    written = []
    for process, outcome in zip(processes, outcomes, strict=True):
        rank = "" if process.rank is None else f" (rank {process.rank})"
        if outcome.path is None:
            tell(f"overlapscope: process {process.pid}{rank} was not recorded. {outcome.failure}")
            continue
        written.append(outcome.path)
        tell(f"overlapscope: process {process.pid}{rank} wrote {os.path.relpath(outcome.path)}")
        for note in outcome.notes:
            tell(f"overlapscope: {note}")
    return written


def _name(status: Status) -> str:
    """Return the name of the program, after which the trace is named."""
    words = status.script.split()
    script = words[1] if words[:1] == ["-m"] and len(words) > 1 else (words or ["program"])[0]
    stem = script.rpartition(".")[2] if words[:1] == ["-m"] else Path(script).stem
    return re.sub(r"[^\w.-]", "_", stem) or f"pid{status.pid}"


# -- The table of processes -------------------------------------------------------------------------


def document(processes: Sequence[Status | SilentProcess]) -> Document:
    """Return a table with a row for each process."""
    columns = (
        Column("pid", id="pid"),
        words("script", flexible=True, heads=True),
        words("rank"),
        Column("steps"),
        Column("plain step"),
        words("last recording"),
    )
    rows = [_cells(process, time.time_ns()) for process in processes]
    cells = ((column, itemgetter(place)) for place, column in enumerate(columns))
    table = table_of(rows, *cells, title="Watched processes")
    blocks: tuple[Block, ...] = (table,) if processes else (Text(with_code(_NONE)),)
    return Document("overlapscope record --list", blocks)


def _cells(process: Status | SilentProcess, now_ns: int) -> tuple[Cell, ...]:
    pid = Cell(str(process.pid), process.pid)
    if not isinstance(process, Status):
        return (pid, Cell("(stopped)" if process.stopped else "(does not answer)"), *[Cell("")] * 4)
    plain_ns = process.plain_step_ns
    return (
        pid,
        Cell(clean(process.script)),
        Cell("" if process.rank is None else f"{process.rank} of {process.world_size}"),
        Cell(f"{process.steps:,}", process.steps),
        Cell("" if plain_ns is None else duration(plain_ns), plain_ns),
        Cell(_last(process, now_ns)),
    )


def _last(status: Status, now_ns: int) -> str:
    if status.recording:
        return "now"
    if status.recorded_at_ns is None:
        return ""
    ago_s = max(0, now_ns - status.recorded_at_ns) // _NS_PER_S
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if ago_s >= unit_s:
            return f"{ago_s // unit_s} {name} ago"
    return f"{ago_s} s ago"
