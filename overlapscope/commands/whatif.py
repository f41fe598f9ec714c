"""`overlapscope whatif`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output, add_plain_step, add_reading
from overlapscope.commands._output import check_output, drawn, same_file, write, write_file
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.documents.table import Table
    from overlapscope.prediction import Prediction
    from overlapscope.prediction.result import WhatIf

NOT_PREDICTED = 1
"""Exit code where the replay does not explain the recording."""


@dataclass(frozen=True, slots=True)
class Option:
    """An intervention as an option, without what it takes to import it."""

    id: str
    help: str
    """Begins with the intervention's title."""
    argument: str | None = None
    required: bool = True


OPTIONS: Final = (
    Option("faster-loader", "data is there when it is asked for"),
    Option("pin", "host memory pinned beforehand"),
    Option("non-blocking", "copies with non_blocking=True"),
    Option("no-sync", "a blocking call returns at once: CALL, or calls inside the op or range CALL", "CALL"),
    Option("batch-copies", "many small copies as one"),
    Option("side-stream", "copies on their own stream per direction"),
    Option("two-way", "both copy directions at once"),
    Option("prefetch", "input copied one step ahead"),
    Option("graph", "launches as a CUDA graph: of each range named RANGE, or of each step", "RANGE", required=False),
)
"""In the order of `INTERVENTIONS`."""


class Command:
    """Say what a step would take if the program were changed: the trace is
    replayed with copies pinned, moved to their own streams, launches in a
    graph and so on, before anyone writes it.

    TRACE is one trace file (.json, .json.gz, .json.zst). The answer is an
    interval, with what it rests on. With no change at all, it says whether the
    recording can be replayed; where it cannot, nothing is predicted and the
    exit code is 1.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", metavar="TRACE", help="trace file, or - for stdin")
        changes = parser.add_argument_group("changes")
        for option in OPTIONS:
            _add(changes, option)
        changes.add_argument("--best", action="store_true", help="find the changes that save most, one after the other")
        parser.add_argument("--device", type=int, metavar="N", help="only only this device (default: the busiest)")
        parser.add_argument(
            "--calibration",
            metavar="FILE",
            type=Path,
            help="hardware constants that `overlapscope scenarios calibrate` measured on this GPU (default: those "
            "in ./overlapscope-laboratory, if they are of the trace's GPU)",
        )
        add_format(parser)
        add_output(parser)
        parser.add_argument(
            "--timeline",
            metavar="FILE",
            type=Path,
            help=("also write the predicted timeline to FILE, as a Chrome trace for Perfetto for Perfetto"),
        )
        add_plain_step(parser)
        add_reading(parser)

    def run(self, args: argparse.Namespace) -> int:
        asked = list(dict.fromkeys(args.interventions or ()))
        if args.best and asked:
            raise UsageError(f"--best finds the changes itself; leave out --best or --{asked[0].split()[0]}.")
        for output in (args.output, args.timeline):
            check_output(output, force=args.force, inputs=(args.trace, args.calibration))
        if args.timeline is not None and args.output is not None and same_file(args.timeline, args.output):
            raise UsageError(f"{args.output}: is the output of both report and timeline; name two files.")
        prediction = _predict(asked, args)
        write(_drawn(prediction.result, args, nothing_asked=not (asked or args.best)), args.output, force=args.force)
        if prediction.after is None:
            return NOT_PREDICTED
        if args.timeline is not None:
            from overlapscope.export import chrome_trace

            blocks = chrome_trace.blocks(prediction.after, packed=args.timeline.suffix == ".gz")
            write_file(blocks, args.timeline, force=args.force)
        return DONE


def _add(parser: argparse._ArgumentGroup, option: Option) -> None:
    flag, dest = f"--{option.id}", "interventions"
    if option.argument is None:
        parser.add_argument(flag, dest=dest, action="append_const", const=option.id, help=option.help)
        return

    def spelled(argument: str) -> str:
        if not option.required and os.path.isfile(argument):
            raise argparse.ArgumentTypeError(
                f"{argument!r} is a file, not a {option.argument}; write TRACE first, or {flag}={option.argument}"
            )
        return f"{option.id} {argument}".rstrip()

    parser.add_argument(
        flag,
        dest=dest,
        action="append",
        metavar=option.argument,
        type=spelled,
        nargs=None if option.required else "?",
        const=None if option.required else "",
        help=option.help,
    )


def _predict(asked: list[str], args: argparse.Namespace) -> Prediction:
    from overlapscope.inputs import read_calibration, read_trace
    from overlapscope.prediction import best, predict
    from overlapscope.prediction.interventions import check_names

    trace = read_trace(args.trace, limit_bytes=args.max_size, cache=args.cache)
    check_names(trace, asked)
    calibration = read_calibration(args.calibration, trace, device=args.device)
    if args.best:
        return best(trace, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
    return predict(trace, asked, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)


def _drawn(result: WhatIf, args: argparse.Namespace, *, nothing_asked: bool) -> bytes:
    if args.format == "json":
        from overlapscope.base.saved import encode

        return encode(result)
    from overlapscope.prediction.document import document

    return drawn(document(result, offered=_offered() if nothing_asked and result.replay.valid else None), args)


def _offered() -> Table:
    """What can be asked for."""
    from overlapscope.documents.table import Column, Table, rows, words

    lines = [(f"--{option.id} {_metavar(option)}".rstrip(), option.help) for option in OPTIONS]
    lines.append(("--best", "the changes that gain most, one after the other"))
    columns = (words("option"), Column("what the program is like then", number=False, flexible=True, prose=True))
    return Table("Changes that can be predicted", columns, rows(lines))


def _metavar(option: Option) -> str:
    return "" if option.argument is None else option.argument if option.required else f"[{option.argument}]"
