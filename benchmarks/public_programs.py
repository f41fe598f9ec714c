"""Public programs, unchanged, under `overlapscope run`: as they are, timed by a clock of their own, and recorded.

    python -m benchmarks.public_programs fetch DIR [--clones TEMPLATE]
    python -m benchmarks.public_programs data DIR [--only NAME]...
    python -m benchmarks.public_programs run DIR [--only NAME]... [--minutes 9]
    python -m benchmarks.public_programs page docs/evaluation/public-programs.md [DIR]

`public_programs.toml` lists the programs. `fetch` puts their files into `DIR/sources`, at the commits of the list.
`data` makes up their data (`public_programs_data.py`). `run` runs each of them plain, with hooks that only read the
clock (`public_programs_clock.py`), and under `overlapscope run`. It writes `DIR/measured/NAME.json`, and skips programs
that have this file. `page` reads such a folder, by default the measurements of this repository.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import msgspec

from benchmarks.public_programs_page import data, page
from benchmarks.public_programs_runs import ORDER, Measured, fetch, make_data, measure, table

KEPT = Path(__file__).with_name("measured") / "public_programs"


def read(folder: Path) -> list[Measured]:
    """Read the measurements of a folder, in the order of the list."""
    files = [folder / f"{name}.json" for name in table().programs]
    return [msgspec.json.decode(file.read_bytes(), type=Measured) for file in files if file.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    names = [*table().programs]
    for command in ("fetch", "data", "run"):
        subparser = commands.add_parser(command)
        subparser.add_argument("out", type=Path, metavar="DIR")
        if command == "fetch":
            subparser.add_argument(
                "--clones", default="", metavar="TEMPLATE", help="local clones, such as /git/{owner}/{name}"
            )
        else:
            subparser.add_argument("--only", action="append", metavar="NAME", choices=names, help="may be repeated")
        if command == "run":
            subparser.add_argument(
                "--minutes", type=float, default=9.0, help="begin no program after that (%(default)s)"
            )
            subparser.add_argument("--ways", default=",".join(ORDER), help="runs of each program (%(default)s)")
            subparser.add_argument("--again", action="store_true", help="measure again")
    paging = commands.add_parser("page")
    paging.add_argument("page", type=Path)
    paging.add_argument("folder", type=Path, nargs="?", default=KEPT, metavar="DIR")
    options = parser.parse_args()
    if options.command == "page":
        measured = read(options.folder)
        options.page.write_text(page(measured, table()), encoding="utf-8")
        options.page.with_suffix(".csv").write_text(data(measured, table()), encoding="utf-8")
        return
    out = options.out.absolute()
    if options.command == "fetch":
        fetch(out, options.clones)
    elif options.command == "data":
        make_data(out, options.only or names)
    else:
        if options.again:
            for name in options.only or names:
                (out / "measured" / f"{name}.json").unlink(missing_ok=True)
                shutil.rmtree(out / "work" / name, ignore_errors=True)
        measure(out, options.only or names, options.ways.split(","), time.monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
