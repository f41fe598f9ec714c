"""`overlapscope whatif`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from overlapscope.base.registry import load
from overlapscope.catalog.interventions import INTERVENTIONS, Intervention
from overlapscope.commands import DONE
from overlapscope.commands._options import add_analysis, add_format, add_output, add_verbose, less_common
from overlapscope.commands._output import check_output, present, same_file, write_file
from overlapscope.errors import UsageError
from overlapscope.plugin import plugins

if TYPE_CHECKING:
    from overlapscope.documents.model import Document
    from overlapscope.documents.table import Table
    from overlapscope.prediction.predict import Prediction

NOT_PREDICTED = 1
"""Exit code if the replay cannot reproduce the recording."""
_BEST = "find the changes that save most, one after the other"


class JobPredictor(Protocol):
    """A plugin's module that predicts the step of a job from the traces of all ranks."""

    OPTIONS: Mapping[str, str]
    """Its options, by their names in the parsed arguments."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""

    def run(self, interventions: list[str], args: argparse.Namespace) -> int:
        """Predict with these interventions, print the result, and return the exit code."""


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
        if (predictor := _job_predictor()) is not None:
            predictor.add_options(parser)
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
        interventions = list(dict.fromkeys(args.interventions or ()))
        if args.best and interventions:
            from overlapscope.prediction.interventions import name_and_argument

            name, _ = name_and_argument(interventions[0])
            raise UsageError(f"--best finds the changes itself; leave out --best or --{name}.")
        for output in (args.output, args.timeline):
            check_output(output, force=args.force, inputs=(*args.traces, args.calibration))
        if args.timeline is not None and args.output is not None and same_file(args.timeline, args.output):
            raise UsageError(f"{args.output}: is the output of both report and timeline; name two files.")
        if (predictor := _predictor_of_ranks(args)) is not None:
            return predictor.run(interventions, args)
        prediction = _predict(interventions, args)
        result, offers = prediction.result, not (interventions or args.best) and prediction.result.replay.valid

        def shown() -> Document:
            from overlapscope.prediction.document import document

            return document(result, offered=offered({"--best": _BEST}) if offers else None)

        present(result, shown, args, verbose=args.verbose)
        if prediction.expected is None:
            return NOT_PREDICTED
        if args.timeline is not None and prediction.after is not None:
            from overlapscope.export import chrome_trace

            blocks = chrome_trace.blocks(prediction.after, packed=args.timeline.suffix == ".gz")
            write_file(blocks, args.timeline, force=args.force)
        return DONE


_OF_ONE_TRACE = {
    "best": "--best",
    "device": "--device",
    "calibration": "--calibration",
    "timeline": "--timeline",
    "plain_step": "--plain-step",
    "steps_by": "--steps-by",
}


def _job_predictor() -> JobPredictor | None:
    places = (plugin.jobs for plugin in plugins() if plugin.jobs is not None)
    return next((load(place) for place in places), None)


def _predictor_of_ranks(args: argparse.Namespace) -> JobPredictor | None:
    """Return the predictor for several traces; None for a single one. Raises UsageError for options that don't fit."""
    from overlapscope.ranks.files import is_url

    source, predictor = args.traces[0], _job_predictor()
    several = len(args.traces) > 1 or os.path.isdir(source) or is_url(source)
    several = several or (has_magic(source) and not os.path.exists(source))
    of_jobs = [option for name, option in predictor.OPTIONS.items() if getattr(args, name)] if predictor else []
    if not several and of_jobs:
        raise UsageError(f"{of_jobs[0]} needs the traces of all ranks of a job, but there is one trace.")
    of_one = [option for name, option in _OF_ONE_TRACE.items() if getattr(args, name)]
    if several and of_one:
        raise UsageError(f"{of_one[0]} is for a single trace; leave it out, or name one trace.")
    if several and predictor is None:
        raise UsageError("no plugin predicts the step of a job here; name one trace.")
    return predictor if several else None


def _add(parser: argparse._ArgumentGroup, intervention: Intervention) -> None:
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


def _predict(interventions: list[str], args: argparse.Namespace) -> Prediction:
    from overlapscope.inputs import read_calibration, read_trace
    from overlapscope.prediction.interventions import check_names
    from overlapscope.prediction.predict import best, predict

    trace = read_trace(args.traces[0], limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by)
    check_names(trace, interventions)
    calibration = read_calibration(args.calibration, trace, device=args.device)
    if args.best:
        return best(trace, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
    return predict(trace, interventions, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)


def offered(others: Mapping[str, str]) -> Table:
    """Return a table of the available changes: interventions, and others with their help by option."""
    from overlapscope.documents.table import Table, prose, rows, words

    lines = [(intervention.spelled, intervention.help) for intervention in INTERVENTIONS.values()]
    lines += others.items()
    columns = (words("option"), prose("what it does"))
    return Table("Changes to predict", columns, rows(lines))
