"""The command `overlapscope ranks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from overlapscope.base.output import environment
from overlapscope.base.words import plural
from overlapscope.commands import DONE
from overlapscope.commands._options import (
    add_format,
    add_max_size,
    add_output,
    add_verbose,
    add_workers,
    positive,
    size_limit,
)
from overlapscope.commands._output import check_output, present
from overlapscope.errors import UnreadableTrace

if TYPE_CHECKING:
    from overlapscope.documents.model import Document
    from overlapscope.ranks.result import RanksReport, Unreadable
    from overlapscope.trace.model import Trace

T = TypeVar("T")


class RanksCommand:
    """Compare the ranks of a job: which rank delays the others, in which
    collectives, and how the ranks differ.

    A SOURCE is a trace file (.json.gz, trace_view.json, .sqlite, .xplane.pb), a
    directory, a glob pattern, or a URL of these (http, s3, gs, hdfs..., with
    the plugins of fsspec). Processes read the traces: one per core of this machine,
    or the workers of the Dask cluster named with --scheduler, which must see
    the files under the same paths. A trace that cannot be read is reported and
    left out.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("sources", nargs="+", metavar="SOURCE", help="trace file, directory, glob pattern or URL")
        add_format(parser)
        add_output(parser)
        add_verbose(parser, "also show collectives, steps, the ranks that stand out, and clocks")
        parser.add_argument("--expect", type=positive, metavar="N", help="expected number of ranks")
        add_workers(parser)
        add_max_size(parser)

    def run(self, args: argparse.Namespace) -> int:
        from msgspec.structs import replace

        from overlapscope.ranks.join import report_on
        from overlapscope.ranks.on_host import reduce_any
        from overlapscope.reading import find_traces

        check_output(args.output, force=args.force, inputs=args.sources)
        report = report_on(reduced(reduce_any, args.sources, args), expected=args.expect)
        found = find_traces(source for source in args.sources if "://" not in source)
        report = replace(report, notes=(*found.notes, *report.notes))
        if not report.ranks:
            first = report.unreadable[0]
            raise UnreadableTrace(
                f"{plural(len(report.unreadable), 'trace')} could not be read; {first.source}: {first.reason}"
            )
        present(report, lambda: _document(report, args), args, verbose=args.verbose)
        return DONE


def reduced(reduction: Callable[[Trace], T], sources: Sequence[str], args: argparse.Namespace) -> list[T | Unreadable]:
    """Return the traces that sources stand for, each reduced by the processes that the options name."""
    from overlapscope.ranks.engine import reduce_each
    from overlapscope.ranks.files import expand_urls
    from overlapscope.ranks.result import Unreadable

    locations, unreadable, result = expand_urls(sources), 0, list[T | Unreadable]()
    options = {"scheduler": args.scheduler, "workers": args.workers, "limit_bytes": size_limit(args)}
    with (
        closing(reduce_each(reduction, locations, **options)) as outcomes,
        _reading_progress(len(locations)) as advance,
    ):
        for outcome in outcomes:
            result.append(outcome)
            unreadable += isinstance(outcome, Unreadable)
            advance(unreadable)
    return result


@contextmanager
def _reading_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal.

    Yields:
        A function to call for each trace, with the number of unreadable traces so far.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda unreadable: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("reading traces"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, _environ=environment()), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda unreadable: progress.update(
            task, advance=1, description=f"{unreadable} unreadable" if unreadable else ""
        )


def _document(report: RanksReport, args: argparse.Namespace) -> Document:
    from overlapscope.ranks.document import MARKDOWN, PAGE, TERMINAL, document

    return document(report, {"text": TERMINAL, "markdown": MARKDOWN, "html": PAGE}[args.format])
