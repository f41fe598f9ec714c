"""Public programs, unchanged, under `overlapscope run` and `overlapscope try`, and timed by a clock of their own.

    python -m benchmarks.public_programs fetch DIR [--clones TEMPLATE]
    python -m benchmarks.public_programs data DIR [--only NAME]...
    python -m benchmarks.public_programs run DIR FILE [--only NAME]... [--minutes 9]
    python -m benchmarks.public_programs try DIR [--only NAME]... [--each 2.5] [--minutes 9]
    python -m benchmarks.public_programs page docs/evaluation/public-programs.md [FILE]

`public_programs.toml` lists the programs. `fetch` puts their files into `DIR/sources`, at the commits of the list.
`data` makes up their data (`public_programs_data.py`). `run` runs each of them under `overlapscope run`, with hooks
that only read the clock (`public_programs_clock.py`) in the same process, and adds it to FILE, which has all
measurements. `try` runs `overlapscope try` on some of them, then times its recommendation, edited by hand
(`public_programs_try.py`); it writes `DIR/tried/NAME.json`. `page` reads FILE, by default that of this repository, and
the trials in this repository.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from benchmarks import public_programs_try as trials
from benchmarks.public_programs_page import data, page
from benchmarks.public_programs_runs import fetch, make_data, measure, read, table
from benchmarks.public_programs_try import TriedProgram
from benchmarks.public_programs_try_page import data as trials_data
from benchmarks.public_programs_try_page import section

KEPT = Path(__file__).with_name("measured") / "public_programs.json"
TRIED = KEPT.with_name("public_programs_tried")


def read_tried(folder: Path) -> list[TriedProgram]:
    """Read the trials of a folder, in the order of the list."""
    files = [folder / f"{name}.json" for name in table().tried]
    return [msgspec.json.decode(file.read_bytes(), type=TriedProgram) for file in files if file.exists()]


def write_page(file: Path, measured: Path, tried: Path) -> None:
    """Write the page and the CSV files beside it."""
    runs, trials_there = list(read(measured).values()), read_tried(tried)
    file.write_text(page(runs, table(), section(trials_there)), encoding="utf-8")
    file.with_suffix(".csv").write_text(data(runs, table()), encoding="utf-8")
    if trials_there:
        file.with_name(f"{file.stem}-try.csv").write_text(trials_data(trials_there), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    names = [*table().programs]
    for command in ("fetch", "data", "run", "try"):
        subparser = commands.add_parser(command)
        subparser.add_argument("out", type=Path, metavar="DIR")
        if command == "fetch":
            subparser.add_argument(
                "--clones", default="", metavar="TEMPLATE", help="local clones, such as /git/{owner}/{name}"
            )
        else:
            subparser.add_argument("--only", action="append", metavar="NAME", choices=names, help="may be repeated")
        if command == "try":
            subparser.add_argument(
                "--each", type=float, default=2.5, help="minutes for the trial of a program (%(default)s)"
            )
            subparser.add_argument("--minutes", type=float, default=9.0, help="end by then (%(default)s)")
        if command == "run":
            subparser.add_argument(
                "--minutes", type=float, default=9.0, help="begin no program after that (%(default)s)"
            )
            subparser.add_argument("file", type=Path, metavar="FILE")
    paging = commands.add_parser("page")
    paging.add_argument("page", type=Path)
    paging.add_argument("file", type=Path, nargs="?", default=KEPT, metavar="FILE")
    options = parser.parse_args()
    if options.command == "page":
        write_page(options.page, options.file, TRIED)
        return
    out = options.out.absolute()
    if options.command == "fetch":
        fetch(out, options.clones)
    elif options.command == "data":
        make_data(out, options.only or [*dict.fromkeys((*table().measured, *table().tried))])
    elif options.command == "try":
        trials.measure(out, options.only or table().tried, options.each, time.monotonic() + 60 * options.minutes)
    else:
        measure(out, options.only or table().measured, options.file, time.monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
