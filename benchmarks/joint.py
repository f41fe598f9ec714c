"""Compares joint predictions with measurements: `python -m benchmarks.joint OUT docs/evaluation/joint.md`.

Two processes communicate through gloo on the CPU. Each program is recorded with a planted loss and without it, in turn,
and the step without the loss is predicted from the recordings with it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed.fsdp import fully_shard

import overlapscope
from benchmarks.data_files import csv_text
from benchmarks.noise import table, wrapped
from benchmarks.ranks_job import SyntheticJob
from overlapscope.plugins.jobs.joint.join import RankSummary
from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
from overlapscope.plugins.jobs.joint.summary import summarize
from overlapscope.prediction.result import Estimate
from overlapscope.prediction.steps import mean
from tests.plugins.jobs.joint_jobs import RanksProgram, Turn, simulated, summaries

Step = Callable[[], None]
ROUNDS, STEPS = 6, 16
RANKS, COLLECTIVES = 512, 200
SLEEP_S = 0.03


class JointCase(Struct, frozen=True):
    """A program with a planted loss, its fix, and the prediction of the fix."""

    name: str
    lossy: str
    fixed: str
    options: str
    changes: JobChanges


CASES = (
    JointCase("one rank sleeps", "sleep", "base", "--no-straggler", JobChanges(no_straggler=True)),
    JointCase("one rank computes more", "more", "base", "--no-straggler", JobChanges(no_straggler=True)),
    JointCase("all-reduce issued late", "late", "early", "--issue-earlier", JobChanges(issue_earlier=True)),
    JointCase("FSDP2 without prefetching", "gather", "prefetch", "--issue-earlier", JobChanges(issue_earlier=True)),
    JointCase("slow network", "large", "half", "--bandwidth 2x", JobChanges(bandwidth=2.0)),
    JointCase("small buckets", "small", "medium", "--bucket-mb 2", JobChanges(bucket_mb=2.0)),
    JointCase("large buckets", "medium", "small", "--bucket-mb 0.5", JobChanges(bucket_mb=0.5)),
)


def programs() -> dict[str, Step]:
    """Return a function that takes a step of each program."""
    torch.manual_seed(0)
    message = {mb: torch.zeros(mb << 18) for mb in (1, 2, 4, 8)}

    def base(*, sleeps: bool = False, more_ms: float = 0) -> None:
        late = dist.get_rank() == 1
        if late and sleeps:
            time.sleep(SLEEP_S)
        computed(20 + (more_ms if late else 0))
        dist.all_reduce(message[1])
        computed(10)
        dist.all_reduce(message[1])

    def issued(*, late: bool) -> None:
        computed(10)
        if late:
            time.sleep(SLEEP_S)
        reducing = dist.all_reduce(message[8], async_op=True)
        if not late:
            time.sleep(SLEEP_S)
        computed(10)
        reducing.wait()
        computed(5)

    def transferred(mb: int) -> None:
        computed(5)
        dist.all_reduce(message[mb])
        computed(5)
        dist.all_reduce(message[mb // 4])

    return {
        "base": base,
        "sleep": partial(base, sleeps=True),
        "more": partial(base, more_ms=30),
        "late": partial(issued, late=True),
        "early": partial(issued, late=False),
        "large": partial(transferred, 8),
        "half": partial(transferred, 4),
        "gather": _sharded(prefetches=False),
        "prefetch": _sharded(prefetches=True),
        "small": _data_parallel(0.5),
        "medium": _data_parallel(2),
    }


_LIBRARY = torch.library.Library("example", "DEF")
_LIBRARY.define("compute(Tensor given, float ms) -> Tensor")


def _slept(given: torch.Tensor, ms: float) -> torch.Tensor:
    time.sleep(ms / 1000)
    return given.clone()


_LIBRARY.impl("compute", _slept, "CPU")


def computed(ms: float) -> None:
    """Compute for a time without a core, as a GPU would."""
    torch.ops.example.compute(torch.empty(1), ms)


class _Computes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, given: torch.Tensor) -> torch.Tensor:
        return torch.ops.example.compute(given, 2.0)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.ops.example.compute(gradients[0], 6.0)  # type: ignore[no-any-return]


class _Layer(torch.nn.Linear):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return _Computes.apply(super().forward(given))  # type: ignore[no-any-return,no-untyped-call]


def _sharded(*, prefetches: bool) -> Step:
    """Return a step of FSDP2, which gathers a layer's weights when it comes to it, or beside the layer before."""
    layers = [_Layer(1024, 1024, bias=False) for _ in range(6)]
    sharded = [fully_shard(layer) for layer in layers]
    model = torch.nn.Sequential(*layers)
    fully_shard(model)
    for number, layer in enumerate(sharded):
        layer._set_unshard_async_op(True)
        if prefetches:
            layer.set_modules_to_forward_prefetch(sharded[number + 1 : number + 2])
        else:
            layer.set_modules_to_backward_prefetch([layer])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(2, 1024)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _data_parallel(bucket_mb: float) -> Step:
    widths = [256, 512, 512, 256] * 4
    layers = [_Layer(*pair, bias=False) for pair in itertools.pairwise(widths)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
    batch = torch.randn(2, 256)

    def step() -> None:
        model(batch).square().mean().backward()
        model.zero_grad()

    return step


def work(out: Path) -> None:
    """Record all programs in turn, one process of two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = programs()
    wanted = {name for case in CASES for name in (case.lossy, case.fixed)}
    for step in steps.values():
        for _ in range(3):
            step()
    for number in range(ROUNDS):
        for name in sorted(wanted):
            dist.barrier()
            trace = out / f"{name}-{number}" / f"rank{dist.get_rank()}.json.gz"
            _record(trace, steps[name])
    dist.destroy_process_group()


def _record(path: Path, step: Step) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=STEPS)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True
    ) as profiler:
        for _ in range(STEPS + 2):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


class JointCaseResult(Struct, frozen=True):
    """Outcome of a case in one round; the prediction is None if it was refused."""

    case: JointCase
    before_ns: int
    measured_ns: int
    predicted: Estimate | None


def results(out: Path) -> Iterator[JointCaseResult]:
    """Predict each fix from each recording with the loss."""
    for case in CASES:
        for number in range(ROUNDS):
            lossy, fixed = (_summaries(out / f"{name}-{number}") for name in (case.lossy, case.fixed))
            before, measured = (mean(np.concatenate([rank.lengths_ns for rank in ranks])) for ranks in (lossy, fixed))
            yield JointCaseResult(case, before, measured, predict_job(lossy, case.changes).predicted_step_ns)


def _summaries(folder: Path) -> list[RankSummary]:
    found = [summarize(overlapscope.load(path), (), None) for path in sorted(folder.glob("rank*"))]
    return [summary for summary in found if isinstance(summary, RankSummary)]


def joining_s() -> float:
    """Return the time of one core to predict a change for many ranks whose summaries are there."""
    chosen = random.Random(0)
    everyone = tuple(range(RANKS))

    def turn(rank: int, number: int) -> Turn:
        kernel_ns = chosen.randrange(10_000, 30_000) * (2 if rank == 7 else 1)
        return Turn(number, chosen.randrange(1000, 5000), kernel_ns, 2000, "kernel" if number % 10 else "thread")

    turns = tuple(tuple(turn(rank, number) for number in range(COLLECTIVES)) for rank in everyone)
    transfers = tuple(chosen.randrange(10_000, 40_000) for _ in range(COLLECTIVES))
    program = RanksProgram((everyone,) * COLLECTIVES, transfers, turns)
    ranks = summaries(program, simulated(program))
    begin = time.process_time()
    assert predict_job(ranks, JobChanges(no_straggler=True)).valid
    return time.process_time() - begin


def command_s() -> float:
    """Return the time of all cores together that `whatif` takes for as many recordings, from files to the result."""
    with TemporaryDirectory() as folder:
        SyntheticJob(RANKS).write(Path(folder))
        before = _of_children_s()
        command = (sys.executable, "-m", "overlapscope", "whatif", folder, "--no-straggler", "--format", "json")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return _of_children_s() - before


def _of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def page(rounds: Sequence[JointCaseResult], joining: float, command: float) -> str:
    """Return the page."""
    rows, errors, inside = [], [], []
    for case in CASES:
        own = [each for each in rounds if each.case == case]
        made = [each for each in own if each.predicted is not None]
        before, measured = (
            median(values) for values in zip(*((each.before_ns, each.measured_ns) for each in own), strict=True)
        )
        predicted = median(each.predicted.value for each in made if each.predicted)
        within = sum(each.predicted.low <= each.measured_ns <= each.predicted.high for each in made if each.predicted)
        errors.append(100 * (predicted / measured - 1))
        inside.append(within)
        ms = (f"{ns / 1e6:.1f}" for ns in (before, predicted, measured))
        rows.append((case.name, f"`{case.options}`", *ms, f"{errors[-1]:+.1f}%", f"{within} of {len(own)}"))
    good = sum(abs(error) <= 10 for error in errors)
    head = ("loss", "change", "step, ms", "predicted", "measured", "error", "in the interval")
    return wrapped(f"""# Predictions for a job

`python -m benchmarks.joint` writes this page: two processes communicate through gloo on a machine with two cores,
which ran other programs, too. Each program was recorded {ROUNDS} times for {STEPS} steps with a planted loss and
without it, in turn. `whatif` predicts the step without the loss from the recordings with it. Ops sleep in place of a
GPU's work, and a network of twice the speed is imitated by messages of half the size. The table has medians.

{table(head, rows, words=2)}

The error is at most 10% in {good} of {len(CASES)} cases. {sum(inside)} of {len(rounds)} measured steps lie in the
interval. Repeated recordings of the same program differ by up to {_spread(rounds):.0f}%, because the processes waited
for cores. [All rounds](joint.csv)

For {RANKS} synthetic ranks with {COLLECTIVES} collectives each, joining their summaries and replaying them without and
with a change, for the value and both ends of the interval, takes one core {joining:.0f} s. For {RANKS} recordings of a
data-parallel training (`benchmarks/ranks_job.py`), the whole command, from the files to the result, takes
{command:.0f} s of processor time, or {command / 2:.0f} s on two cores that do nothing else.
""")


def _spread(rounds: Sequence[JointCaseResult]) -> float:
    steps = [[each.measured_ns for each in rounds if each.case == case] for case in CASES]
    return max(100 * (max(measured) / min(measured) - 1) for measured in steps)


def main() -> None:
    """Record in two processes, and write the page and its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the recordings are, or are made")
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options.out)
        return
    if not options.out.exists():
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
        again = ("-m", "benchmarks.joint", str(options.out), str(options.page))
        subprocess.run((*torchrun, *again), check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rounds = list(results(options.out))
    options.page.write_text(page(rounds, joining_s(), command_s()) + "\n")
    rows = [
        (each.case.name, f"{each.before_ns / 1e6:.2f}", *_in_ms(each.predicted), f"{each.measured_ns / 1e6:.2f}")
        for each in rounds
    ]
    columns = ("loss", "step in ms", "predicted in ms", "low in ms", "high in ms", "measured in ms")
    options.page.with_suffix(".csv").write_text(csv_text(columns, rows))


def _in_ms(predicted: Estimate | None) -> tuple[str, str, str]:
    if predicted is None:
        return ("", "", "")
    value, low, high = (f"{ns / 1e6:.2f}" for ns in (predicted.value, predicted.low, predicted.high))
    return value, low, high


if __name__ == "__main__":
    main()
