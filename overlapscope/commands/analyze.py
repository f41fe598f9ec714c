"""`overlapscope analyze`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import listed
from overlapscope.commands import DONE
from overlapscope.commands._options import (
    FORMATS,
    add_analysis,
    add_captures,
    add_format,
    add_output,
    add_traces,
    add_verbose,
    less_common,
    size_limit,
)
from overlapscope.commands._output import check_output, present, write
from overlapscope.errors import NotInTrace, UnreadableTrace, UsageError

if TYPE_CHECKING:
    from overlapscope.analysis import TraceAnalysis
    from overlapscope.documents.model import Document
    from overlapscope.report.page import Page
    from overlapscope.trace.model import Trace

_MAX_NAMED_FILES = 5
"""Maximum number of unreadable files to name."""
_MAX_TRACES = 2_048
"""Maximum number of traces in one report, which all stay in memory until it is written."""
_MAX_BARS = 8
"""Maximum number of traces that each have a progress bar; more have one line for all."""


class AnalyzeCommand:
    """Report whether copies overlap with compute, what prevents it, and what
    a fix would save.

    A TRACE is a file (.json.gz, trace_view.json, .sqlite, .xplane.pb), a
    directory or a glob pattern. Several traces are taken as the ranks of one
    job, and each has its own section.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_traces(parser)
        add_format(parser, (*FORMATS, "speedscope"))
        add_output(parser)
        parser.add_argument("--device", type=int, metavar="N", help="only this device")
        scope = parser.add_mutually_exclusive_group()
        scope.add_argument("--step", metavar="NAME", help="only this step: 'repeat 4 of 9', ProfilerStep#4 or just 4")
        scope.add_argument("--range", metavar="NAME", help="only this record_function range")
        add_verbose(parser, "also show engines, copies, host stalls, steps, ranges, checks and the evidence")
        rare = less_common(parser)
        add_captures(rare)
        add_analysis(rare)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force, inputs=args.traces)
        from overlapscope.reading import find_traces

        found = find_traces(args.traces)
        count = len(found.files)
        if count > _MAX_TRACES:
            raise UsageError(
                f"{count:,} traces are too many for one report, which has a section for each of {_MAX_TRACES:,} at "
                "most; compare them with `overlapscope ranks`, or name fewer, as in 'DIRECTORY/rank1*'."
            )
        with _activity(count) as now:
            traces, unread = _read(args, found.files, now)
            if args.format == "speedscope":
                from overlapscope.export import speedscope

                write(speedscope.render(traces), args.output, force=args.force)
                return DONE
            analyses, scope = _analyze(args, traces, now)
            from msgspec.structs import replace

            from overlapscope.report.model import build
            from overlapscope.report.page import Page, sampled_hosts

            now(f"looking for savings in {count:,} traces")
            report = build(analyses, scope=scope, plain_step_ns=args.plain_step)
        report = replace(report, notes=(*found.notes, *unread, *report.notes))
        page = Page(report, scope=scope, verbose=args.verbose, sampled=sampled_hosts(analyses))
        present(report, lambda: _document(page, analyses, args), args, verbose=args.verbose)
        return DONE


@contextmanager
def _activity(count: int) -> Iterator[Callable[[str], None]]:
    """Provide a function that shows what is done with many traces, on a terminal only."""
    if count <= _MAX_BARS:
        yield lambda what: None
        return
    from overlapscope.render.progress import Progress

    with Progress() as progress:
        yield progress.now


def _read(args: argparse.Namespace, files: Sequence[Path], now: Callable[[str], None]) -> tuple[list[Trace], list[str]]:
    """Read the traces.

    Returns:
        The traces, and sentences about unreadable files in directories and patterns.

    Raises:
        UnreadableTrace: A file that the user named can't be read, or no file can.
    """
    from overlapscope.reading import load
    from overlapscope.reading.file_names import input_path

    limit, named_files = size_limit(args), {*map(input_path, args.traces)}
    options = {"limit_bytes": limit, "cache": args.cache, "steps_by": args.steps_by, "captures": args.capture}
    traces: list[Trace] = []
    unread: dict[Path, UnreadableTrace] = {}
    for number, path in enumerate(files, 1):
        now(f"reading trace {number:,} of {len(files):,}")
        try:
            traces.append(load(path, progress=len(files) <= _MAX_BARS, **options))
        except UnreadableTrace as error:
            if path in named_files:
                raise
            unread[path] = error
    if not traces:
        first, *_ = unread.values()
        raise first
    if len(unread) > 1:
        return traces, [
            f"Left out {len(unread)} files that cannot be read as traces: {listed(unread, _MAX_NAMED_FILES)}."
        ]
    return traces, [f"Left out: {error}" for error in unread.values()]


def _analyze(
    args: argparse.Namespace, traces: Sequence[Trace], now: Callable[[str], None]
) -> tuple[list[TraceAnalysis], str]:
    from overlapscope.analysis import analyze_trace
    from overlapscope.analysis.periods import step_called

    scope = args.range or "window"
    analyses: list[TraceAnalysis] = []
    left_out: list[NotInTrace] = []
    for number, trace in enumerate(traces, 1):
        now(f"analyzing trace {number:,} of {len(traces):,}")
        step = None if args.step is None else step_called(trace.annotations, args.step)
        scope = step or scope
        try:
            analyses.append(analyze_trace(trace, device=args.device, step=step, range=args.range))
        except NotInTrace as error:
            left_out.append(error)
    if not analyses:
        raise left_out[0]
    for reason in left_out:
        tell(f"Left out: {reason}")
    return analyses, scope


def _with_strips(page: Page, analyses: list[TraceAnalysis], slices: int) -> Page:
    from msgspec.structs import replace

    from overlapscope.analysis.strip import measure

    strips = {
        (number, device.result.device): measure(
            device.timeline, device.result, scope=page.scope, slices=slices, lanes=8 if page.verbose else 4
        )
        for number, analysis in enumerate(analyses)
        for device in analysis.devices
        if device.result.span_ns > 0
    }
    return replace(page, strips=strips)


def _document(page: Page, analyses: list[TraceAnalysis], args: argparse.Namespace) -> Document:
    if args.format == "html":
        from overlapscope import timeline
        from overlapscope.timeline.file import document as file_document

        return file_document(page, [timeline.build(analysis) for analysis in analyses])
    from overlapscope.documents.model import LABEL_WIDTH
    from overlapscope.report.document import document

    if args.format == "text":
        from overlapscope.render import terminal

        slices = max(10, terminal.width_of(None if args.output else sys.stdout) - LABEL_WIDTH)
    else:
        from overlapscope.render.markdown import STRIP_SLICES

        slices = STRIP_SLICES
    return document(_with_strips(page, analyses, slices))
