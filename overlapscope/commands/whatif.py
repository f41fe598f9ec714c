"""`overlapscope whatif`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.commands import DONE
from overlapscope.commands._output import check_output, write, write_file
from overlapscope.commands._reading import add_plain_step, add_reading_arguments
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.prediction import Prediction
    from overlapscope.trace.model import Trace
    from overlapscope.views.old_tables import Table

FORMATS = ("text", "json", "markdown")
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
        changes.add_argument("--best", action="store_true", help="find the changes that gain most, one after the other")
        parser.add_argument("--device", type=int, metavar="N", help="this device (default: the busiest)")
        parser.add_argument(
            "--calibration",
            metavar="FILE",
            type=Path,
            help="what `overlapscope scenarios calibrate` measured on that GPU (default: that of the working "
            "directory's overlapscope-laboratory, if it is of the trace's GPU)",
        )
        parser.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="write the predicted timeline to FILE, as a Chrome trace"
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
        add_plain_step(parser)
        add_reading_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        asked = list(dict.fromkeys(args.interventions or ()))
        if args.best and asked:
            raise UsageError(f"--best finds the changes itself; leave out either it or --{asked[0].split()[0]}.")
        check_output(args.output, force=args.force, inputs=(args.trace, args.calibration))
        trace = _load(args)
        prediction = _predict(trace, asked, args)
        write(_drawn(prediction, args, nothing_asked=not (asked or args.best)), None)
        if prediction.result.predicted_step_ns is None:
            return NOT_PREDICTED
        if args.output is not None:
            _write_timeline(prediction, args)
        return DONE


def _add(parser: argparse._ArgumentGroup, option: Option) -> None:
    flag, dest = f"--{option.id}", "interventions"
    if option.argument is None:
        parser.add_argument(flag, dest=dest, action="append_const", const=option.id, help=option.help)
        return

    def spelled(argument: str) -> str:
        if not option.required and os.path.isfile(argument):
            raise argparse.ArgumentTypeError(
                f"{argument!r} is a file and no {option.argument}; write TRACE first, or {flag}={option.argument}"
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


def _load(args: argparse.Namespace) -> Trace:
    from overlapscope.reading import LIMIT_BYTES, load

    if Path(args.trace).is_dir():
        raise UsageError(f"{args.trace}: is a directory; name one trace in it, as ranks are predicted one by one.")
    return load(args.trace, limit_bytes=LIMIT_BYTES if args.max_size is None else args.max_size, cache=args.cache)


def _predict(trace: Trace, asked: list[str], args: argparse.Namespace) -> Prediction:
    from overlapscope.inputs import read_calibration
    from overlapscope.prediction import best, predict
    from overlapscope.prediction.names import check_names

    check_names(trace, asked)
    calibration = read_calibration(args.calibration, trace, device=args.device)
    try:
        if args.best:
            return best(trace, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
        return predict(trace, asked, device=args.device, calibration=calibration, plain_step_ns=args.plain_step)
    except KeyError:
        known = ", ".join(map(str, trace.devices)) or "none"
        raise UsageError(
            f"{trace.source}: there is no device {args.device}; devices that did anything: {known}."
        ) from None


def _drawn(prediction: Prediction, args: argparse.Namespace, *, nothing_asked: bool) -> bytes:
    result = prediction.result
    offered = _offered() if nothing_asked and result.replay.valid else None
    if args.format == "json":
        from overlapscope.views.whatif import json

        return json.render(result)
    if args.format == "markdown":
        from overlapscope.views.whatif import markdown

        return markdown.render(result, offered=offered).encode("utf-8", "replace")
    from overlapscope.views import terminal
    from overlapscope.views.whatif import text

    width, color, encoding = terminal.describe(sys.stdout)
    shown = text.render(result, width=width, color=color, encoding=encoding, offered=offered)
    return shown.encode(encoding, "replace")


def _offered() -> Table:
    """What can be asked for."""
    from overlapscope.views.old_tables import Column, Table, text

    rows = [(f"--{one.id} {_metavar(one)}".rstrip(), one.help) for one in OPTIONS]
    rows.append(("--best", "the changes that gain most, one after the other"))
    columns = (text("option"), Column("what the program is like then", number=False, flexible=True, prose=True))
    return Table("Changes that can be predicted", columns, tuple(rows))


def _metavar(option: Option) -> str:
    return "" if option.argument is None else option.argument if option.required else f"[{option.argument}]"


def _write_timeline(prediction: Prediction, args: argparse.Namespace) -> None:
    from overlapscope.export import chrome_trace

    if prediction.after is None:
        return
    blocks = chrome_trace.blocks(prediction.after, packed=args.output.suffix == ".gz")
    write_file(blocks, args.output, force=args.force)
