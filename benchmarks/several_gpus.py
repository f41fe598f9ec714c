"""Measures and records the programs of `scenarios/jobs` on several GPUs: `python -m benchmarks.several_gpus OUT`.

For each program, all variants are prepared in one job. Their steps are timed in turn without the profiler, and each is
then recorded; the first once more, and some with Python stacks. Beside them, `bandwidth` times collectives of many
sizes by the arithmetic of nccl-tests, and `peer` copies from one GPU to another in one process. `overlapscope run`
records some programs and experiments of the laboratory under torchrun. Logs of runs with `--check-hazards` are printed.

OUT then has `results.json`, with a `ProgramResult` for each variant and job, and up to four archives of traces.
Everything ends within `--seconds`: a job that hangs is killed, and its next program begins in new processes. Without
GPUs, two processes take small sizes through gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch

from benchmarks.several_gpus_plan import PORTS, PROGRAMS, ROOT, RUNS, DistributedJob, LauncherRun, ProgramResult

STUCK_S = 60.0
"""Longest time without a result."""
ARCHIVES, ARCHIVE_BYTES = 4, 15 << 20
PARTS = ("four", "two", "two-b", "peer", "run")


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
        PORTS: " ".join(map(str, free_ports(len(programs)))),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, job.gpus + ((1,) if programs == ("peer",) else ()))),
    }
    stacks = ("--stacks",) if job.stacks else ()
    command = [sys.executable, "-m", "benchmarks.several_gpus", str(out), "--job", job.name, *stacks, "--only"]
    log = out / f"{job.name}.log"
    with log.open("ab") as output:
        ranks = [
            subprocess.Popen(
                [*command, *programs],
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
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return ports of which no two are the same."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "4" if torch.cuda.is_available() else "1",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def launch(out: Path, run: LauncherRun, gpus: tuple[int, ...], end: float) -> None:
    """Record a script by `overlapscope run` under torchrun, and compare the ranks."""
    begin = time.monotonic()
    arguments = run.arguments if torch.cuda.is_available() else run.small
    if arguments is None or begin > end - 25:
        return
    trace = out / "run" / f"{run.name}.trace.json.gz"
    trace.parent.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(len(gpus)), "--master-port", str(free_port())]
    recorder = ["-m", "overlapscope", "run", *run.recorder, "-o", str(trace)]
    environment = {**_environment(), "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    error = ""
    log = out / f"run-{run.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *launcher, *recorder, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=max(1, min(STUCK_S, end - time.monotonic())))
            error = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            error = "it was stopped"
            process.terminate()  # torchrun then ends its processes.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if "--check-hazards" in run.recorder:
        print(f"{run.name}: {error or 'exit code 0'}", log.read_text(), sep="\n", flush=True)
    result = ProgramResult(
        "run",
        len(gpus),
        run.name,
        "run",
        (*run.recorder, *(argument.removeprefix(f"{ROOT}/") for argument in arguments)),
        trace=f"run/{run.name}.traces",
        error=error,
        seconds=round(time.monotonic() - begin, 1),
    )
    with (out / "run.jsonl").open("ab") as lines:
        lines.write(msgspec.json.encode(result) + b"\n")


def pack(work_folder: Path, out: Path) -> None:
    """Write the results, and the traces into as few archives as hold them, the most telling first."""
    names = [path.stem for path in sorted(work_folder.glob("*.jsonl"))]
    results = [result for name in names for result in _results(work_folder, name) if result.variant != "begun"]
    traces = sorted(work_folder.rglob("*.json.gz"), key=lambda path: (_worth(path), str(path)))
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


def _worth(path: Path) -> int:
    """Return the place of a trace among those that are kept: one of many megabytes, or a second one, comes last."""
    kind = path.parent.name
    return 2 if "-again" in kind else 1 if "-stacks" in kind else 0


def stages(names: tuple[str, ...], gpus: tuple[int, ...]) -> Iterator[list[DistributedJob]]:
    """Yield jobs that run side by side, if there are GPUs for all of them."""
    several = len(gpus) >= 4
    if several:
        yield [DistributedJob("four", gpus[:4], ("bandwidth", *names), stacks=True)]
    first, second = gpus[:2], gpus[2:4] if several else gpus[:2]
    stacks = not several
    yield [
        DistributedJob("two", first, ("bandwidth", *names[::2]), stacks),
        DistributedJob("two-b", second, names[1::2], stacks),
    ]
    if torch.cuda.is_available():
        yield [DistributedJob("peer", gpus[:1], ("peer",))]


def conduct(out: Path, chosen: Sequence[str], parts: Sequence[str], end: float) -> None:
    """Measure the chosen programs and runs, or everything that this machine's GPUs allow."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _conduct(Path(folder), out, chosen, parts, end)


def _conduct(work_folder: Path, out: Path, chosen: Sequence[str], parts: Sequence[str], end: float) -> None:
    names = tuple(name for name in PROGRAMS if not chosen or name in chosen)
    runs = [run for run in RUNS if "run" in parts and (not chosen or run.name in chosen)]
    gpus = tuple(range(torch.cuda.device_count())) or (0, 1)
    pairs = (gpus[:2], gpus[2:4]) if len(gpus) >= 4 else (gpus[:2],)
    with ThreadPoolExecutor(len(pairs)) as pool:
        for stage in stages(names, gpus):
            list(pool.map(lambda job: measure(work_folder, job, end - 20), [job for job in stage if job.name in parts]))
            pack(work_folder, out)
    with ThreadPoolExecutor(len(pairs)) as pool:
        # Each pair takes the next run when it is free.
        free = list(pairs)

        def next_run(run: LauncherRun) -> None:
            pair = free.pop()
            launch(work_folder, run, pair, end - 20)
            free.append(pair)

        list(pool.map(next_run, runs))
    pack(work_folder, out)


def main() -> None:
    """Measure, or be one process of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="programs and runs; all by default")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--stacks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        from benchmarks.several_gpus_work import work

        work(options.out, options.job, options.only, stacks=options.stacks)
    else:
        conduct(options.out, options.only, options.parts, time.monotonic() + options.seconds)


if __name__ == "__main__":
    main()
