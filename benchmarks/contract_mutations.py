"""Records the programs of `contract_programs`, with every mutation and again and again as they are.

    python -m benchmarks.contract_mutations OUT [--seconds 440]              # on a GPU
    python -m benchmarks.contract_mutations OUT --ranks 2 --seconds 90       # on several

Each program has a process of its own, which imports torch while another records; one records at a time. It records
itself once, then each mutation, then itself in turns alone, beside processes that keep the GPU and all CPUs busy, and
with other batch sizes. With `--ranks`, a process for each GPU records the programs with collectives, one after another.
`OUT` then has `index.json` and up to four files `contracts-N.tar` with the traces.
`python -m benchmarks.contracts OUT... docs/evaluation/contracts.md` judges them, on any machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import socket
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.contract_programs import ALL_PROGRAMS, COMPILED, PROGRAMS, RANK_PROGRAMS
from benchmarks.contract_variants import MutationVariant

WARM_UP, STEPS = 3, 8
SECONDS = 440.0
REPEATS = 16
"""Maximum number of recordings of each program as it is."""
SCALES = (1.0, 1.0, 0.75, 1.0, 1.5, 1.0)
"""Factors of the batch size, in turns."""
FILE_BYTES = 15_000_000
FILES = 4
IMPORTS_S = 100.0
"""Time for the imports of all processes, and for compilers."""
PATIENCE_S = 40.0
"""Time that a program may need beyond its share."""


def work(program: str, out: Path, ready: Event, go: Event, busy: Event, share_s: Synchronized[float]) -> None:
    """Record a program, when it is its turn, for its share of the time."""
    import overlapscope

    os.setpgid(0, 0)  # So that its loader's processes end with it.
    _ = overlapscope.record  # Imported only when it is asked for.
    if program in COMPILED:
        _compile(program)
    ready.set()
    go.wait()
    ends = time.monotonic() + share_s.value
    entries: list[dict[str, Any]] = []
    for name, variant, kind in _plan(program):
        if time.monotonic() > ends + (PATIENCE_S / 2 if kind in ("base", "mutation") else 0):
            break
        entries += record_one(out, program, name, variant, kind, busy)
        (out / program / "index.json").write_text(json.dumps(entries))


def _compile(program: str) -> None:
    """Fill the compiler's caches, which takes longer than all recordings."""
    for scale in sorted(set(SCALES)):
        try:
            ALL_PROGRAMS[program][0](MutationVariant(scale=scale))()
        except Exception:
            print(f"{program} can't be compiled:\n{traceback.format_exc(limit=4)}", flush=True)
            return


def record_one(
    out: Path, program: str, name: str, variant: MutationVariant, kind: str, busy: Event
) -> list[dict[str, Any]]:
    """Record a program once, and return its entry of the index, or nothing if it failed."""
    pattern = f"{name}.trace.json.gz"
    path = out / program / pattern.replace("{rank}", os.environ.get("RANK", ""))
    begun = time.monotonic()
    try:
        _set(busy, kind == "busy")
        record(program, variant, out / program / pattern)
    except Exception:
        print(f"{program} {name} failed:\n{traceback.format_exc(limit=4)}", flush=True)
        return []
    finally:
        busy.clear()
    print(f"{program}/{path.name}: {time.monotonic() - begun:.1f} s, {path.stat().st_size / 1e3:.0f} kB", flush=True)
    file = f"{program}/{path.name}"
    return [
        {"program": program, "file": file, "mutation": variant.mutation, "scale": variant.scale, "kind": kind},
    ]


def work_rank(rank: int, ranks: int, port: int, out: Path, busy: Event, ends_at: float) -> None:
    """Record all programs with collectives, as one rank of several."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ["LOCAL_RANK"] = str(rank)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=torch.device("cuda", rank) if on_gpu else None)
    # Ranks agree by a group of their own on whether there is time for another recording.
    control = dist.new_group(backend="gloo")
    entries: dict[str, list[dict[str, Any]]] = {program: [] for program in RANK_PROGRAMS}
    for program, name, variant, kind in _plan_of_ranks():
        goes_on = [time.time() < ends_at]
        dist.broadcast_object_list(goes_on, src=0, group=control)
        if not goes_on[0]:
            break
        here = record_one(out, program, name + ".rank{rank}", variant, kind, busy)
        # A mutation counts once, and the first rank's contract must hold for the others.
        entries[program] += here if rank == 0 or kind != "mutation" else []
        (out / program / f"index.{rank}.json").write_text(json.dumps(entries[program]))
    dist.barrier(group=control)
    os._exit(0)  # A model that outlives the process group can wait for it forever.


def _plan_of_ranks() -> Iterator[tuple[str, str, MutationVariant, str]]:
    """Yield program, name, variant and kind of each recording, the mutations of all programs first."""
    plans = {program: list(_plan(program)) for program in RANK_PROGRAMS}
    for repeats in (False, True):
        longest = max(map(len, plans.values()))
        for number in range(longest):
            for program, plan in plans.items():
                if number < len(plan) and (plan[number][2] in ("alone", "busy")) == repeats:
                    yield program, *plan[number]


def _set(busy: Event, wanted: bool) -> None:
    if wanted:
        busy.set()
        time.sleep(0.2)


def _plan(program: str) -> Iterator[tuple[str, MutationVariant, str]]:
    """Yield the recordings of a program in order: name, variant and kind."""
    yield "base", MutationVariant(), "base"
    for mutation in ALL_PROGRAMS[program][1]:
        yield mutation.replace(" ", "_"), MutationVariant(mutation), "mutation"
    for number in range(REPEATS):
        kind = "busy" if number % 3 == 1 else "alone"
        yield f"again.{number}", MutationVariant(scale=SCALES[number % len(SCALES)]), kind


def record(program: str, variant: MutationVariant, path: Path) -> None:
    """Record `STEPS` steps after `WARM_UP`, with Python lines."""
    import torch

    import overlapscope

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    step = ALL_PROGRAMS[program][0](variant)
    for _ in range(6):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    with overlapscope.record(path, warmup=WARM_UP, active=STEPS, plain_steps=0, stacks=True) as recorder:
        for _ in range(WARM_UP + STEPS):
            step()
            recorder.step()


def disturb(busy: Event, gpu: bool) -> None:
    """Keep the GPU or a core busy while the event is set."""
    work_some = _multiply() if gpu else (lambda: sum(range(200_000)))
    while busy.wait():
        work_some()


def _multiply() -> Callable[[], object]:
    """Return a function that keeps the GPU busy for some milliseconds; on a machine without one, a core."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.randn(2048, 2048, device=device)

    def work_some() -> None:
        for _ in range(10):
            matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()

    return work_some


