"""Small programs of two real processes that communicate through gloo, each with one planted cause of exposed time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.several_gpus import free_port
from overlapscope import load
from overlapscope.catalog.causes import CommCause
from overlapscope.ranks.comm_result import Communication
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from tests.support import forked

pytest.importorskip("torch", reason="records with torch")

TRIES = 3
"""Maximum number of recordings: on a busy machine, either process may have to wait for a core."""
PROGRAM = """
import os, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

rank = int(os.environ["RANK"])
torch.set_num_threads(1)
library = torch.library.Library("example", "DEF")
library.define("compute(Tensor given, float ms) -> Tensor")

def compute(given, ms):
    time.sleep(ms / 1000)  # Without a core, as a GPU would.
    return given.clone()

library.impl("compute", compute, "CPU")
dist.init_process_group("gloo")
small, large = torch.ones(1 << 10), [torch.ones(1 << 22) for _ in range(3)]
huge = torch.ones(1 << 24)

def computes(ms):
    torch.ops.example.compute(torch.empty(1), ms)

def starts(message):
    return dist.all_reduce(message, async_op=True)

def straggler():
    if rank == 1:
        time.sleep(0.15)
    computes(5)
    dist.all_reduce(small)

def no_compute():
    computes(5)
    dist.all_reduce(large[0])

def transfer():
    computes(5)
    over = starts(large[0])
    computes(5)
    over.wait()

def late_compute():
    computes(5)
    over = starts(huge)
    time.sleep(0.015)  # Too short for it to end, which would look like a wait.
    computes(400)
    over.wait()

def blocked_behind():
    computes(5)
    # gloo runs two collectives at once, and the third after one of them.
    over = [starts(message) for message in large]
    while not any(each.is_completed() for each in over[:2]):
        computes(5)
    over[2].wait()

def hidden():
    computes(5)
    over = starts(large[0])
    computes(400)
    over.wait()

for step in (straggler, no_compute, transfer, late_compute, blocked_behind, hidden):
    step()
    dist.barrier()
    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.start()
    dist.barrier()
    for number in range(3):
        with record_function(f"ProfilerStep#{number}"):
            step()
    profiler.stop()
    profiler.export_chrome_trace(f"{step.__name__}.rank{rank}.json")
os._exit(0)
"""
CAUSES = {
    "straggler": CommCause.STRAGGLER,
    "no_compute": CommCause.TRANSFER,
    "transfer": CommCause.TRANSFER,
    "late_compute": CommCause.LATE_COMPUTE,
    "blocked_behind": CommCause.TRANSFER,
    "hidden": None,
}


def record(folder: Path) -> None:
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        forked.ForkedProgram(["program.py"], folder, environment={**job, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    for program in ranks:
        output, errors = program.communicate()
        assert program.returncode == 0, output + errors


def communication(folder: Path, program: str) -> Communication:
    paths = sorted(folder.glob(f"{program}.rank*.json"))
    found = report_on(rank for path in paths for rank in reduce_any(load(path))).communication
    assert sum(found.exposed_by_cause.values()) == found.time.exposed_ns
    return found


def main_cause(found: Communication) -> str | None:
    """Return the cause of most exposed time; None if nine tenths of the communication are hidden."""
    if found.time.exposed_ns < 0.1 * found.time.busy_ns:
        return None
    return max(found.exposed_by_cause, key=lambda cause: found.exposed_by_cause[cause])


def test_planted_causes_of_exposed_communication_are_named(tmp_path: Path) -> None:
    named: dict[str, list[str | None]] = {program: [] for program in CAUSES}
    for number in range(TRIES):
        record(tmp_path / str(number))
        for program, cause in CAUSES.items():
            if cause not in named[program]:
                named[program].append(main_cause(communication(tmp_path / str(number), program)))
        if all(cause in named[program] for program, cause in CAUSES.items()):
            return
    pytest.fail(f"named were {named}")
