"""`overlapscope whatif`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.catalog.interventions import INTERVENTIONS, InterventionWords
from overlapscope.commands import DONE
from overlapscope.commands._options import add_analysis, add_format, add_output, add_verbose, less_common
from overlapscope.commands._output import check_output, present, same_file, write_file
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.documents.model import Document
    from overlapscope.documents.table import Table
    from overlapscope.prediction import Prediction
    from overlapscope.prediction.result import WhatIf

NOT_PREDICTED = 1
"""Exit code if the replay cannot reproduce the recording."""


class WhatifCommand:
    """Predict the step time of a changed program before anyone writes it:
    replay the trace with pinned memory, copies on their own CUDA streams,
    launches in a CUDA graph, and so on.

    TRACE is one trace file (.json.gz, .sqlite, .xplane.pb). The prediction is an
    interval, with its assumptions. Without a change, the command tests whether
    the replay can reproduce the recording. If it cannot, there is no
    prediction, and the exit code is 1.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", metavar="TRACE", help="trace file, or - for stdin")
        changes = parser.add_argument_group("changes")
        for intervention in INTERVENTIONS.values():
            _add(changes, intervention)
        changes.add_argument("--best", action="store_true", help="find the changes that save most, one after the other")
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
            raise UsageError(f"--best finds the changes itself; leave out --best or --{asked[0].split()[0]}.")
        for output in (args.output, args.timeline):
            check_output(output, force=args.force, inputs=(args.trace, args.calibration))
        if args.timeline is not None and args.output is not None and same_file(args.timeline, args.output):
            raise UsageError(f"{args.output}: is the output of both report and timeline; name two files.")
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
    from overlapscope.prediction import best, predict
    from overlapscope.prediction.interventions import check_names

    trace = read_trace(args.trace, limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by)
    check_names(trace, asked)
    calibration = read_calibration(args.calibration, trace, device=args.device)
    if args.best:
        return best(trace, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
    return predict(trace, asked, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)


def _document(result: WhatIf, *, offers: bool) -> Document:
    """Return the document; `offers` adds the available changes."""
    from overlapscope.prediction.document import document

    offered = _offered() if offers and result.replay.valid else None
    return document(result, offered=offered)


def _offered() -> Table:
    """Return a table of the available changes."""
    from overlapscope.documents.table import Table, prose, rows, words

    lines = [
        (f"--{intervention.id} {_metavar(intervention)}".rstrip(), intervention.help)
        for intervention in INTERVENTIONS.values()
    ]
    lines.append(("--best", "find the changes that save most, one after the other"))
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
