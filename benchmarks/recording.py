"""Cost of recording, and of each of its parts, for the steps of twelve programs.

    python -m benchmarks.recording measure OUT.json [--minutes 8] [--only NAME]...
    python -m benchmarks.recording page OUT.json docs/evaluation/performance-recording.md

`measure` runs the twelve programs of `recording_programs.py`. Hosts drift by 10 % within seconds, so each recording is
compared with the steps right before and after it, and all ways to record take turns. `page` writes the page.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile

from benchmarks.noise import table, wrapped
from benchmarks.recording_programs import CUDA, PROGRAMS, Step
from overlapscope.recorder.cupti import detached, record_bookkeeping
from overlapscope.recorder.options import Options
from overlapscope.recorder.recording import SilentRecording

ROUNDS, WARM_UP, SLICE_S = 2, 3, 0.15
FEWEST, MOST = 5, 60
"""Limits of the number of steps in a slice."""
WORDS = {
    "light": "`--light`",
    "default": "the default",
    "shapes": "`--shapes`",
    "stacks": "`--stacks`",
}


class ProfilerParts(Struct, frozen=True):
    """A profiler with some of the parts of a recording."""

    words: str
    ops: bool = True
    bookkeeping: bool = False
    """True to record the calls of CUDA that the recorder leaves out."""
    correlation: bool = False
    """True to record to which op a GPU op belongs, which the recorder finds from the launch."""


PARTS = {
    "cuda": ProfilerParts("GPU ops, and all calls of CUDA", ops=False, bookkeeping=True),
    "calls": ProfilerParts("without calls that only ask", ops=False),
    "ops": ProfilerParts("and PyTorch's ops"),
    "all": ProfilerParts("and all calls, and the op of each GPU op", bookkeeping=True, correlation=True),
}
RECORDINGS: dict[str, dict[str, Any]] = {
    "light": {"light": True},
    "default": {},
    "shapes": {"shapes": True},
    "stacks": {"stacks": True},
}
WAYS = (*PARTS, *RECORDINGS)


class RecordedSlice(Struct):
    """Lengths of a step in nanoseconds: before a recording, in it, and after it."""

    way: str
    before_ns: int
    recorded_ns: int
    after_ns: int

    @property
    def ratio(self) -> float:
        """Length of a recorded step as a multiple of the others."""
        return 2 * self.recorded_ns / (self.before_ns + self.after_ns)


class MeasuredCosts(Struct):
    """Measurements of all programs on one machine."""

    machine: str
    programs: dict[str, list[RecordedSlice]]


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def timed(step: Step, steps: int) -> int:
    """Return the mean length of so many steps, in nanoseconds."""
    for _ in range(WARM_UP):
        step()
    synchronize()
    begin = time.perf_counter_ns()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter_ns() - begin) // steps


@contextmanager
def profiled(part: ProfilerParts) -> Iterator[None]:
    """Run a profiler that records these parts."""
    activities = {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])}
    config = _ExperimentalConfig(disable_external_correlation=not part.correlation)
    profiler = _KinetoProfile(activities=activities, experimental_config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler.prepare_trace()
    synchronize()
    profiler.start_trace()
    record_bookkeeping(part.bookkeeping)
    autograd: Any = torch.autograd
    autograd._enable_record_function(part.ops)
    try:
        yield
    finally:
        autograd._enable_record_function(True)
        record_bookkeeping(True)
        with detached():
            profiler.stop_trace()


def recorded(step: Step, steps: int, way: str, path: Path) -> int:
    """Return the mean length of steps that are recorded this way."""
    if way in PARTS:
        with profiled(PARTS[way]):
            return timed(step, steps)
    options = Options(warmup=WARM_UP, active=None, plain_steps=0, **RECORDINGS[way])
    with SilentRecording(path, options) as recording:

        def marked() -> None:
            step()
            recording.step()

        return timed(marked, steps)


def measure(out: Path, names: list[str], until: float) -> None:
    """Measure all programs in turn, and write the file after each of them."""
    if not CUDA:
        torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name() if CUDA else "a CPU"
    machine = f"{gpu}, torch {torch.__version__}, Python {platform.python_version()}"
    costs = MeasuredCosts(machine, {name: [] for name in names})
    prepared: dict[str, tuple[Step, int]] = {}
    for name in names:
        step = PROGRAMS[name]()
        timed(step, FEWEST)
        prepared[name] = step, max(FEWEST, min(MOST, round(1e9 * SLICE_S / timed(step, FEWEST))))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, (step, steps) in prepared.items():
                for way in WAYS:
                    if time.monotonic() > until:
                        return
                    before = timed(step, steps)
                    inside = recorded(step, steps, way, Path(folder) / "x.trace.json")
                    gc.collect()
                    costs.programs[name].append(RecordedSlice(way, before, inside, timed(step, steps)))
                out.write_bytes(msgspec.json.encode(costs))
                print(name, flush=True)


def page(costs: MeasuredCosts) -> str:
    """Return the page."""
    ratios = {
        name: {way: [each.ratio for each in slices if each.way == way] for way in WAYS}
        for name, slices in costs.programs.items()
    }
    medians = {name: {way: statistics.fmean(of[way]) for way in of if of[way]} for name, of in ratios.items()}
    ways = [way for way in WAYS if all(way in of for of in medians.values())]
    rows = [
        (name, f"{_plain_ms(costs.programs[name]):.2f}", *(f"{of[way]:.2f}" for way in ways))
        for name, of in medians.items()
    ]
    for label, total in (("median", statistics.median), ("worst", max)):
        rows.append((f"**{label}**", "", *(f"**{total([of[way] for of in medians.values()]):.2f}**" for way in ways)))
    explained = [(f"`{way}`", PARTS[way].words if way in PARTS else WORDS[way]) for way in ways]
    text = wrapped(f"""# Performance while recording

**Question:** What does recording cost a program while it runs, and what does each part of it cost?

Twelve programs (`benchmarks/recording_programs.py`) on {costs.machine}. A figure is the length of a step while it is
recorded, as a multiple of the steps right before and after, which weren't: the mean of {ROUNDS} slices of some
{1000 * SLICE_S:.0f} ms, while all ways to record take turns. The steps before and after differ from each other by
{_drift_pct(costs):.0f}% in the median, so a single figure may be wrong by that much.""")
    heads = ("program", "plain step, ms", *ways)
    written = wrapped("`python -m benchmarks.recording` measures, and writes this page.")
    parts = table(("way", "what is recorded"), explained, words=2)
    return f"{text.strip()}\n\n{parts}\n\n{table(heads, rows, words=1)}\n\n{written.strip()}\n"


def _plain_ms(slices: list[RecordedSlice]) -> float:
    return statistics.median(ns for each in slices for ns in (each.before_ns, each.after_ns)) / 1e6


def _drift_pct(costs: MeasuredCosts) -> float:
    """Return by how much the steps after a recording differ from those before it, in the median."""
    return 100 * statistics.median(
        abs(each.after_ns / each.before_ns - 1) for slices in costs.programs.values() for each in slices
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--minutes", type=float, default=8.0, help="end by then (%(default)s)")
    measuring.add_argument("--only", action="append", choices=PROGRAMS, default=[])
    paging = commands.add_parser("page")
    paging.add_argument("out", type=Path)
    paging.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.out, options.only or list(PROGRAMS), time.monotonic() + 60 * options.minutes)
    else:
        options.page.write_text(page(msgspec.json.decode(options.out.read_bytes(), type=MeasuredCosts)))


if __name__ == "__main__":
    main()
