"""Options and progress of commands that read many traces at once, on a Dask cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from overlapscope.base.output import environment
from overlapscope.commands._options import whole_number


def add_workers(parser: argparse._ActionsContainer) -> None:
    """Add `--workers` and `--scheduler`, of which one can be given."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=positive, metavar="N", help="number of processes (default: one per core)")
    where.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler to use, such as tcp://host:8786")


def positive(text: str) -> int:
    """Return a number of ranks or processes. Raises ArgumentTypeError."""
    from overlapscope.ranks.reduced import MOST_RANKS

    return whole_number(f"a number from 1 to {MOST_RANKS:,}", 1, MOST_RANKS)(text)


@contextmanager
def reading_progress(total: int) -> Iterator[Callable[[int], None]]:
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
