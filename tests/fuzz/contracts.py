"""Judge pairs of random programs by their contracts: `python -m tests.fuzz.contracts --pairs 100000 --jobs 2`.

A program is a list of acts of the host, which it repeats in each step. Its recording is simulated. Its true
order follows from every path through the acts, found without the package. A second program has some of the acts
changed. No loss may pass, and nothing else may fail.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from overlapscope import load
from overlapscope.contracts.compare import Promise, compare
from overlapscope.contracts.model import Contract
from overlapscope.contracts.observe import observe

STEPS, MIDDLE = 6, 3
COMPUTE, SIDE, UPLOAD, DOWNLOAD = 7, 13, 20, 24
STREAMS = (COMPUTE, SIDE, UPLOAD, DOWNLOAD)
MARGIN_PCT = 25
EDITS_EACH = 5
SMALL = 4
LARGE = 1 << 20
WAITS = {"stream sync": "cudaStreamSynchronize", "device sync": "cudaDeviceSynchronize"}


class RandomAct(NamedTuple):
    """An act of the host in each step."""

    what: str
    stream: int = COMPUTE
    device: int = 0
    event: int = 0
    memory: str = "Pinned"
    size: int = LARGE
    op: str = "aten::copy_"
    us: float = 40.0
    """Time that it takes on the GPU."""
    kernels: int = 1
    lost: bool = False
    """True if its records on the GPU are lost."""


class RandomProgram(NamedTuple):
    """A program, and how it is recorded."""

    acts: tuple[RandomAct, ...]
    between: int
    """Number of acts, the last ones, between two steps."""
    stated: str
    """Part of the waits for events that is recorded: `everything`, the waiting `stream`, or `nothing`."""


Windows = dict[tuple[str, str, str, int], list[int]]
"""Numbers of kernels beside which the copies of a step may run, ascending, by kind, memory, op and size."""

COPIES = ("upload", "download", "peer")
KINDS = {"upload": "H2D", "download": "D2H", "peer": "P2P"}
NAMES = {
    "upload": "Memcpy HtoD ({} -> Device)",
    "download": "Memcpy DtoH (Device -> {})",
    "peer": "Memcpy PtoP (Device -> Device)",
}


def stages(act: RandomAct) -> bool:
    """Return whether the host waits for a copy in the call."""
    return act.memory == "Pageable" and (act.what == "download" or (act.what == "upload" and act.size > 1 << 16))


# -- Truth ----------------------------------------------------------------------------------------------


def true_windows(program: RandomProgram) -> Windows:
    """Return the windows of a step's copies, by following all paths. A set of ops is the bits of a number."""
    pending: Counter[tuple[int, int]] = Counter()
    events, host = dict[tuple[int, int], int](), 0
    before, ops = list[int](), list[tuple[int, RandomAct]]()
    for step in range(STEPS):
        for act in program.acts:
            stream = act.device, act.stream
            if act.what in ("kernel", "graph", *COPIES):
                earlier = pending[stream] | host
                pending[stream] = earlier | 1 << len(ops)
                host |= pending[stream] if stages(act) else 0
                before.append(earlier)
                ops.append((step, act))
            elif act.what == "record":
                events[act.device, act.event] = pending[stream] | host
            elif act.what == "wait":
                pending[stream] |= events.get((act.device, act.event), 0)
            elif act.what in ("event sync", "poll"):
                host |= events.get((act.device, act.event), 0)
            elif act.what == "stream sync":
                host |= pending[stream]
            else:
                for (device, _), ended in pending.items():
                    host |= ended if device == act.device else 0
    windows: Windows = {}
    for place, (step, act) in enumerate(ops):
        if act.what in COPIES and step == MIDDLE:
            key = KINDS[act.what], act.memory.lower() if act.what != "peer" else "", act.op, act.size
            windows.setdefault(key, []).append(_window(place, act, ops, before))
    return {key: sorted(each) for key, each in windows.items()}


