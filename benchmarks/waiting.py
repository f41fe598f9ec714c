"""Cost of being watched while no recording is requested.

python -m benchmarks.waiting

Blocks of steps with and without the watcher's hook follow one another in one process, so that a drifting clock hits
both alike. Times are of the processor, for other programs share it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import overlapscope
from overlapscope.plugins.watch.api import watcher_of_this_process
from overlapscope.recorder import at_import, automatic_steps

PAIRS, STEPS, CALLS = 60, 3_000, 20_000


def each_ns(call: Callable[[], object], times: int) -> float:
    """Processor time of one of so many calls."""
    begin = time.thread_time_ns()
    for _ in range(times):
        call()
    return (time.thread_time_ns() - begin) / times


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tempfile.TemporaryDirectory(prefix="os-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        watcher = watcher_of_this_process()
        steps = watcher._steps
        added = []
        for _ in range(PAIRS):
            watched = each_ns(optimizer.step, STEPS)
            steps._unwatch()
            added.append(watched - each_ns(optimizer.step, STEPS))
            steps._watch()
        low, middle, high = statistics.quantiles(added, n=4)
        print(f"a step of an optimizer: {middle:,.0f} ns more (quartiles {low:,.0f} to {high:,.0f})")
        marked = statistics.median(each_ns(overlapscope.step, CALLS) for _ in range(PAIRS))
        automatic_steps.step_listeners.clear()
        alone = statistics.median(each_ns(overlapscope.step, CALLS) for _ in range(PAIRS))
        print(f"overlapscope.step(): {marked:,.0f} ns, and {alone:,.0f} ns where nothing is watched")
    os.environ.pop("OVERLAPSCOPE_WATCH", None)
    print(f"the entry point without OVERLAPSCOPE_WATCH: {each_ns(at_import.start, CALLS):,.0f} ns")


if __name__ == "__main__":
    main()
