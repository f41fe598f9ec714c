"""Measures and records the programs of `scenarios/jobs` on several GPUs: `python -m benchmarks.several_gpus OUT`.

For each program, all variants are prepared in one job. Their steps are timed in turn without the profiler, and each is
then recorded. Beside them, `bandwidth` times collectives of many sizes by the arithmetic of nccl-tests, and `peer`
copies from one GPU to another in one process. `overlapscope run` records the base of each program under torchrun.

OUT then has `results.json`, with a `ProgramResult` for each variant and job, and up to five archives of traces.
Everything ends within `--seconds`: a job that hangs is killed, and its next program begins in new processes. Without
GPUs, two processes take small sizes through gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

import overlapscope

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "scenarios" / "jobs"
LATE = ("--sleep-rank", "1", "--sleep-ms", "20")
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "ddp": {
        "base": (),
        "sleep": LATE,
        "small-buckets": ("--bucket-mb", "1"),
        "large-buckets": ("--bucket-mb", "10000"),
        "slow-loader": ("--slow-loader-rank", "1"),
        "item": ("--item",),
    },
    "fsdp2": {"base": (), "no-prefetch": ("--no-prefetch",), "sleep": LATE},
    "tensor_parallel": {"base": (), "item": ("--item",), "sleep": LATE},
    "two_collectives": {"base": (), "one-communicator": ("--one-communicator",)},
    "experts": {"base": (), "skew": ("--skew-pct", "60"), "sleep": LATE},
    "pipeline": {"base": (), "sleep": LATE, "zero-bubble": ("--schedule", "zero-bubble")},
}
"""Options of each program's variants. `base` is the others' fix."""
SMALL = {
    "ddp": ("--layers", "4", "--width", "128", "--batch", "64"),
    "fsdp2": ("--blocks", "2", "--width", "64", "--batch", "64"),
    "tensor_parallel": ("--blocks", "2", "--width", "64", "--batch", "64"),
    "two_collectives": ("--width", "64", "--batch", "64", "--large-mb", "1"),
    "experts": ("--blocks", "2", "--width", "64", "--tokens", "64"),
    "pipeline": ("--blocks", "4", "--width", "64", "--batch", "64", "--microbatches", "4"),
}
"""Sizes for the CPU."""
ROUNDS, TIMED_STEPS, RECORDED_STEPS = 4, 20, 60
STUCK_S = 60.0
"""Longest time for one program."""
ARCHIVES, ARCHIVE_BYTES = 5, 14 << 20


class ProgramResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of a variant or a job."""

    job: str
    world: int
    program: str
    variant: str = ""
    options: tuple[str, ...] = ()
    plain_ns: list[list[int]] = []
    """Mean step of each round, of each rank."""
    trace: str = ""
    figures: list[dict[str, float | str]] = []
    error: str = ""
    seconds: float = 0.0


class DistributedJob(msgspec.Struct, frozen=True):
    """Processes that belong together, and what they run."""

    name: str
    gpus: tuple[int, ...]
    programs: tuple[str, ...]


# -- in the processes of a job