def _window(copy: int, act: RandomAct, ops: list[tuple[int, RandomAct]], before: list[int]) -> int:
    sides: Counter[tuple[int, bool]] = Counter()
    of_step: Counter[int] = Counter()
    for place, (step, other) in enumerate(ops):
        if other.what in ("kernel", "graph") and other.device == act.device and other.stream != act.stream:
            of_step[other.stream] += other.kernels if step == MIDDLE else 0
            if not before[copy] >> place & 1 and not before[place] >> copy & 1:
                sides[other.stream, place < copy] += other.kernels
    return sum(min(count, of_step[stream]) for (stream, _), count in sides.items())


def waits(program: RandomProgram) -> Counter[str]:
    """Return the number of calls in which the host waits in a step, by name."""
    found: Counter[str] = Counter()
    events = {(act.device, act.event) for act in program.acts if act.what == "record"}
    for act in program.acts:
        if act.what in WAITS:
            found[WAITS[act.what]] += 1
        elif act.what in ("event sync", "poll") and (act.device, act.event) in events:
            found["cudaEventSynchronize" if act.what == "event sync" else "cudaEventQuery"] += 1
        elif act.what == "download" and act.memory == "Pageable":
            found[f"cudaMemcpyAsync {act.op}"] += 1
    return found


# -- Recording ----------------------------------------------------------------------------------------------


