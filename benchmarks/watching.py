"""Cost of watching: a training loop with and without it, by turns, in one process.

    python -m benchmarks.watching run DIR [--minutes 10] [--every 30s] [--block 60] [--size 4096]
    python -m benchmarks.watching page docs/evaluation/watching.md DIR...

`run` trains for so many minutes in blocks of so many seconds. In every other block `overlapscope.watch(every=...)` is
at work; which of two comes first changes from pair to pair, so that a drifting clock hits both alike. Figures come
from these blocks, because two processes differ by more than the effect. It writes `DIR/watching.json`.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.base import clock
from overlapscope.base.words import duration, parse_span, plural, size
from overlapscope.plugins.trials.measure import StepChange, Timing, change
from overlapscope.plugins.watch.api import watcher_of_this_process
from overlapscope.plugins.watch.continuous import Continuous, settings

FILE = "watching.json"
WARM_UP_S = 10.0
WANTED_PCT = 1.0


class TrainingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of training."""

    watched: bool
    steps: int
    total_ns: int
    median_step_ns: int
    slowest_step_ns: int


class AnalysisCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the process that analyses a recording."""

    cpu_s: float
    max_rss_bytes: int
    """Maximum memory of all these processes so far."""


class WatchingResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of `run`."""

    machine: str
    width: int
    """Width of the layers: it decides whether the GPU or the host bounds the program."""
    every_s: float
    steps_recorded: int
    blocks: tuple[TrainingBlock, ...]
    """In the order in which they ran: pairs of a watched block and an unwatched one."""
    stood_ns: tuple[int, ...]
    """Program's time that each recording took, by the watcher's own measurement."""
    analysed: tuple[AnalysisCost, ...]


class MeasuredWatching(Continuous):
    """Continuous recordings whose costs are kept."""

    def __init__(self, *arguments: Any) -> None:
        self.stood_ns: list[int] = []
        self.analysed: list[AnalysisCost] = []
        self._cpu_s = 0.0
        self._stopped_ns = clock.now_ns()
        super().__init__(*arguments)

    def start(self) -> None:
        """Continue after `stop`, as if no time had passed."""
        away_ns = clock.now_ns() - self._stopped_ns
        self._schedule.due_ns += away_ns
        self._schedule.begun_ns += away_ns
        super().start()

    def stop(self) -> None:
        super().stop()
        self._stopped_ns = clock.now_ns()

    def _delay_next(self, cost_ns: int) -> None:
        super()._delay_next(cost_ns)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before_s, self._cpu_s = self._cpu_s, used.ru_utime + used.ru_stime
        self.stood_ns.append(max(0, cost_ns))
        self.analysed.append(AnalysisCost(cpu_s=self._cpu_s - before_s, max_rss_bytes=used.ru_maxrss * 1024))


# -- measuring --------------------------------------------------------------------------------------


