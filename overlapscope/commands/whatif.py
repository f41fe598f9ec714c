"""`overlapscope whatif`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.catalog.interventions import INTERVENTIONS, InterventionWords
from overlapscope.commands import DONE
from overlapscope.commands._many_traces import add_workers, reading_progress
from overlapscope.commands._options import (
    add_analysis,
    add_format,
    add_output,
    add_verbose,
    less_common,
    size_limit,
    whole_number,
)
from overlapscope.commands._output import check_output, present, same_file, write_file
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.documents.model import Document
    from overlapscope.documents.table import Table
    from overlapscope.prediction.predict import Prediction
    from overlapscope.prediction.result import WhatIf

NOT_PREDICTED = 1
"""Exit code if the replay cannot reproduce the recording."""
_BEST = "find the changes that save most, one after the other"
_JOB_CHANGES = {
    "--no-straggler": "let the latest rank compute like the others",
    "--issue-earlier": "start collectives as soon as their input is ready",
    "--own-communicators": "start collectives beside others of their process group",
    "--bandwidth 2x": "transfer this many times as fast",
    "--bucket-mb N": "merge or divide data-parallel buckets, to N MB each",
}
"""Help by option."""


class WhatifCommand:
    """Predict the step time of a changed program before anyone writes it:
    replay the trace with pinned memory, copies on their own CUDA streams,
    launches in a CUDA graph, and so on.

    TRACE is a trace file (.json.gz, trace_view.json, .sqlite, .xplane.pb). With
    the traces of all ranks of a job, or a directory or pattern of them, their
    replays are joined at their collectives, so the step is the job's. The
    prediction is an interval, with its assumptions. Without a change, the
    command tests whether the replay can reproduce the recording. If it cannot,
    there is no prediction, and the exit code is 1.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "traces", nargs="+", metavar="TRACE", help="trace file, or - for stdin; for a job, all ranks' traces"
        )
        changes = parser.add_argument_group("changes")
        for intervention in INTERVENTIONS.values():
            _add(changes, intervention)
        changes.add_argument("--best", action="store_true", help=_BEST)
        job = parser.add_argument_group("changes of a job, given the traces of all ranks")
        for option in ("--no-straggler", "--issue-earlier", "--own-communicators"):
            job.add_argument(option, action="store_true", help=_JOB_CHANGES[option])
        job.add_argument("--bandwidth", metavar="2x", type=_times, help=_JOB_CHANGES["--bandwidth 2x"])
        job.add_argument("--bucket-mb", metavar="N", type=_positive, help=_JOB_CHANGES["--bucket-mb N"])
        job.add_argument(
            "--rank",
            dest="rank",
            action="append",
            metavar="N",
            type=whole_number("a rank", 0, 2**31 - 1),
            help="change only this rank (default: all). Can be given several times",
        )
        add_workers(job)
        rare = less_common(parser)
        rare.add_argument("--device", type=int, metavar="N", help="only this device (default: the busiest)")
        rare.add_argument(
            "--calibration",
            metavar="FILE",
            type=Path,
            help="hardware constants that `overlapscope scenarios calibrate` measured on this GPU (default: those "
            "in ./overlapscope-laboratory, if they are of the trace's GPU)",
        )
        add_format(parser)
        add_output(parser)
        rare.add_argument(
            "--timeline",
            metavar="FILE",
            type=Path,
            help="also write the predicted timeline to FILE, as a Chrome trace for Perfetto",
        )
        add_verbose(parser, "also show where each change applies, how to make it, and what the prediction rests on")
        add_analysis(rare)

    def run(self, args: argparse.Namespace) -> int:
        asked = list(dict.fromkeys(args.interventions or ()))
        if args.best and asked:
            from overlapscope.prediction.interventions import name_and_argument

            name, _ = name_and_argument(asked[0])
            raise UsageError(f"--best finds the changes itself; leave out --best or --{name}.")
        for output in (args.output, args.timeline):
            check_output(output, force=args.force, inputs=(*args.traces, args.calibration))
        if args.timeline is not None and args.output is not None and same_file(args.timeline, args.output):
            raise UsageError(f"{args.output}: is the output of both report and timeline; name two files.")
        if _is_job(args):
            return _run_job(asked, args)
        prediction = _predict(asked, args)
        result, offers = prediction.result, not (asked or args.best)
        present(result, lambda: _document(result, offers=offers), args, verbose=args.verbose)
        if prediction.expected is None:
            return NOT_PREDICTED
        if args.timeline is not None and prediction.after is not None:
            from overlapscope.export import chrome_trace

            blocks = chrome_trace.blocks(prediction.after, packed=args.timeline.suffix == ".gz")
            write_file(blocks, args.timeline, force=args.force)
        return DONE


def _times(text: str) -> float:
    """Return the number from 0.01 to 1000 in a text such as `2x` or `1.5`. Raises ArgumentTypeError."""
    number = _above_zero(text.lower().removesuffix("x"), f"{text!r} is not a number of times; write it like 2x")
    if 0.01 <= number <= 1000:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not between 0.01x and 1000x")


def _positive(text: str) -> float:
    """Return a size in MB. Raises ArgumentTypeError."""
    return _above_zero(text, f"{text!r} is not a number of MB; write it like 25")


