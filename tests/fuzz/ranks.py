"""Judge random jobs whose ranks' clocks are wrong: `python -m tests.fuzz.ranks --jobs 10000 --processes 2`.

A job has 2 to 8 ranks, which compute, communicate in groups and send messages; some are delayed. Its true times are
simulated, and each rank records them by a clock with an offset, a drift or a jump from 1 us to 1 h. From the true
times it follows which ranks delay the others, without the package. No rank may be named that doesn't, and every rank
must be that does so by more than the error that the report states.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from overlapscope import load
from overlapscope.ranks.comparison import Comparison, compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.result import MIN_PCT, RanksReport

US, HOUR = 1_000, 3_600_000_000_000
EPOCH = 1_790_000_000_000_000_000
COMPUTE, BETWEEN = 7, 40
UNKNOWN = 1 << 60
"""Stated error of a meeting in which no arrival is sure."""
GO_ROUND = ("_allgather_base", "_reduce_scatter_base")
KERNELS = {
    "allreduce": "AllReduce_Sum_f32_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
    "_reduce_scatter_base": "ReduceScatter_Sum_f32_RING_LL",
    "send": "SendRecv",
    "recv": "SendRecv",
}
Span = tuple[int, int]


class JobAct(NamedTuple):
    """Something that ranks do in each step."""

    what: str
    """`compute`, the name of a collective, or `message`."""
    members: tuple[int, ...]
    """Ranks that take part; of a message, the sender and the receiver."""
    ns: int
    """Length of the compute, or of the transfer."""
    waits: bool = True
    """True if compute waits at once, and not at the end of the step."""


class InjectedDelay(NamedTuple):
    """Compute that takes longer on a rank."""

    rank: int
    act: int
    steps: frozenset[int]
    ns: int


class WrongClock(NamedTuple):
    """A clock that is wrong."""

    ahead: int
    drift: float
    jump: int
    jumps_at: int

    def read(self, at: int) -> int:
        """Return what the clock shows at a true time."""
        return at + self.ahead + round(at * self.drift) + (self.jump if at >= self.jumps_at else 0)


class ClockedJob(NamedTuple):
    """A job, and how it is recorded."""

    ranks: int
    steps: int
    acts: tuple[JobAct, ...]
    delays: tuple[InjectedDelay, ...]
    clocks: tuple[WrongClock, ...]
    jitter: float
    """Maximum share by which compute varies."""
    skew: float
    """Maximum share of a transfer by which a rank's kernels always end earlier or later."""
    noise: float
    """Typical share of a transfer by which each does so at random."""
    counted: bool
    """True if the groups' counts are recorded."""


# -- Jobs -----------------------------------------------------------------------------------------------


