"""Judge mutated traces: `python -m tests.fuzz --files 1000000 --jobs 16 --out DIR`, `python -m tests.fuzz --seed N`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Return 0 if nothing was found, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, metavar="N", help="stop after so many files")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after so long")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument(
        "--start",
        type=int,
        default=int(time.time()) * 1_000_000,
        metavar="SEED",
        help="first seed (default: by the clock)",
    )
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), metavar="DIR", help="where findings go")
    parser.add_argument("--seed", type=int, metavar="N", help="judge this one again, make it smaller, and write it")
    args = parser.parse_args()
    # Before numpy: a thread pool in each of many processes only gets in the others' way.
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    from tests.fuzz import campaign, once

    if args.seed is not None:
        return once.again(args.seed, args.out)
    if args.files is None and args.seconds is None:
        parser.error("say when to stop: --files N or --seconds S")
    tally = campaign.run(args.start, args.files, jobs=args.jobs, seconds=args.seconds, out=args.out)
    return 1 if tally.findings_by_kind else 0


if __name__ == "__main__":
    sys.exit(main())