def _above_zero(text: str, message: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise argparse.ArgumentTypeError(message)


_OF_ONE_TRACE = {
    "best": "--best",
    "device": "--device",
    "calibration": "--calibration",
    "timeline": "--timeline",
    "plain_step": "--plain-step",
    "steps_by": "--steps-by",
}
_OF_JOBS = {
    "no_straggler": "--no-straggler",
    "issue_earlier": "--issue-earlier",
    "own_communicators": "--own-communicators",
    "bandwidth": "--bandwidth",
    "bucket_mb": "--bucket-mb",
    "rank": "--rank",
    "workers": "--workers",
    "scheduler": "--scheduler",
}


def _is_job(args: argparse.Namespace) -> bool:
    """Return whether ranks are to be joined. Raises UsageError for options that don't fit the traces."""
    several = len(args.traces) > 1 or _names_several(args.traces[0])
    of_jobs = [option for name, option in _OF_JOBS.items() if getattr(args, name)]
    if not several and of_jobs:
        raise UsageError(f"{of_jobs[0]} needs the traces of all ranks of a job, but there is one trace.")
    of_one = [
        option for name, option in _OF_ONE_TRACE.items() if getattr(args, name) is not None and getattr(args, name)
    ]
    if several and of_one:
        raise UsageError(f"{of_one[0]} is for a single trace; leave it out, or name one trace.")
    return several


def _names_several(source: str) -> bool:
    """Return whether a source is a directory, a pattern or a URL."""
    from overlapscope.ranks.files import is_url

    return os.path.isdir(source) or is_url(source) or (has_magic(source) and not os.path.exists(source))


def _run_job(asked: list[str], args: argparse.Namespace) -> int:
    from functools import partial

    from overlapscope.prediction.interventions import parse
    from overlapscope.ranks.engine import each
    from overlapscope.ranks.files import expand_urls
    from overlapscope.ranks.joint.document import document
    from overlapscope.ranks.joint.predict import JobChanges, predict_job
    from overlapscope.ranks.joint.rank import RankSummary, Unfit
    from overlapscope.ranks.joint.summary import summarize
    from overlapscope.ranks.result import Unreadable

    parse(asked)
    changes = JobChanges(args.no_straggler, args.issue_earlier, args.own_communicators, args.bandwidth, args.bucket_mb)
    numbers = tuple(args.rank) if args.rank else None
    if numbers and not (asked or args.no_straggler):
        raise UsageError("--rank needs a change on ranks, such as --pin or --no-straggler.")
    locations = expand_urls(args.traces)
    reduction = partial(summarize, changes=tuple(asked), numbers=numbers)
    options = {"scheduler": args.scheduler, "workers": args.workers, "limit_bytes": size_limit(args)}
    summaries = list[RankSummary | Unfit]()
    with closing(each(reduction, locations, **options)) as outcomes, reading_progress(len(locations)) as advance:
        for outcome in outcomes:
            summaries.append(Unfit(outcome.source, outcome.reason) if isinstance(outcome, Unreadable) else outcome)
            advance(sum(isinstance(summary, Unfit) for summary in summaries))
    result = predict_job(summaries, changes, numbers)
    offered = None if asked or changes.any else _offered(_JOB_CHANGES)
    present(result, lambda: document(result, offered=offered), args, verbose=args.verbose)
    return DONE if result.valid else NOT_PREDICTED


def _add(parser: argparse._ArgumentGroup, intervention: InterventionWords) -> None:
    flag, dest = f"--{intervention.id}", "interventions"
    if intervention.argument is None:
        parser.add_argument(flag, dest=dest, action="append_const", const=intervention.id, help=intervention.help)
        return

    def spelled(argument: str) -> str:
        if not intervention.argument_required and os.path.isfile(argument):
            raise argparse.ArgumentTypeError(
                f"{argument!r} is a file, not a {intervention.argument}; write TRACE first, "
                f"or {flag}={intervention.argument}"
            )
        return f"{intervention.id} {argument}".rstrip()

    parser.add_argument(
        flag,
        dest=dest,
        action="append",
        metavar=intervention.argument,
        type=spelled,
        nargs=None if intervention.argument_required else "?",
        const=None if intervention.argument_required else "",
        help=intervention.help,
    )


def _predict(asked: list[str], args: argparse.Namespace) -> Prediction:
    from overlapscope.inputs import read_calibration, read_trace
    from overlapscope.prediction.gains import best
    from overlapscope.prediction.interventions import check_names
    from overlapscope.prediction.predict import predict

    trace = read_trace(args.traces[0], limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by)
    check_names(trace, asked)
    calibration = read_calibration(args.calibration, trace, device=args.device)
    if args.best:
        return best(trace, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
    return predict(trace, asked, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)


def _document(result: WhatIf, *, offers: bool) -> Document:
    """Return the document; `offers` adds the available changes."""
    from overlapscope.prediction.document import document

    offered = _offered({"--best": _BEST}) if offers and result.replay.valid else None
    return document(result, offered=offered)


def _offered(others: Mapping[str, str]) -> Table:
    """Return a table of the available changes: interventions, and others with their help by option."""
    from overlapscope.documents.table import Table, prose, rows, words

    lines = [
        (f"--{intervention.id} {_metavar(intervention)}".rstrip(), intervention.help)
        for intervention in INTERVENTIONS.values()
    ]
    lines += others.items()
    columns = (words("option"), prose("what it does"))
    return Table("Changes to predict", columns, rows(lines))


def _metavar(intervention: InterventionWords) -> str:
    return (
        ""
        if intervention.argument is None
        else intervention.argument
        if intervention.argument_required
        else f"[{intervention.argument}]"
    )