def training(width: int) -> Callable[[], object]:
    """Training steps whose batches come from pinned memory, with the loss read now and then, as people do."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        # With a thread for every core, they would share cores with the process that analyses.
        torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [torch.randn(width, width, pin_memory=device == "cuda") for _ in range(4)]
    count = 0

    def step() -> None:
        nonlocal count
        inputs = batches[count % len(batches)].to(device, non_blocking=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        if count % 10 == 0:
            loss.item()

    return step


def block(step: Callable[[], object], seconds: float, *, watched: bool) -> TrainingBlock:
    """Train for so long."""
    lengths: list[int] = []
    began = last = time.perf_counter_ns()
    while last - began < seconds * 1e9:
        step()
        now = time.perf_counter_ns()
        lengths.append(now - last)
        last = now
    return TrainingBlock(
        watched=watched,
        steps=len(lengths),
        total_ns=last - began,
        median_step_ns=round(statistics.median(lengths)),
        slowest_step_ns=max(lengths),
    )


def run(out: Path, *, minutes: float, every: str, block_s: float, width: int) -> WatchingResults:
    """Train by turns, and write the measurements."""
    # Set before any import opens it: the measurements belong in no history.
    with tempfile.TemporaryDirectory() as place:
        measured = _run(Path(place), minutes=minutes, every=every, block_s=block_s, width=width)
    out.mkdir(parents=True, exist_ok=True)
    (out / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    return measured


def _run(place: Path, *, minutes: float, every: str, block_s: float, width: int) -> WatchingResults:
    import torch

    step = training(width)
    block(step, WARM_UP_S, watched=False)
    asked = settings(every, steps=3, keep="50MB", job="benchmark", history=place / "history.sqlite", log=())
    watching = MeasuredWatching(watcher_of_this_process(), asked)
    watching.stop()
    blocks: list[TrainingBlock] = []
    for pair in range(max(1, round(60 * minutes / (2 * block_s)))):
        for watched in (True, False) if pair % 2 == 0 else (False, True):
            if watched:
                watching.start()
            blocks.append(block(step, block_s, watched=watched))
            if watched:
                watching.stop()
    watching.finish()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return WatchingResults(
        machine=f"{gpu}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}",
        width=width,
        every_s=parse_span(every) / 1e9,
        steps_recorded=asked.steps,
        blocks=tuple(blocks),
        stood_ns=tuple(watching.stood_ns),
        analysed=tuple(watching.analysed),
    )


# -- the page ---------------------------------------------------------------------------------------


def overhead(measured: WatchingResults) -> StepChange:
    """By how much the time per step is longer in watched blocks, recordings included."""
    blocks = measured.blocks
    pairs = (sorted(pair, key=lambda item: item.watched) for pair in zip(blocks[::2], blocks[1::2], strict=True))
    return change([(_timing(plain), _timing(watched)) for plain, watched in pairs])


def _timing(block: TrainingBlock) -> Timing:
    return Timing((block.total_ns / block.steps,))


def page(trainings: Sequence[WatchingResults]) -> str:
    """Return the whole page."""
    first = trainings[0]
    return "\n".join(
        [
            "# Overhead of watching",
            "",
            f"Written by `python -m benchmarks.watching`: {first.machine}. A training loop runs in one process, in "
            f"{len(first.blocks)} blocks of {first.blocks[0].total_ns / 1e9:.0f} s. In every other block",
            f'`overlapscope.watch(every="{first.every_s:g}s", steps={first.steps_recorded})` is at work.',
            "",
            *_table(("layers", "", "wanted", "measured"), (row for match in trainings for row in _goals(match))),
            "",
            "The first figure compares the time per step of each watched block, recordings and the process that "
            "analyses them",
            "included, with the block beside it; the interval is Student's over pairs of blocks. The second adds up "
            "what each",
            "recording took beyond the plain steps in it.",
            "",
            "## Recordings",
            "",
            "Largest values of all recordings:",
            "",
            *_table(
                ("layers", "program's time", "processor time of the analysis", "its memory"),
                map(_recordings, trainings),
            ),
            "",
        ]
    )


def _goals(measured: WatchingResults) -> Iterator[tuple[str, ...]]:
    trainings, watched_ns = overhead(measured), sum(block.total_ns for block in measured.blocks if block.watched)
    low, high = trainings.interval
    interval = f"{low:+.2f}% to {high:+.2f}%" if trainings.over_runs else "too few blocks to tell an interval"
    wanted = f"under {WANTED_PCT:g}%"
    yield _layers(measured), "longer time per step while watched", wanted, f"{trainings.pct:+.2f}% ({interval})"
    stood = 100 * sum(measured.stood_ns) / watched_ns
    what = f"time that {plural(len(measured.stood_ns), 'recording')} took, of {duration(watched_ns)}"
    yield _layers(measured), what, wanted, f"{stood:.2f}%"


def _layers(measured: WatchingResults) -> str:
    return f"{measured.width} wide"


def _recordings(measured: WatchingResults) -> tuple[str, ...]:
    analysed = measured.analysed
    return (
        _layers(measured),
        duration(max(measured.stood_ns)) if measured.stood_ns else "",
        duration(max(item.cpu_s for item in analysed) * 1e9) if analysed else "",
        size(max(item.max_rss_bytes for item in analysed)) if analysed else "",
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, tuple("---" for _ in head), *rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--minutes", type=float, default=10)
    running.add_argument("--every", default="30s")
    running.add_argument("--block", type=float, default=60, help="seconds")
    running.add_argument("--size", type=int, default=4096, help="width of the layers")
    writing = commands.add_parser("page")
    writing.add_argument("page", type=Path)
    writing.add_argument("measured", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "run":
        text = page([run(args.out, minutes=args.minutes, every=args.every, block_s=args.block, width=args.size)])
    else:
        text = page([msgspec.json.decode((run / FILE).read_bytes(), type=WatchingResults) for run in args.measured])
        args.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