def work(out: Path, name: str, programs: Sequence[str]) -> None:
    """Measure and record programs, one process of several."""
    sys.path.insert(0, str(JOBS))
    first_port = int(os.environ["MASTER_PORT"])
    for number, program in enumerate(programs):
        os.environ["MASTER_PORT"] = str(first_port + number)
        begin = time.monotonic()
        _append(out, ProgramResult(name, int(os.environ["WORLD_SIZE"]), program, variant="begun"))
        for result in _MEASURES.get(program, _variants)(out, name, program):
            _append(out, msgspec.structs.replace(result, seconds=round(time.monotonic() - begin, 1)))
        if dist.is_initialized():
            dist.destroy_process_group()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _append(out: Path, result: ProgramResult) -> None:
    if os.environ["RANK"] == "0":
        with (out / f"{result.job}.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(result) + b"\n")


def _variants(out: Path, name: str, program: str) -> Iterator[ProgramResult]:
    import job

    module = importlib.import_module(program)
    device = job.begin()
    sizes = () if device.type == "cuda" else SMALL[program]
    steps = {}
    for variant, options in VARIANTS[program].items():
        torch.manual_seed(0)
        steps[variant] = module.prepare(module.options().parse_args([*sizes, *options]), device)
    for step in steps.values():
        for _ in range(5):
            step()
    rounds = [{variant: _mean_ns(step, device) for variant, step in steps.items()} for _ in range(ROUNDS)]
    for variant, step in steps.items():
        of_ranks: list[list[int]] = [[]] * dist.get_world_size()
        dist.all_gather_object(of_ranks, [times[variant] for times in rounds])
        trace = out / name / f"{program}-{variant}.trace.json.gz"
        _record(trace, step, stacks="stacks" in name)
        options = (*sizes, *VARIANTS[program][variant])
        yield ProgramResult(name, dist.get_world_size(), program, variant, options, of_ranks, _traces(trace))


def _traces(trace: Path) -> str:
    return f"{trace.parent.name}/{trace.name.removesuffix('.trace.json.gz')}.traces"


def _mean_ns(step: Callable[[], object], device: torch.device) -> int:
    _synchronize(device)
    begin = time.perf_counter_ns()
    for _ in range(TIMED_STEPS):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begin) // TIMED_STEPS


def _synchronize(device: torch.device) -> None:
    if dist.is_initialized():
        dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _record(trace: Path, step: Callable[[], object], *, stacks: bool = False) -> None:
    trace.parent.mkdir(exist_ok=True)
    active = 1 if stacks else 3  # Stacks take many times the space.
    with overlapscope.record(trace, wait=3, warmup=2, active=active, steps_by="marks", stacks=stacks) as rec:
        for _ in range(RECORDED_STEPS):
            step()
            rec.step()


