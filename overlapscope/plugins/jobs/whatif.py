"""Predictions for `overlapscope whatif` from the traces of all ranks of a job, joined at their collectives."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial
from typing import Final

from overlapscope.commands import DONE
from overlapscope.commands._options import add_workers, whole_number
from overlapscope.commands._output import present
from overlapscope.commands.ranks import reduced
from overlapscope.commands.whatif import NOT_PREDICTED, offered
from overlapscope.errors import UsageError

_CHANGES: Final = {
    "--no-straggler": "let the latest rank compute like the others",
    "--issue-earlier": "start collectives as soon as their input is ready",
    "--bandwidth 2x": "transfer this many times as fast",
    "--bucket-mb N": "merge or divide data-parallel buckets, to N MB each",
}
"""Help by option."""
_NAMES: Final = ("no_straggler", "issue_earlier", "bandwidth", "bucket_mb")
OPTIONS: Final = {name: f"--{name.replace('_', '-')}" for name in (*_NAMES, "rank", "workers", "scheduler")}
"""Options by their names in the parsed arguments."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    job = parser.add_argument_group("changes of a job, given the traces of all ranks")
    for option in ("--no-straggler", "--issue-earlier"):
        job.add_argument(option, action="store_true", help=_CHANGES[option])
    job.add_argument("--bandwidth", metavar="2x", type=_times, help=_CHANGES["--bandwidth 2x"])
    job.add_argument("--bucket-mb", metavar="N", type=_megabytes, help=_CHANGES["--bucket-mb N"])
    job.add_argument(
        "--rank",
        dest="rank",
        action="append",
        metavar="N",
        type=whole_number("a rank", 0, 2**31 - 1),
        help="change only this rank (default: all). Can be given several times",
    )
    add_workers(job)


def run(interventions: list[str], args: argparse.Namespace) -> int:
    """Predict the step of the job, print the result, and return the exit code. Raises UsageError."""
    from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
    from overlapscope.plugins.jobs.joint.result import document
    from overlapscope.plugins.jobs.joint.summary import summarize
    from overlapscope.prediction.interventions import parse

    parse(interventions)
    changes = JobChanges(*(getattr(args, name) for name in _NAMES))
    numbers = tuple(args.rank) if args.rank else None
    if numbers and not (interventions or args.no_straggler):
        raise UsageError("--rank needs a change on ranks, such as --pin or --no-straggler.")
    reduction = partial(summarize, changes=tuple(interventions), numbers=numbers)
    result = predict_job(reduced(reduction, args.traces, args), changes, numbers)
    choice = None if interventions or changes.any else offered(_CHANGES)
    present(result, lambda: document(result, offered=choice), args, verbose=args.verbose)
    return DONE if result.valid else NOT_PREDICTED


def _times(text: str) -> float:
    """Return the number from 0.01 to 1000 in a text such as `2x` or `1.5`. Raises ArgumentTypeError."""
    number = _above_zero(text.lower().removesuffix("x"), f"{text!r} is not a number of times; write it like 2x")
    if 0.01 <= number <= 1000:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not between 0.01x and 1000x")


def _megabytes(text: str) -> float:
    return _above_zero(text, f"{text!r} is not a number of MB; write it like 25")


def _above_zero(text: str, message: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise argparse.ArgumentTypeError(message)
