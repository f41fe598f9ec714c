"""Records the programs of `contract_programs`, with every mutation and again and again as they are.

    python -m benchmarks.contract_mutations OUT [--seconds 440]      # on a GPU

Each program has a process of its own, which imports torch while another records; one records at a time. It records
itself once, then each mutation, then itself in turns alone, beside processes that keep the GPU and all CPUs busy, and
with other batch sizes. `OUT` then has `index.json` and up to eight files `contracts-N.tar` with the traces.
`python -m benchmarks.contracts OUT docs/evaluation/contracts.md` judges them, on any machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.contract_programs import PROGRAMS, MutationVariant

WARM_UP, STEPS = 3, 8
SECONDS = 440.0
REPEATS = 16
"""Maximum number of recordings of each program as it is."""
SCALES = (1.0, 1.0, 0.75, 1.0, 1.5, 1.0)
"""Factors of the batch size, in turns."""
FILE_BYTES = 15_000_000
FILES = 8
IMPORTS_S = 100.0
"""Time for a process's imports."""
PATIENCE_S = 40.0
"""Time that a program may need beyond its share."""


def work(program: str, out: Path, ready: Event, go: Event, busy: Event, share_s: float) -> None:
    """Record a program, when it is its turn, for its share of the time."""
    import overlapscope

    os.setpgid(0, 0)  # So that its loader's processes end with it.
    _ = overlapscope.record  # Imported only when it is asked for.
    ready.set()
    go.wait()
    ends = time.monotonic() + share_s
    entries = []
    for name, variant, kind in _plan(program):
        if time.monotonic() > ends + (PATIENCE_S / 2 if kind == "mutation" else 0):
            break
        path = out / program / f"{name}.trace.json.gz"
        begun = time.monotonic()
        try:
            _set(busy, kind == "busy")
            record(program, variant, path)
        except Exception:
            print(f"{program} {name} failed:\n{traceback.format_exc(limit=4)}", flush=True)
            continue
        finally:
            busy.clear()
        entries.append(
            {
                "program": program,
                "file": f"{program}/{path.name}",
                "mutation": variant.mutation,
                "scale": variant.scale,
                "kind": kind,
            }
        )
        (out / program / "index.json").write_text(json.dumps(entries))
        print(f"{program} {name}: {time.monotonic() - begun:.1f} s, {path.stat().st_size / 1e3:.0f} kB", flush=True)


def _set(busy: Event, wanted: bool) -> None:
    if wanted:
        busy.set()
        time.sleep(0.2)


def _plan(program: str) -> Iterator[tuple[str, MutationVariant, str]]:
    """Yield the recordings of a program in order: name, variant and kind."""
    yield "base", MutationVariant(), "base"
    for mutation in PROGRAMS[program][1]:
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
    step = PROGRAMS[program][0](variant)
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


def pack(out: Path) -> None:
    """Pack the traces into files of a limited size, and write `index.json`."""
    entries: list[dict[str, Any]] = []
    for index in sorted(out.glob("*/index.json")):
        entries += json.loads(index.read_text())
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
    for program in PROGRAMS:
        shutil.rmtree(out / program)
    (out / "index.json").write_text(json.dumps({"machine": _machine(), "recordings": entries}, indent=1) + "\n")


def _machine() -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"gpu": name, "torch": str(torch.__version__), "cuda": str(torch.version.cuda), "cores": str(os.cpu_count())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all recordings (%(default)s)")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    context = multiprocessing.get_context("spawn")
    busy, share_s = context.Event(), options.seconds / len(PROGRAMS)
    crowd = [
        context.Process(target=disturb, args=(busy, number == 0), daemon=True) for number in range(os.cpu_count() or 2)
    ]
    ready, turns = ([context.Event() for _ in PROGRAMS] for _ in range(2))
    workers = [
        context.Process(target=work, args=(program, out, ready[number], turns[number], busy, share_s))
        for number, program in enumerate(PROGRAMS)
    ]
    for program in PROGRAMS:
        (out / program).mkdir(parents=True, exist_ok=True)
    for process in (*crowd, *workers):
        process.start()
    for number, (process, program) in enumerate(zip(workers, PROGRAMS, strict=True)):
        ready[number].wait(IMPORTS_S)
        turns[number].set()
        process.join(share_s + PATIENCE_S)
        if process.is_alive() and process.pid is not None:
            print(f"{program} did not end in time", flush=True)
            busy.clear()
            os.killpg(process.pid, signal.SIGKILL)
    for process in crowd:
        process.kill()
    pack(out)


if __name__ == "__main__":
    main()