def _bandwidth(out: Path, name: str, program: str) -> Iterator[ProgramResult]:
    """Time collectives by the arithmetic of nccl-tests: the mean of many calls, and the bytes of the whole buffer."""
    import job

    device = job.begin()
    torch.set_default_dtype(torch.float32)
    world = dist.get_world_size()
    largest = 1 << (29 if device.type == "cuda" else 21)
    with device:
        source, target = torch.ones(largest // 4), torch.empty(largest // 4)

    def call(collective: str, size: int) -> None:
        whole, part = size // 4, size // 4 // world
        match collective:
            case "all_reduce":
                dist.all_reduce(source[:whole])
            case "all_gather_into_tensor":
                dist.all_gather_into_tensor(target[: part * world], source[:part])
            case "reduce_scatter_tensor":
                dist.reduce_scatter_tensor(target[:part], source[: part * world])
            case "all_to_all_single":
                dist.all_to_all_single(target[: part * world], source[: part * world])

    collectives = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    sizes = [1 << power for power in range(20, largest.bit_length())]
    figures: list[dict[str, float | str]] = []
    for collective in collectives:
        for size in sizes:
            call(collective, size)
            seconds = _seconds(partial(call, collective, size), device)
            factor = (2 if collective == "all_reduce" else 1) * (world - 1) / world
            source.fill_(1)
            algorithm = size / seconds / 1e9
            figures.append(
                {
                    "collective": collective,
                    "bytes": size,
                    "us": seconds * 1e6,
                    "algbw_gb_s": algorithm,
                    "busbw_gb_s": algorithm * factor,
                }
            )

    def step() -> None:
        for collective in collectives:
            for size in sizes:
                call(collective, size)
        source.fill_(1)

    trace = out / name / "bandwidth.trace.json.gz"
    _record(trace, step)
    yield ProgramResult(name, world, program, trace=_traces(trace), figures=figures)


def _seconds(call: Callable[[], object], device: torch.device, calls: int = 20) -> float:
    """Return the mean time of calls in a row, after five of warm-up."""
    for _ in range(5):
        call()
    _synchronize(device)
    if device.type == "cpu":
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / calls


def _peer(out: Path, name: str, program: str) -> Iterator[ProgramResult]:
    """Copy from one GPU to another, alone and beside products, on the default and on another stream."""
    here, there = torch.device("cuda:0"), torch.device("cuda:1")
    sizes = [1 << power for power in (20, 24, 28)]
    sources = [torch.ones(size, dtype=torch.uint8, device=here) for size in sizes]
    targets = [torch.empty_like(source, device=there) for source in sources]
    weight = torch.randn(4096, 4096, device=here, dtype=torch.bfloat16)
    side = torch.cuda.Stream(here)
    figures: list[dict[str, float | str]] = [{"can_access_peer": float(torch.cuda.can_device_access_peer(0, 1))}]
    for source, target in zip(sources, targets, strict=True):
        ways: dict[str, Callable[[], object]] = {
            "to": partial(source.to, there),
            "copy": partial(target.copy_, source, non_blocking=True),
            "back": partial(source.copy_, target, non_blocking=True),
        }
        for way, call in ways.items():
            seconds = _seconds(call, here)
            rate = source.nbytes / seconds / 1e9
            figures.append({"way": way, "bytes": source.nbytes, "us": seconds * 1e6, "gb_s": rate})

    def step() -> None:
        for source in sources:
            source.to(there)
        for source, target in zip(sources, targets, strict=True):
            source.copy_(target, non_blocking=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            targets[-1].copy_(sources[-1], non_blocking=True)
        for _ in range(5):
            weight @ weight
        torch.cuda.current_stream().wait_stream(side)

    trace = out / name / "peer.trace.json.gz"
    _record(trace, step)
    yield ProgramResult(name, 1, program, figures=figures, trace=f"{name}/{trace.name}")


_MEASURES = {"bandwidth": _bandwidth, "peer": _peer}


# -- in the process that starts them


def measure(out: Path, job: DistributedJob, end: float) -> None:
    """Run a job's programs; after a failure, the next ones in new processes."""
    remaining = job.programs
    while remaining and time.monotonic() < end - 20:
        failure = _attended(out, job, remaining, end)
        if failure is None:
            return
        results = _results(out, job.name)
        program = results[-1].program if results else remaining[0]
        with (out / f"{job.name}.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(ProgramResult(job.name, len(job.gpus), program, error=failure)) + b"\n")
        remaining = remaining[remaining.index(program) + 1 :] if program in remaining else remaining[1:]


def _results(out: Path, name: str) -> list[ProgramResult]:
    path = out / f"{name}.jsonl"
    return msgspec.json.Decoder(ProgramResult).decode_lines(path.read_bytes()) if path.exists() else []


def _attended(out: Path, job: DistributedJob, programs: Sequence[str], end: float) -> str | None:
    """Run programs in new processes, and return how they failed."""
    world = len(job.gpus)
    common = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, job.gpus + ((1,) if programs == ("peer",) else ()))),
    }
    command = [sys.executable, "-m", "benchmarks.several_gpus", "work", str(out), job.name, *programs]
    log = out / f"{job.name}.log"
    with log.open("ab") as output:
        ranks = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**_environment(), **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            for rank in range(world)
        ]
    try:
        return _watched(out / f"{job.name}.jsonl", ranks, end)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _watched(progress: Path, ranks: Sequence[subprocess.Popen[bytes]], end: float) -> str | None:
    begin = time.time()
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return None
        if any(codes):
            return f"exit codes {codes}"
        if time.monotonic() > end:
            return "no time left"
        last = max(begin, progress.stat().st_mtime if progress.exists() else begin)
        if time.time() - last > STUCK_S:
            return f"no result within {STUCK_S:.0f} s"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "4" if torch.cuda.is_available() else "1",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def run(out: Path, program: str, gpus: tuple[int, ...], end: float) -> None:
    """Record the base of a program by `overlapscope run` under torchrun, and compare the ranks."""
    begin = time.monotonic()
    if begin > end - 20:
        return
    trace = out / "run" / f"{program}.trace.json.gz"
    trace.parent.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(len(gpus)), "--master-port", str(free_port())]
    recorder = ["-m", "overlapscope", "run", "--active", "3", "-o", str(trace)]
    sizes = () if torch.cuda.is_available() else SMALL[program]
    environment = {**_environment(), "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    failures = []
    for arguments in (
        [*launcher, *recorder, str(JOBS / f"{program}.py"), *sizes, "--steps", "60"],
        ["-m", "overlapscope", "ranks", str(trace.parent / f"{program}.traces")],
    ):
        with (out / f"run-{program}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
            try:
                code = process.wait(timeout=max(1, min(2 * STUCK_S, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.terminate()  # torchrun then ends its processes, within 30 s.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=35)
                process.kill()
                failures.append("it was stopped")
                break
            if code:
                failures.append(f"{arguments[-2:]}: exit code {code}")
    result = ProgramResult("run", len(gpus), program, "base", sizes, trace=_traces(trace), error="; ".join(failures))
    taken = msgspec.structs.replace(result, seconds=round(time.monotonic() - begin, 1))
    with (out / "run.jsonl").open("ab") as lines:
        lines.write(msgspec.json.encode(taken) + b"\n")


def pack(work_folder: Path, out: Path) -> None:
    """Write the results, and the traces into as few archives as hold them, those without stacks first."""
    names = [path.stem for path in sorted(work_folder.glob("*.jsonl"))]
    results = [result for name in names for result in _results(work_folder, name) if result.variant != "begun"]
    traces = sorted(work_folder.rglob("*.json.gz"), key=lambda path: ("stacks" in str(path), str(path)))
    archives: list[list[Path]] = [[]]
    room = ARCHIVE_BYTES
    for path in (*sorted(work_folder.glob("*.log")), *traces):
        size = path.stat().st_size + 1024
        if size > room:
            archives.append([])
            room = ARCHIVE_BYTES
        archives[-1].append(path)
        room -= size
    for number, paths in enumerate(archives[:ARCHIVES]):
        with tarfile.open(out / f"traces-{number}.tar", "w") as archive:
            for path in paths:
                archive.add(path, str(path.relative_to(work_folder)))
    gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
    machine = {
        "torch": str(torch.__version__),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else "",
        "gpus": gpus,
        "cores": os.cpu_count(),
    }
    left_out = [str(path.relative_to(work_folder)) for paths in archives[ARCHIVES:] for path in paths]
    everything = {"machine": machine, "results": results, "left_out": left_out}
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(everything), indent=1))


def main() -> None:
    """Measure everything that this machine's GPUs allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS), metavar="PROGRAM")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    work_folder = options.out / "work"
    work_folder.mkdir(parents=True)
    names = tuple(options.only)
    halves = names[::2], names[1::2]
    gpus = tuple(range(torch.cuda.device_count())) or (0, 1)
    pairs = (gpus[:2], gpus[2:4]) if len(gpus) >= 4 else (gpus[:2], gpus[:2])
    at_once = 2 if len(gpus) >= 4 else 1
    stages: list[list[DistributedJob]] = [
        [DistributedJob("two", pairs[0], (*halves[0], "bandwidth")), DistributedJob("two-b", pairs[1], halves[1])]
    ]
    if len(gpus) >= 4:
        stages.insert(0, [DistributedJob("four", gpus[:4], (*names, "bandwidth"))])
    if torch.cuda.is_available():
        stages.append([DistributedJob("peer", gpus[:1], ("peer",))])
    stages.append(
        [DistributedJob("two-stacks", pairs[0], halves[0]), DistributedJob("two-stacks-b", pairs[1], halves[1])]
    )
    with ThreadPoolExecutor(at_once) as pool:
        for stage in stages:
            list(pool.map(lambda job: measure(work_folder, job, end - 20), stage))
            pack(work_folder, options.out)
        if time.monotonic() < end - 60:
            of_pairs = [pairs[number % 2] for number, _name in enumerate(names)]
            list(pool.map(lambda name, pair: run(work_folder, name, pair, end - 10), names, of_pairs))
            pack(work_folder, options.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main()
