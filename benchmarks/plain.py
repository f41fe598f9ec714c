"""Compare plain steps, as overlapscope measures them, with programs that run without it.

    python -m benchmarks.plain DIR [docs/evaluation/plain.md]      # DIR is that of benchmarks.plain_record

Writes the page; without one, prints it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import plain_runs
from benchmarks.plain_evaluation import evaluate, laboratory, machine
from benchmarks.plain_page import data, page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("page", type=Path, nargs="?", help="write the page here")
    options = parser.parse_args()
    rows = evaluate(options.folder)
    if not rows:
        sys.exit(f"{options.folder}: there is no recording with GPU activity of a program that was timed, too.")
    untold = laboratory()
    text = page(rows, untold, machine(options.folder), len(plain_runs.read(options.folder).runs))
    if options.page is None:
        print(text)
    else:
        options.page.write_text(text, encoding="utf-8")
        for ending, content in data(rows, untold).items():
            options.page.with_name(f"{options.page.stem}{ending}.csv").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