class RandomRecording:
    """A simulated recording, as events of Kineto."""

    def __init__(self, program: RandomProgram, rng: random.Random) -> None:
        self._program, self._rng = program, rng
        self.events: list[dict[str, Any]] = []
        self._now, self._correlation = 1e6, 1000
        self._free: defaultdict[tuple[int, int], float] = defaultdict(float)
        """Time at which the ops of each stream, and its waits, have ended."""
        self._reached: dict[tuple[int, int], tuple[float, int, int]] = {}
        """When each event is reached, its stream and the call that recorded it."""

    def run(self, steps: int = STEPS) -> dict[str, Any]:
        """Return the recording of so many steps."""
        inside = len(self._program.acts) - self._program.between
        for step in range(steps):
            begun = self._now
            for number, act in enumerate(self._program.acts):
                if number == inside:
                    self._mark(step, begun)
                self._do(act)
            if not self._program.between:
                self._mark(step, begun)
        self._now += 5
        self._call("cudaDeviceSynchronize", max(2.0, max(self._free.values(), default=0) - self._now))
        return {"schemaVersion": 1, "cuda_runtime_version": 12080, "traceEvents": self.events}

    def _mark(self, step: int, begun: float) -> None:
        self._event("user_annotation", f"ProfilerStep#{step + 1}", begun, self._now - begun)
        self._now += 0.5

    def _event(
        self, category: str, name: str, at: float, us: float, lane: tuple[int, int] = (9, 9), **args: Any
    ) -> None:
        row = {"ph": "X", "cat": category, "name": name, "pid": lane[0], "tid": lane[1], "ts": round(at, 3)}
        self.events.append({**row, "dur": round(us, 3), "args": args})

    def _call(self, name: str, us: float = 2.0) -> int:
        self._correlation += 1
        self._event("cuda_runtime", name, self._now, us, correlation=self._correlation)
        self._now += us + 0.5
        return self._correlation

    def _sync(self, kind: str, act: RandomAct, correlation: int, **args: Any) -> None:
        if self._program.stated != "nothing":
            lane = act.device, act.stream
            stated = {"device": act.device, "stream": act.stream, "correlation": correlation, "context": 1}
            self._event("cuda_sync", kind, self._now, 0.5, lane, cuda_sync_kind=kind, **stated | args)

    def _do(self, act: RandomAct) -> None:
        stream, event = (act.device, act.stream), self._reached.get((act.device, act.event))
        if act.what in ("kernel", "graph", *COPIES):
            self._launch(act)
        elif act.what == "record":
            call = self._call("cudaEventRecord")
            self._reached[act.device, act.event] = max(self._free[stream], self._now), act.stream, call
        elif act.what == "wait" and event is not None:
            until, source, record = event
            self._free[stream] = max(self._free[stream], until)
            stated = {"wait_on_stream": source, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": 1}
            args = stated if self._program.stated == "everything" else {}
            self._sync("Stream Wait Event", act, self._call("cudaStreamWaitEvent"), **args)
        elif act.what == "event sync" and event is not None:
            until, source, record = event
            call = self._call("cudaEventSynchronize", max(2.0, until - self._now))
            stated = {"wait_on_stream": source, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": 1}
            self._sync("Event Sync", act, call, **stated if self._program.stated == "everything" else {})
        elif act.what == "poll" and event is not None:
            while self._call("cudaEventQuery") and self._now < event[0]:
                self._now += self._rng.choice((1, 100))
            self._event("cpu_op", "aten::empty", self._now, 1.0)
            self._now += 2
            self._call("cudaFuncGetAttributes")
        elif act.what == "stream sync":
            self._sync("Stream Sync", act, self._call(WAITS[act.what], max(2.0, self._free[stream] - self._now)))
        elif act.what == "device sync":
            until = max((end for (device, _), end in self._free.items() if device == act.device), default=0)
            self._sync("Context Sync", act, self._call(WAITS[act.what], max(2.0, until - self._now)), stream=-1)

    def _launch(self, act: RandomAct) -> None:
        stream, begun = (act.device, act.stream), self._now
        self._correlation += 1
        correlation, free = self._correlation, max(self._free[stream], begun + 4)
        for node in range(act.kernels):
            us = act.us * self._rng.uniform(0.8, 1.2)
            args = {"device": act.device, "stream": act.stream, "correlation": correlation, "context": 1}
            if act.what in COPIES:
                name, category = NAMES[act.what].format(act.memory), "gpu_memcpy"
                args["bytes"] = act.size
            else:
                name, category = "gemm", "kernel"
                args |= {"graph node id": node} if act.what == "graph" else {}
            if not act.lost:
                self._event(category, name, free, us, stream, **args)
            free += us + 0.5
        self._free[stream] = free
        name = {"kernel": "cudaLaunchKernel", "graph": "cudaGraphLaunch"}.get(act.what, "cudaMemcpyAsync")
        us = max(2.0, free - begun) if stages(act) else 2.0
        self._event("cuda_runtime", name, begun + 1, us, correlation=correlation)
        self._event("cpu_op", act.op if act.what in COPIES else "aten::mm", begun, us + 2)
        self._now = begun + us + 3


# -- Programs -------------------------------------------------------------------------------------------


def random_program(rng: random.Random) -> RandomProgram:
    """Return a program with at least one copy and some kernels."""
    devices = rng.choice((1, 1, 2))
    alike = rng.random() < 0.5
    acts = [_random_act(rng, devices, alike) for _ in range(rng.randint(4, 16))]
    acts += [RandomAct("kernel", us=rng.choice((10.0, 50.0))) for _ in range(rng.randint(1, 6))]
    acts += [_random_copy(rng, 0, alike)]
    rng.shuffle(acts)
    if rng.random() < 0.6:
        acts = _prefetching(rng, acts)
    stated = rng.choice(("everything", "everything", "stream", "nothing"))
    return RandomProgram(tuple(acts), rng.choice((0, 0, rng.randint(1, 3))), stated)


def _prefetching(rng: random.Random, acts: list[RandomAct]) -> list[RandomAct]:
    """Return acts before which the compute stream waits for a copy of the step before, and which make the next."""
    at = rng.randrange(len(acts) + 1)
    copy = [
        RandomAct("upload", UPLOAD, us=rng.choice((30.0, 150.0)), op="aten::to"),
        RandomAct("record", UPLOAD, event=5),
    ]
    return [RandomAct("wait", COMPUTE, event=5), *acts[:at], *copy, *acts[at:]]


def _random_copy(rng: random.Random, device: int, alike: bool) -> RandomAct:
    what = rng.choice(("upload", "upload", "download", "peer"))
    memory = "Pageable" if what != "peer" and rng.random() < 0.1 else "Pinned"
    stream = rng.choice((UPLOAD, UPLOAD, DOWNLOAD, COMPUTE))
    op = "aten::copy_" if alike else f"aten::copy_{rng.randrange(3)}"
    return RandomAct(what, stream, device, memory=memory, op=op, us=rng.choice((15.0, 60.0, 200.0)))


def _random_act(rng: random.Random, devices: int, alike: bool) -> RandomAct:
    device = rng.randrange(devices)
    what = rng.choice(
        ("kernel", "kernel", "kernel", "copy", "copy", "record", "wait", "record", "wait", "graph", "host")
    )
    if what == "copy":
        return _random_copy(rng, device, alike)
    if what == "host":
        what = rng.choice(("stream sync", "device sync", "event sync", "poll")) if rng.random() < 0.3 else "kernel"
    kernels = rng.randint(2, 4) if what == "graph" else 1
    streams = (COMPUTE, COMPUTE, SIDE) if what in ("kernel", "graph") else STREAMS
    return RandomAct(what, rng.choice(streams), device, rng.randrange(2), us=rng.choice((10.0, 50.0)), kernels=kernels)


def edited(program: RandomProgram, rng: random.Random) -> tuple[RandomProgram, str]:
    """Return a program after some edits, and their names."""
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        program = edit(program, rng)
        names.append(edit.__name__)
    return program, "+".join(names)


def _places(program: RandomProgram, *whats: str) -> list[int]:
    return [place for place, act in enumerate(program.acts) if act.what in whats]


def _put(program: RandomProgram, place: int, *acts: RandomAct, instead: bool = False) -> RandomProgram:
    return program._replace(acts=(*program.acts[:place], *acts, *program.acts[place + instead :]))


def merge_stream(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Move a copy to the compute stream."""
    place = rng.choice(_places(program, *COPIES))
    return _put(program, place, program.acts[place]._replace(stream=COMPUTE), instead=True)


def own_stream(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Move a copy to another stream of copies."""
    place = rng.choice(_places(program, *COPIES))
    return _put(program, place, program.acts[place]._replace(stream=rng.choice((UPLOAD, DOWNLOAD))), instead=True)


def pageable(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Take pinned memory from a copy."""
    if places := _places(program, "upload", "download"):
        place = rng.choice(places)
        return _put(program, place, program.acts[place]._replace(memory="Pageable"), instead=True)
    return program


def await_copy(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Let the compute stream wait for a copy, at once or later."""
    place = rng.choice(_places(program, *COPIES))
    act = program.acts[place]
    later = rng.randint(place + 1, min(len(program.acts), place + 4))
    program = _put(program, later, RandomAct("wait", COMPUTE, act.device, 7))
    return _put(program, place + 1, RandomAct("record", act.stream, act.device, 7))


def await_compute(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Let a copy wait for the compute stream."""
    place = rng.choice(_places(program, *COPIES))
    act = program.acts[place]
    return _put(
        program, place, RandomAct("record", COMPUTE, act.device, 8), RandomAct("wait", act.stream, act.device, 8)
    )


def add_wait_of_host(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Let the host wait anywhere, perhaps between steps."""
    what = rng.choice(("stream sync", "device sync", "event sync", "poll"))
    at, stream = rng.randrange(len(program.acts) + 1), rng.choice(STREAMS)
    return _put(program, at, RandomAct("record", stream, event=9), RandomAct(what, stream, event=9))


def drop_wait(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Drop a wait, which can only gain."""
    places = _places(program, "wait", "stream sync", "device sync", "event sync", "poll")
    return _put(program, rng.choice(places), instead=True) if places else program


def move(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Move an act to another place."""
    place = rng.randrange(len(program.acts))
    act = program.acts[place]
    return _put(_put(program, place, instead=True), rng.randrange(len(program.acts)), act)


def small_copies(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Add many small copies."""
    copies = [RandomAct("upload", rng.choice(STREAMS), size=SMALL, us=2.0, op="aten::fill")] * rng.choice((1, 20))
    return _put(program, rng.randrange(len(program.acts) + 1), *copies)


def scale(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Take another size of batch."""
    factor = rng.choice((0.06, 0.125, 0.5, 1.25))
    acts = (act._replace(size=max(1, int(act.size * factor)), us=act.us * factor) for act in program.acts)
    return program._replace(acts=tuple(act._replace(us=max(_least_us(act), act.us)) for act in acts))


def other_times(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Take other times."""
    acts = (act._replace(us=max(_least_us(act), act.us * rng.choice((0.3, 1, 3)))) for act in program.acts)
    return program._replace(acts=tuple(acts))


def _least_us(act: RandomAct) -> float:
    """Return the least time that an act may take on the GPU: copies faster than any link aren't believed."""
    return 2.0 + (act.size / 1e5 if act.what in COPIES else 0)


def lose_records(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Lose the GPU's records of a copy."""
    place = rng.choice(_places(program, *COPIES))
    return _put(program, place, program.acts[place]._replace(lost=True), instead=True)


def drop_copy(program: RandomProgram, rng: random.Random) -> RandomProgram:
    """Drop a copy, unless it is the last one."""
    places = _places(program, *COPIES)
    return _put(program, rng.choice(places), instead=True) if len(places) > 1 else program


EDITS = (
    merge_stream, merge_stream, own_stream, pageable, await_copy, await_copy, await_compute, add_wait_of_host,
    drop_wait, move, move, small_copies, scale, scale, drop_copy, other_times, lose_records,
)  # fmt: skip


# -- Judgement ------------------------------------------------------------------------------------------


def contract_of(program: RandomProgram, seed: int, folder: Path) -> Contract:
    """Return the contract of a program's recording."""
    path = folder / "recording.json"
    path.write_bytes(msgspec.json.encode(RandomRecording(program, random.Random(seed)).run()))
    return observe(load(path, cache=False, progress=False))


def defects_of(program: RandomProgram, contract: Contract) -> Iterator[str]:
    """Yield the defects of a contract."""
    truth = true_windows(program)
    groups = {(group.kind, group.memory, group.op, group.bytes): group for group in contract.copies}
    if truth.keys() != groups.keys():
        yield f"groups {sorted(groups)} instead of {sorted(truth)}"
        return
    sure = is_sure(program)
    for key, group in groups.items():
        for number, run in enumerate([each for each in group.beside for _ in range(each.times)]):
            right = truth[key][number]
            too_few = run.most < right and tells_device(program)
            if run.least > right or too_few or (sure and run.least != run.most):
                yield f"{key}: beside {run.least} to {run.most} kernels instead of {right}"


def is_sure(program: RandomProgram) -> bool:
    """Return whether a recording states what all waits are for."""
    return program.stated == "everything" and not any(act.what == "poll" for act in program.acts)


def tells_device(program: RandomProgram) -> bool:
    """Return whether a recording states the device of all waits, or that of those without a record is the only one."""
    devices = {act.device for act in program.acts if act.what in ("kernel", "graph", *COPIES)}
    idle = any(act.what == "device sync" and act.device not in devices for act in program.acts)
    return program.stated != "nothing" or not idle


def loss(before: RandomProgram, contract: Contract, after: RandomProgram) -> str:
    """Return the part of a contract that a program loses; empty if it keeps all."""
    if waits(after) - waits(before):
        return "waits"
    promised: dict[tuple[str, str, str], list[int]] = {}
    for group in contract.copies:
        least = [run.least for run in group.beside for _ in range(run.times)]
        promised.setdefault((group.kind, group.op, group.memory), []).extend(least)
    values: dict[tuple[str, str, str], list[int]] = {}
    for (kind, memory, op, _), each in true_windows(after).items():
        values.setdefault((kind, op, memory), []).extend(each)
    for key, now in values.items():
        was = sorted(promised.get(key, []))
        if len(now) > len(was) * (100 + MARGIN_PCT) // 100:
            return "more copies"
        was = [was[0]] * (len(now) - len(was)) + was
        if any(
            value < math.ceil(least * (100 - MARGIN_PCT) / 100) for value, least in zip(sorted(now), was, strict=False)
        ):
            return "overlap"
    return ""


class ContractFinding(NamedTuple):
    """A pair that is judged wrongly."""

    what: str
    seed: int
    edits: str
    detail: str


def judged(seed: int, folder: Path) -> Iterator[tuple[str, ContractFinding | None]]:
    """Yield the verdict on each pair of a seed, with a finding if it is wrong."""
    rng = random.Random(seed)
    program = random_program(rng)
    contract = contract_of(program, seed, folder)
    for defect in defects_of(program, contract):
        yield "contract", ContractFinding("wrong contract", seed, "", defect)
    for number in range(EDITS_EACH):
        other, edits = edited(program, rng)
        promises = compare(contract, contract_of(other, seed + number + 1, folder))
        yield verdict_on(program, contract, other, promises, seed, edits)


def verdict_on(
    before: RandomProgram,
    contract: Contract,
    after: RandomProgram,
    promises: tuple[Promise, ...],
    seed: int,
    edits: str,
) -> tuple[str, ContractFinding | None]:
    """Return the verdict on a pair, with a finding if it is wrong."""
    results = {promise.result for promise in promises}
    verdict = "fail" if "lost" in results else "unknown" if "unknown" in results else "pass"
    lost = "records" if any(act.lost for act in after.acts) else loss(before, contract, after)
    said = "; ".join(promise.message for promise in promises if promise.result in ("lost", "unknown"))
    if lost and verdict == "pass":
        return verdict, ContractFinding("wrong pass", seed, edits, lost)
    if not lost and verdict == "fail" and tells_device(before) and tells_device(after):
        return verdict, ContractFinding("false alarm", seed, edits, said)
    dropped = len(_places(after, *COPIES)) < len(_places(before, *COPIES))
    if not lost and verdict == "unknown" and is_sure(before) and is_sure(after) and not dropped:
        return verdict, ContractFinding("needless doubt", seed, edits, said)
    return f"{verdict} of a {'loss' if lost else 'program that keeps it'}", None


def judge_seeds(seeds: range) -> tuple[Counter[str], list[ContractFinding]]:
    """Return the verdicts on the pairs of some seeds, and the findings."""
    tally, findings = Counter[str](), []
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for seed in seeds:
            for verdict, finding in judged(seed, Path(folder)):
                tally[verdict] += 1
                findings += [finding] if finding is not None else []
    return tally, findings


def main() -> int:
    """Return 0 if nothing was found, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.contracts", description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, metavar="N", help="number of pairs (default: 1000)")
    parser.add_argument("--start", type=int, default=0, metavar="SEED", help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    args = parser.parse_args()
    end, begun = args.start + math.ceil(args.pairs / EDITS_EACH), time.monotonic()
    chunks = [range(start, min(end, start + 20)) for start in range(args.start, end, 20)]
    tally, findings = Counter[str](), list[ContractFinding]()
    with Pool(args.jobs) as pool:
        for part, found in pool.imap_unordered(judge_seeds, chunks):
            tally += part
            findings += found
            for finding in found[:3] if len(findings) < 100 else ():
                print(*finding, flush=True)
    pairs = sum(tally.values()) - tally["contract"]
    seconds = time.monotonic() - begun
    print(f"{pairs:,} pairs, {len(findings):,} findings, {pairs / seconds:.0f} pairs a second: {dict(tally)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