def pack(out: Path, programs: Sequence[str]) -> None:
    """Pack the traces into files of a limited size, and write `index.json`; for want of space, the last repeats go."""
    numbered: list[tuple[int, dict[str, Any]]] = []
    for program in programs:
        for index in sorted((out / program).glob("index*.json")):
            numbered += enumerate(json.loads(index.read_text()))
    entries = [entry for _, entry in sorted(numbered, key=lambda pair: pair[0])]
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for entry in entries:
        added = (out / entry["file"]).stat().st_size + 1024
        if size + added > FILE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += added
    for number, part in enumerate(parts[:FILES], 1):
        with tarfile.open(out / f"contracts-{number}.tar", "w") as archive:
            for entry in part:
                archive.add(out / entry["file"], entry["file"])
    left_out = sum(map(len, parts[FILES:]))
    if left_out:
        print(f"left out for want of space: {left_out} recordings", flush=True)
    for program in programs:
        shutil.rmtree(out / program)
    (out / "index.json").write_text(json.dumps({"machine": _machine(), "recordings": entries}, indent=1) + "\n")


def _machine() -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"gpu": name, "torch": str(torch.__version__), "cuda": str(torch.version.cuda), "cores": str(os.cpu_count())}


def record_programs(context: SpawnContext, out: Path, busy: Event, seconds: float) -> None:
    """Record all programs of one GPU, each for an equal share of the time that is left."""
    begun = time.monotonic()
    ready, turns = ([context.Event() for _ in PROGRAMS] for _ in range(2))
    share_s = context.Value("d")
    workers = [
        context.Process(target=work, args=(program, out, ready[number], turns[number], busy, share_s))
        for number, program in enumerate(PROGRAMS)
    ]
    for process in workers:
        process.start()
    ends = begun + seconds
    for each in ready:  # Nothing is recorded beside imports and compilers.
        each.wait(max(0.0, begun + IMPORTS_S - time.monotonic()))
    for number, (process, program) in enumerate(zip(workers, PROGRAMS, strict=True)):
        share_s.value = max(0.0, ends - time.monotonic()) / (len(PROGRAMS) - number)
        turns[number].set()
        _join(process, program, share_s.value + PATIENCE_S, busy)


def record_ranks(context: SpawnContext, out: Path, busy: Event, seconds: float, ranks: int) -> None:
    """Record all programs with collectives in a process for each GPU."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = [
        context.Process(target=work_rank, args=(rank, ranks, port, out, busy, time.time() + seconds))
        for rank in range(ranks)
    ]
    for process in workers:
        process.start()
    ends = time.monotonic() + seconds + PATIENCE_S
    for rank, process in enumerate(workers):
        _join(process, f"rank {rank}", max(0.0, ends - time.monotonic()), busy)


def _join(process: SpawnProcess, name: str, patience_s: float, busy: Event) -> None:
    process.join(patience_s)
    if process.is_alive() and process.pid is not None:
        print(f"{name} did not end in time", flush=True)
        busy.clear()
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all recordings (%(default)s)")
    parser.add_argument("--ranks", type=int, help="number of GPUs for the programs with collectives")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    context = multiprocessing.get_context("spawn")
    busy = context.Event()
    crowd = [
        context.Process(target=disturb, args=(busy, number == 0), daemon=True) for number in range(os.cpu_count() or 2)
    ]
    programs = RANK_PROGRAMS if options.ranks else PROGRAMS
    for program in programs:
        (out / program).mkdir(parents=True, exist_ok=True)
    for process in crowd:
        process.start()
    if options.ranks:
        record_ranks(context, out, busy, options.seconds, options.ranks)
    else:
        record_programs(context, out, busy, options.seconds)
    for process in crowd:
        process.kill()
    pack(out, list(programs))


if __name__ == "__main__":
    main()
