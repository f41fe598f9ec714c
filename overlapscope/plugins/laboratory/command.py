"""The command `overlapscope scenarios`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import clean, did_you_mean
from overlapscope.commands import DONE
from overlapscope.commands._options import add_actions, whole_number
from overlapscope.commands._output import check_output, make_directory, write
from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory.experiment import SCALES

if TYPE_CHECKING:
    from overlapscope.plugins.laboratory.catalog import ScenarioFile
    from overlapscope.plugins.laboratory.results import Results

FAILED = 1
DIRECTORY = Path("overlapscope-laboratory")
CALIBRATION = DIRECTORY / "calibration.json"
_MARKDOWN, _HTML = "report.md", "report.html"


class ScenariosCommand:
    """Run experiments on copies, CUDA streams and CUDA graphs with known
    outcomes, record them, and compare the measurements and the analysis with
    the published results.

    An experiment is a plain Python file; name your own by its path.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        action = add_actions(parser)
        action("list", "list the built-in experiments")
        run = action("run", "measure, record and analyse experiments", "The exit code is 1 if a variant failed.")
        what = run.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "names",
            nargs="*",
            default=[],
            metavar="NAME",
            help="name of an experiment, or path of a scenario file",
        )
        what.add_argument("--all", action="store_true", help="run all built-in experiments")
        run.add_argument(
            "--scale",
            choices=SCALES,
            default=SCALES[0],
            help="small fits a GPU with 8 GB (default); paper has the published sizes",
        )
        run.add_argument(
            "--output",
            type=Path,
            default=DIRECTORY,
            metavar="DIR",
            help=f"where to write results (default: {DIRECTORY})",
        )
        run.add_argument(
            "--repeat",
            type=whole_number("a number of iterations", 1, 10**9),
            default=0,
            metavar="N",
            help="time at least N iterations of each variant",
        )
        report = action("report", "compare the results with the published ones and with what must be true")
        report.add_argument("names", nargs="*", metavar="NAME", help="experiment to show in full (default: a summary)")
        report.add_argument(
            "--results",
            type=Path,
            metavar="DIR",
            help=f"results to show (default: {DIRECTORY}, else the built-in results)",
        )
        report.add_argument("--output", type=Path, metavar="DIR", help="where to write report.md and report.html")
        calibrate = action(
            "calibrate", "measure the hardware constants of this GPU, for predictions", "It takes a few seconds."
        )
        calibrate.add_argument(
            "--output",
            type=Path,
            default=CALIBRATION,
            metavar="FILE",
            help=f"where to write the constants (default: {CALIBRATION})",
        )

    def run(self, args: argparse.Namespace) -> int:
        match args.action:
            case "list":
                return _list()
            case "run":
                return _run(args)
            case "report":
                return _report(args)
            case _:
                return _calibrate(args)


# -- Selection -------------------------------------------------------------------------------------


def _list() -> int:
    from overlapscope.plugins.laboratory import catalog
    from overlapscope.plugins.laboratory.document import listing
    from overlapscope.render import terminal

    entries = _load(list(catalog.shipped().values()))
    write(terminal.to_stream(listing(entry.experiment for entry in entries), sys.stdout), None)
    return DONE


def _paths(names: Sequence[str]) -> list[Path]:
    """Return the files of shipped experiments or paths, each once."""
    from overlapscope.plugins.laboratory import catalog

    shipped = catalog.shipped()
    paths = []
    for name in names:
        if name.endswith(".py") or os.sep in name:
            if not Path(name).is_file():
                raise UsageError(f"{name}: this file does not exist; name the .py file of an experiment.")
            paths.append(Path(name).resolve())
        elif name in shipped:
            paths.append(shipped[name])
        else:
            raise UsageError(
                f"there is no experiment {name!r}{did_you_mean(name, shipped)}; `overlapscope scenarios list` lists "
                "them. Name a file of your own by its path."
            )
    return list(dict.fromkeys(paths))


