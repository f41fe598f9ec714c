"""Holds what `overlapscope try` says against the same edits made by hand and timed without overlapscope.

    python -m benchmarks.trials run DIR [--only NAME]... [--minutes 9]
    python -m benchmarks.trials page docs/evaluation/try.md [DIR]

`run` takes each program of `tests/programs/trials` in turn: `overlapscope try`, then processes without overlapscope of
the program as it is and as a person edited it, with the changes that `try` found best. It writes `DIR/NAME.json` and
keeps existing results. `page` reads DIR, by default the measurements that are kept.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from benchmarks.trials_page import data, page
from benchmarks.trials_runs import SCRIPTS, TrialMeasurements, measure, programs
from overlapscope.base.words import duration

KEPT = SCRIPTS / "measured"
BY_HAND_MINUTES = 0.7
"""Time for the processes without overlapscope."""


def run(out: Path, names: list[str], minutes: float, steps: int) -> None:
    """Measure missing programs, as far as the time suffices."""
    until = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    programs_by_name = programs()
    for name in names:
        if (out / f"{name}.json").exists():
            continue
        began = time.monotonic()
        if began + 60 * (programs_by_name[name].minutes + BY_HAND_MINUTES) > until:
            print(f"left out for want of time: {name}", flush=True)
            continue
        measured = measure(name, steps)
        print(f"{name}, {time.monotonic() - began:.0f} s: {_summary(measured)}", flush=True)
        if measured.trial is not None:
            (out / f"{name}.json").write_bytes(msgspec.json.encode(measured) + b"\n")


def _summary(measured: TrialMeasurements) -> str:
    if measured.trial is None:
        return "\n".join([measured.failure, *measured.said[-20:]])
    best, by_hand = measured.best, measured.by_hand
    of = f"{duration(measured.trial.baseline_step_ns)} a step"
    if best is None:
        return f"{of}, nothing is recommended"
    true = "not known: " + measured.failure if by_hand is None else f"{by_hand.change.pct:+.1f}%"
    return f"{of}, {', '.join((*best.after, best.change))} {best.measured_pct:+.1f}%, by hand {true}"


def read(folder: Path) -> list[TrialMeasurements]:
    """Return the measurements, in the order of the list."""
    order = list(programs())
    document = [msgspec.json.decode(path.read_bytes(), type=TrialMeasurements) for path in folder.glob("*.json")]
    return sorted(document, key=lambda measured: order.index(measured.program))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("out", type=Path, metavar="DIR")
    running.add_argument("--only", action="append", metavar="NAME", choices=programs(), help="may be repeated")
    running.add_argument("--minutes", type=float, default=9.0, help="begin nothing that would end later (%(default)s)")
    running.add_argument("--steps", type=int, default=80, help="that are timed in each run (%(default)s)")
    paging = commands.add_parser("page")
    paging.add_argument("page", type=Path)
    paging.add_argument("folder", type=Path, nargs="?", default=KEPT, metavar="DIR")
    options = parser.parse_args()
    if options.command == "run":
        run(options.out.absolute(), options.only or [*programs()], options.minutes, options.steps)
    else:
        measured = read(options.folder)
        options.page.write_text(page(measured), encoding="utf-8")
        for ending, text in data(measured).items():
            options.page.with_name(f"{options.page.stem}{ending}.csv").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