def random_job(rng: random.Random) -> ClockedJob:
    """Return a job, in which most ranks are on time."""
    ranks = rng.choice((2, 2, 2, 3, 3, 4, 4, 4, 8))
    steps = rng.randint(4, 9)
    everyone = tuple(range(ranks))
    groups = [everyone]
    if ranks >= 4 and rng.random() < 0.5:
        half = ranks // 2
        groups += [everyone[:half], everyone[half:], *((rank, rank + half) for rank in range(half))]
    acts: list[JobAct] = []
    usual = _between(rng, 20 * US, 2000 * US)
    for _ in range(rng.randint(2, 7)):
        acts.append(JobAct("compute", everyone, _between(rng, 50 * US, 3000 * US)))
        name = rng.choice(("allreduce", "allreduce", *GO_ROUND))
        transfer = usual if rng.random() < 0.6 else _between(rng, 8 * US, 3000 * US)
        waits = rng.random() < 0.8
        if len(groups) > 1 and rng.random() < 0.6:
            size = rng.choice((ranks // 2, 2))
            acts += [JobAct(name, group, transfer, waits) for group in groups if len(group) == size][: ranks // size]
        else:
            acts.append(JobAct(name, everyone, transfer, waits))
        if rng.random() < 0.1:
            acts.append(JobAct("message", tuple(rng.sample(everyone, 2)), _between(rng, 10 * US, 300 * US)))
    computes = [place for place, act in enumerate(acts) if act.what == "compute"]
    delays = []
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        late = frozenset(range(steps)) if rng.random() < 0.7 else frozenset(rng.sample(range(steps), rng.randint(1, 3)))
        delays.append(InjectedDelay(rng.randrange(ranks), rng.choice(computes), late, _between(rng, US, 5000 * US)))
    length = steps * sum(act.ns for act in acts)
    return ClockedJob(
        ranks,
        steps,
        tuple(acts),
        tuple(delays),
        _clocks(rng, ranks, length),
        jitter=rng.choice((0.0, 0.0, 0.001, 0.01, 0.05)),
        skew=rng.choice((0.0, 0.01, 0.025)),
        noise=rng.choice((0.0, 0.005, 0.02, 0.06)),
        counted=rng.random() < 0.5,
    )


def _between(rng: random.Random, least: int, most: int) -> int:
    """Return a number whose size is as likely as any other."""
    return int(least * (most / least) ** rng.random())


def _either_way(rng: random.Random, most: int) -> int:
    return _between(rng, US, most) * (1 - 2 * rng.randrange(2))


def _clocks(rng: random.Random, ranks: int, length: int) -> tuple[WrongClock, ...]:
    """Return the clocks of the ranks' hosts; ranks of one host have the same."""
    hosts = rng.randint(1, ranks)
    most = rng.choice((100 * US, 100 * US, 10_000 * US, HOUR))
    # If all ranks have one clock, no rank can tell that it jumps.
    jumping = hosts > 1 and rng.random() < 0.3
    clocks = []
    for _ in range(hosts):
        drift = rng.choice((0.0, 0.0, 1.0)) * _either_way(rng, 500 * US) / 1e9
        jump = _either_way(rng, rng.choice((1000 * US, HOUR))) if jumping and rng.random() < 0.5 else 0
        clocks.append(WrongClock(_either_way(rng, most), drift, jump, rng.randrange(length)))
    return tuple(clocks[rank * hosts // ranks] for rank in range(ranks))


# -- TrueTimes ----------------------------------------------------------------------------------------------


class TrueKernel(NamedTuple):
    """A kernel as it truly ran."""

    act: int
    """Place of its act; a collective is identified by it and the step."""
    step: int
    start: int
    end: int


class TrueTimes:
    """What the ranks truly did."""

    def __init__(self, job: ClockedJob, rng: random.Random) -> None:
        self.job = job
        self.kernels: list[list[TrueKernel]] = [[] for _ in range(job.ranks)]
        self.begun: list[list[int]] = [[] for _ in range(job.ranks)]
        """Start of each step on each rank's GPU."""
        self.computes: list[list[Span]] = [[] for _ in range(job.ranks)]
        free = [BETWEEN * US * 10] * job.ranks
        streams: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        skew = [rng.uniform(-job.skew, job.skew) for _ in range(job.ranks)]
        for step in range(job.steps):
            for rank in range(job.ranks):
                self.begun[rank].append(free[rank])
            pending = [0] * job.ranks
            for place, act in enumerate(job.acts):
                if act.what == "compute":
                    for rank in act.members:
                        self._run(rank, place, step, free[rank], free[rank] + self._compute(rng, place, step, rank))
                        free[rank] = self.kernels[rank][-1].end + 1
                    continue
                arrived = {rank: max(free[rank] + 2 * US, streams[rank, act.members]) for rank in act.members}
                last = max(arrived.values())
                for rank, start in arrived.items():
                    off = act.ns * (skew[rank] + rng.triangular(-4, 4, 0) / 2 * job.noise)
                    end = max(last + US, last + act.ns + round(min(max(off, -act.ns / 9), act.ns / 9)))
                    self._run(rank, place, step, start, end)
                    streams[rank, act.members] = end + 1
                    pending[rank] = max(pending[rank], end + 1)
                    if act.waits:
                        free[rank] = end + 1
            free = [max(each) for each in zip(free, pending, strict=True)]

    def _compute(self, rng: random.Random, place: int, step: int, rank: int) -> int:
        job = self.job
        late = sum(each.ns for each in job.delays if (each.rank, each.act) == (rank, place) and step in each.steps)
        return round(job.acts[place].ns * rng.uniform(1 - job.jitter, 1)) + late

    def _run(self, rank: int, act: int, step: int, start: int, end: int) -> None:
        self.kernels[rank].append(TrueKernel(act, step, start, end))
        if self.job.acts[act].what == "compute":
            self.computes[rank].append((start, end))

    def exposed(self, rank: int, start: int, end: int) -> list[Span]:
        """Return the parts of a time in which a rank computes nothing."""
        parts, at = [], start
        for begin, until in self.computes[rank][max(0, bisect_right(self.computes[rank], (start, 0)) - 1) :]:
            if begin >= end:
                break
            if begin > at:
                parts.append((at, begin))
            at = max(at, until)
        return [*parts, (at, end)] if at < end else parts


class TrueWait(NamedTuple):
    """Time for which a rank waited at a meeting, or as the receiver or sender of a message."""

    act: int
    step: int
    start: int
    end: int
    until: int
    """End of the kernel."""


def waits_of(truth: TrueTimes) -> list[list[TrueWait]]:
    """Return all waits of each rank."""
    last: dict[tuple[int, int], int] = {}
    for kernels in truth.kernels:
        for act, step, start, _ in kernels:
            last[act, step] = max(last.get((act, step), 0), start)
    return [
        [
            TrueWait(*each[:3], last[each.act, each.step], each.end)
            for each in kernels
            if truth.job.acts[each.act].what != "compute"
        ]
        for kernels in truth.kernels
    ]


def total(spans: Sequence[Span]) -> int:
    """Return the length of a union."""
    length, until = 0, -(1 << 62)
    for start, end in sorted(spans):
        length += max(0, end - max(start, until))
        until = max(until, end)
    return length


class TrueDelay(NamedTuple):
    """By how much a rank delays each other one, in percent of the step."""

    most: float
    """Where it may come last, within the stated error."""
    sure: float
    """Where it alone comes last, beyond the stated error."""


def true_delays(
    truth: TrueTimes, errors: dict[tuple[int, int], int], compared: Sequence[int], steps: int
) -> list[TrueDelay]:
    """Return the true delays of all ranks.

    Args:
        truth: The true times.
        errors: Stated error of each collective that counts, by act and step.
        compared: Acts of which any collective is compared: a delay is the mean over the ranks that meet in them.
        steps: Number of steps in which collectives count.

    Returns:
        The delay of each rank.
    """
    job, waits = truth.job, waits_of(truth)
    by_meeting: defaultdict[tuple[int, int], dict[int, TrueWait]] = defaultdict(dict)
    for rank, its in enumerate(waits):
        for wait in its:
            by_meeting[wait.act, wait.step][rank] = wait
    most, sure = (defaultdict[tuple[int, int], list[Span]](list) for _ in range(2))
    met = [
        {other for act in compared if rank in job.acts[act].members for other in job.acts[act].members} - {rank}
        for rank in range(job.ranks)
    ]
    for meeting, error in errors.items():
        if error == UNKNOWN:
            continue
        members = by_meeting[meeting]
        order = sorted(members, key=lambda rank: members[rank].start)
        for rank in members:
            others = [each for each in order if each != rank]
            if members[rank].end - members[rank].start > 2 * error:
                continue
            passed, doubt = _passed(truth, waits, rank, members[rank], errors)
            alone = members[rank].start - max(members[each].start for each in others) > 2 * error
            for each in others:
                start, end = members[each].start, members[each].end
                most[rank, each] += truth.exposed(each, start, end - passed)
                if alone:
                    sure[rank, each] += truth.exposed(each, start, end - passed - doubt - 2 * error)
    average = [(begun[-1] - begun[1]) / (job.steps - 2) for begun in truth.begun]
    step = median_low(average)
    return [
        TrueDelay(
            *(
                100 * sum(total(spans[rank, other]) for other in met[rank]) / max(1, len(met[rank])) / steps / step
                for spans in (most, sure)
            )
        )
        for rank in range(job.ranks)
    ]


def _passed(
    truth: TrueTimes, waits: Sequence[Sequence[TrueWait]], rank: int, at: TrueWait, errors: dict[tuple[int, int], int]
) -> Span:
    """Return how long a rank itself waited since its group last met, and the error of that.

    A kernel that isn't compared may have waited all the time.
    """
    group = truth.job.acts[at.act].members
    before = [
        each.end
        for each in truth.kernels[rank]
        if truth.job.acts[each.act].what in KERNELS
        and truth.job.acts[each.act].members == group
        and each.start < at.start
    ]
    since = max((end for end in before if end <= at.start), default=0)
    own = [each for each in waits[rank] if each.until > since and each.start < at.start]
    spans = [part for each in own for part in truth.exposed(rank, max(each.start, since), min(each.end, at.start))]
    return total(spans), sum(
        min(2 * errors.get((each.act, each.step), UNKNOWN), each.until - each.start) for each in own
    )


# -- Recording ------------------------------------------------------------------------------------------


def write(truth: TrueTimes, folder: Path) -> list[Path]:
    """Write what each rank records."""
    paths = []
    for rank in range(truth.job.ranks):
        events, base = list(_events(truth, rank)), EPOCH + truth.job.clocks[rank].ahead - 2 * HOUR
        events.sort(key=lambda event: event["ts"])
        for event in events:
            event["dur"] = round((event["dur"] - event["ts"]) / US, 3) if event["dur"] > event["ts"] else 0
            event["ts"] = round((event["ts"] + 2 * HOUR - truth.job.clocks[rank].ahead) / US, 3)
        top: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": base, "cuda_runtime_version": 12080}
        top |= {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": truth.job.ranks}}
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(top | {"traceEvents": events}))
    return paths


def _events(truth: TrueTimes, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank, with their ends in place of their durations."""
    job, read = truth.job, truth.job.clocks[rank].read

    def event(category: str, name: str, lane: int, start: int, end: int, **args: Any) -> dict[str, Any]:
        row = {"ph": "X", "cat": category, "name": name, "pid": 0 if lane < BETWEEN else 9, "tid": lane}
        return row | {"ts": read(start), "dur": read(end), "args": args}

    streams = {
        members: COMPUTE + 1 + number for number, members in enumerate(dict.fromkeys(a.members for a in job.acts))
    }
    count: Counter[tuple[int, ...]] = Counter()
    host = truth.begun[rank][0] - BETWEEN * US * 5
    begun = host
    for number, kernel in enumerate(truth.kernels[rank]):
        act, last = job.acts[kernel.act], truth.kernels[rank][number - 1].step if number else 0
        if kernel.step != last:
            # The host is a step ahead of its GPU.
            yield event("user_annotation", f"ProfilerStep#{last + 1}", 99, begun, host)
            host = max(host, truth.begun[rank][last])
            begun = host
        args: dict[str, Any] = {}
        name, stream = "gemm", COMPUTE
        if act.what != "compute":
            what = act.what if act.what != "message" else ("send", "recv")[act.members.index(rank)]
            name, stream = f"ncclDevKernel_{KERNELS[what]}(ncclDevKernelArgsStorage<4096ul>)", streams[act.members]
            args = {"Collective name": what, "In msg nelems": 1000 + kernel.act, "Out msg nelems": 1000 + kernel.act}
            args |= {"Group size": len(act.members), "dtype": "Float", "Process Group Name": str(stream)}
            args |= {"Process Group Ranks": str([*act.members])}
            if act.what == "message":
                args |= {"Src Rank": act.members[0], "Dst Rank": act.members[1]}
            elif job.counted:
                args["Seq"] = count[act.members]
                count[act.members] += 1
            yield event("cpu_op", "record_param_comms", 99, host, host + US, **args)
        yield event("cuda_runtime", "cudaLaunchKernel", 99, host + 100, host + 900, correlation=number + 1)
        host += 1_200
        placed = {"device": 0, "stream": stream, "correlation": number + 1, "context": 1}
        yield event("kernel", name, stream, kernel.start, kernel.end, **placed | args)
    yield event("user_annotation", f"ProfilerStep#{job.steps}", 99, begun, host)
    end = truth.kernels[rank][-1].end
    yield event("cuda_runtime", "cudaDeviceSynchronize", 99, host + US, max(host + 2 * US, end + US), correlation=0)


# -- Judgement ------------------------------------------------------------------------------------------


class JudgedJob(NamedTuple):
    """A judged job."""

    wrong: tuple[str, ...]
    """Ranks named that delay nobody."""
    missed: tuple[str, ...]
    """Ranks not named that delay others by more than the stated error."""
    hidden: tuple[str, ...]
    """Ranks that delay others by more than the report calls possible."""
    late: int
    """Number of ranks that truly delay others by 1%."""
    named: int
    judged: int
    """Number of collectives judged."""
    met: int
    """Number of collectives in the judged steps."""


def judge(seed: int, folder: Path) -> JudgedJob:
    """Simulate a job, report on it, and compare."""
    rng = random.Random(seed)
    job = random_job(rng)
    truth = TrueTimes(job, rng)
    ranks = [rank for path in write(truth, folder) for rank in reduce(load(path, progress=False))]
    report = report_on(ranks)
    errors, compared = stated_errors(truth, ranks, compare(ranks))
    delays = true_delays(truth, errors, compared, report.met_steps or 1)
    named = {each.rank for each in report.stragglers if each.clear}
    exact = true_delays(truth, dict.fromkeys(errors, 0), compared, report.met_steps or 1)
    return JudgedJob(
        tuple(_words(rank, delays[rank], report) for rank in named if delays[rank].most < 0.97 * MIN_PCT),
        tuple(
            _words(rank, delay, report)
            for rank, delay in enumerate(delays)
            if rank not in named and delay.sure >= 1.03 * MIN_PCT
        ),
        tuple(
            _words(rank, delay, report)
            for rank, delay in enumerate(exact)
            if rank not in named
            and report.unseen_pct is not None
            and delay.sure >= 1.03 * max(MIN_PCT, report.unseen_pct)
        ),
        sum(delay.sure >= MIN_PCT for delay in exact),
        len(named),
        len(errors),
        len({(each.act, each.step) for its in truth.kernels for each in its if job.acts[each.act].what in KERNELS}),
    )


def stated_errors(
    truth: TrueTimes, ranks: Sequence[ReducedRank], comparison: Comparison
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Return the stated error of each collective that counts, by act and step, and the acts that are compared."""
    clocks, waits = truth.job.clocks, comparison.waits
    kernels = {(rank, *_recorded(clocks[rank], each)): each for rank, its in enumerate(truth.kernels) for each in its}
    meetings, errors = waits.meetings, waits.latest.error_ns.tolist()
    columns = (meetings.meeting, meetings.rank, meetings.start_ns, meetings.end_ns)
    found, compared = {}, set()
    for meeting, place, start, end in zip(*(column.tolist() for column in columns), strict=True):
        each = kernels[ranks[place].rank or 0, start, end]
        compared.add(each.act)
        if waits.counted[meeting]:
            found[each.act, each.step] = UNKNOWN if waits.latest.opening[meeting] else errors[meeting]
    return found, sorted(compared)


def _recorded(clock: WrongClock, kernel: TrueKernel) -> tuple[int, int]:
    """Return start and end of a kernel as they are recorded. No length is negative."""
    start, end = clock.read(kernel.start), clock.read(kernel.end)
    return EPOCH + start, EPOCH + max(start, end)


def _words(rank: int, delay: TrueDelay, report: RanksReport) -> str:
    said = [f"{each.sure_pct} of {each.lost_pct}%" for each in report.stragglers if each.rank == rank]
    return f"rank {rank} truly {delay.sure:.2f} to {delay.most:.2f}%, reported {said}, unseen {report.unseen_pct}"


def judged(seed: int) -> tuple[int, JudgedJob]:
    """Return the outcome of a seed, with the seed."""
    with TemporaryDirectory() as folder:
        return seed, judge(seed, Path(folder))


def main() -> int:
    """Return 0 if no rank is named wrongly or missed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.ranks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="number of jobs")
    parser.add_argument("--start", type=int, default=0, metavar="SEED", help="first seed")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), metavar="DIR", help="where findings go")
    args = parser.parse_args()
    begun, tally = time.monotonic(), Counter[str]()
    with Pool(args.processes) as pool:
        for seed, outcome in pool.imap_unordered(judged, range(args.start, args.start + args.jobs), chunksize=10):
            tally.update({"named wrongly": len(outcome.wrong), "missed": len(outcome.missed)})
            tally.update({"hidden": len(outcome.hidden), "late": outcome.late, "named": outcome.named})
            tally.update({"collectives": outcome.met, "judged": outcome.judged})
            for kind in ("wrong", "missed", "hidden"):
                for words in getattr(outcome, kind):
                    again = f"repeat it with python -m tests.fuzz.ranks --jobs 1 --start {seed}"
                    print(f"seed {seed}: {kind}: {words}; {again}", flush=True)
            if outcome.wrong or outcome.missed or outcome.hidden:
                found = args.out / f"ranks-{seed}"
                found.mkdir(parents=True, exist_ok=True)
                judge(seed, found)
    print(f"{args.jobs:,} jobs from seed {args.start} in {time.monotonic() - begun:.0f} s: {dict(tally)}")
    return 1 if tally["named wrongly"] or tally["missed"] or tally["hidden"] else 0


if __name__ == "__main__":
    sys.exit(main())
