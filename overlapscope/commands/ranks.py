"""The command `overlapscope ranks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from overlapscope.base.output import environment
from overlapscope.base.words import plural
from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_max_size, add_output, add_verbose, size_limit, whole_number
from overlapscope.commands._output import check_output, present
from overlapscope.errors import UnreadableTrace

if TYPE_CHECKING:
    from overlapscope.documents.model import Document
    from overlapscope.ranks.result import RanksReport


class RanksCommand:
    """Compare the ranks of a job: which rank delays the others, in which
    collectives, and how the ranks differ.

    A SOURCE is a trace file (.json.gz, .sqlite, .xplane.pb), a directory, a glob
    pattern, or a URL of these (http, s3, gs, hdfs..., with the plugins of
    fsspec). Worker processes read the traces: one per core of this machine
    (one in all without Dask), or the workers of the Dask cluster named with
    --scheduler, which must see the files under the same paths. A trace that
    cannot be read is reported and left out.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("sources", nargs="+", metavar="SOURCE", help="trace file, directory, glob pattern or URL")
        add_format(parser)
        add_output(parser)
        add_verbose(parser, "also show collectives, steps, the ranks that stand out, and clocks")
        parser.add_argument("--expect", type=_positive, metavar="N", help="expected number of ranks")
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--workers", type=_positive, metavar="N", help="number of processes (default: one per core)")
        where.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler to use, such as tcp://host:8786")
        add_max_size(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force, inputs=args.sources)
        report = _join(args)
        if not report.ranks:
            first = report.unreadable[0]
            raise UnreadableTrace(
                f"{plural(len(report.unreadable), 'trace')} could not be read; {first.source}: {first.reason}"
            )
        present(report, lambda: _document(report, args), args, verbose=args.verbose)
        return DONE


def _positive(text: str) -> int:
    from overlapscope.ranks.join import MOST_RANKS

    return whole_number(f"a number from 1 to {MOST_RANKS:,}", 1, MOST_RANKS)(text)


def _join(args: argparse.Namespace) -> RanksReport:
    from msgspec.structs import replace

    from overlapscope.ranks.engine import reduce_all
    from overlapscope.ranks.files import expand_urls
    from overlapscope.ranks.join import Joined
    from overlapscope.ranks.result import Unreadable
    from overlapscope.reading import look

    locations = expand_urls(args.sources)
    limit = size_limit(args)
    joined = Joined(expected=args.expect)
    outcomes = reduce_all(locations, scheduler=args.scheduler, workers=args.workers, limit_bytes=limit)
    unreadable = 0
    with closing(outcomes), _progress(len(locations)) as advance:
        for outcome in outcomes:
            if isinstance(outcome, Unreadable):
                joined.add(outcome)
                unreadable += 1
            else:
                for rank in outcome:
                    joined.add(rank)
            advance(unreadable)
    report = joined.report()
    return replace(report, notes=(*look(source for source in args.sources if "://" not in source).notes, *report.notes))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal.

    The function it provides takes the number of unreadable traces so far, and is called for each trace.
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

    extent = {"text": TERMINAL, "markdown": MARKDOWN, "html": PAGE}[args.format]
    return document(report, extent)