def _load(paths: Sequence[Path]) -> list[ScenarioFile]:
    """Return the experiments of the files. Raises UsageError if one can't be loaded."""
    from overlapscope.plugins.laboratory import catalog

    entries = [catalog.load(path) for path in paths]
    catalog.check_distinct(entries)
    return entries


# -- Run -------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from overlapscope.plugins.laboratory import RESULTS, catalog, runner
    from overlapscope.plugins.laboratory.results import read_results
    from overlapscope.recorder.imports import require_torch
    from overlapscope.render.progress import Progress

    require_torch()
    entries = _load(list(catalog.shipped().values()) if args.all else _paths(args.names))
    directory = Path(os.path.realpath(args.output))
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{args.output}: is not a directory; choose another.")
    read_results(directory)
    with Progress() as progress:
        progress.note("measuring this machine")
        machine = runner.describe_machine()
        if not machine.gpus and all(entry.experiment.gpus > 0 for entry in entries):
            raise UsageError(
                "PyTorch finds no CUDA device, and every chosen experiment needs one; `overlapscope scenarios report` "
                "shows results that were recorded on one."
            )
        try:
            done = runner.run(entries, runner.Plan(directory, args.scale, args.repeat), machine, progress)
        finally:
            if (directory / RESULTS).exists():
                compare = f"overlapscope scenarios report --results {args.output}"
                progress.say(f"Results are in {directory}; `{compare}` compares them.")
    return FAILED if any(result.status == "failed" for result in done) else DONE


# -- Report ----------------------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> int:
    from overlapscope.plugins.laboratory import RESULTS
    from overlapscope.plugins.laboratory.comparison import compare
    from overlapscope.plugins.laboratory.document import document, summary
    from overlapscope.plugins.laboratory.results import read_results
    from overlapscope.render import html, markdown, terminal

    directory, shipped = _results_directory(args.results)
    results = read_results(directory)
    if not results.experiments:
        raise UsageError(f"{directory}: has no {RESULTS}; `overlapscope scenarios run` writes one.")
    output = args.output or (None if shipped or args.names else directory)
    if output is not None:
        make_directory(output)
    comparisons = compare(results)
    named = [comparisons[_place(name, results)] for name in args.names]
    write(terminal.to_stream(document(named, brief=True) if named else summary(comparisons), sys.stdout), None)
    if output is not None:
        for name in (_MARKDOWN, _HTML):
            check_output(output / name, force=True, inputs=[directory / RESULTS])
        report = document(comparisons)
        write(markdown.render(report).encode(), output / _MARKDOWN, force=True)
        write(html.render(report).encode(), output / _HTML, force=True)
    return DONE


def _place(name: str, results: Results) -> int:
    """Return an experiment's place among the results. Raise UsageError if it isn't there."""
    names = [experiment.name for experiment in results.experiments]
    if name not in names:
        raise UsageError(f"there are no results of {name!r}{did_you_mean(name, names)}; results: {', '.join(names)}.")
    return names.index(name)


def _results_directory(chosen: Path | None) -> tuple[Path, bool]:
    """Return the directory of the results, and whether it is the one shipped with overlapscope."""
    from overlapscope.plugins.laboratory import RESULTS
    from overlapscope.reading.samples import SAMPLES

    shipped = SAMPLES / "laboratory"
    default = DIRECTORY if (DIRECTORY / RESULTS).is_file() else shipped
    directory = chosen or default
    return directory, directory.resolve() == shipped.resolve()


# -- Calibration -----------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    from overlapscope.prediction import calibration
    from overlapscope.recorder.imports import require_torch

    require_torch()
    calibration.check_writable(args.output)
    from overlapscope.plugins.laboratory.calibrate import calibrate

    measured = calibrate()
    calibration.write(measured, args.output)
    file = os.fsencode(args.output).decode(errors="backslashreplace")
    tell(f"Wrote the constants of {clean(measured.gpu)} to {file}")
    return DONE
