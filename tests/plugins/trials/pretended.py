"""A program that `overlapscope try` runs in a tenth of a second:

Instead of importing torch, it reports at once what a real run would. Run as a script; argv says what it is like.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

CALL = "OVERLAPSCOPE_AT_IMPORT"
"""Variable with the task."""
TRUTH = {"workers": 0.7, "pin": 0.8, "non-blocking": 0.98, "fused": 1.0}
"""Step time with each change, for a step of 10 ms."""
SOURCE = Path(__file__).read_text()


def loader(texts: Any) -> Any:
    """Effects of an edit."""
    from torch.utils.data import DataLoader

    return DataLoader(texts, batch_size=2)


def facts(*, gpu: bool) -> dict[str, object]:
    site = [os.path.abspath(__file__), SOURCE[: SOURCE.index("return DataLoader(")].count("\n") + 1]
    kind = {"iterable": False, "num_workers": 0, "pin_memory": False, "on_gpu": False}
    optimizer = {"site": site, "name": "SGD", "takes_fused": True, "fused": False}
    copies = {"method": "to", "pinned": False, "non_blocking": False, "from_loader": False}
    return {
        "cuda": gpu,
        "device_name": "H200" if gpu else None,
        "uploads": [{"site": site, **copies}] if gpu else [],
        "cpus": 2,
        "loaders": [{"site": site, "loop": None, **kind}],
        "optimizers": [optimizer],
    }


def record(command: list[str], *, races: bool) -> None:
    """Leave the files of `overlapscope run` for a program on a GPU."""
    trace = json.loads(gzip.decompress(Path(os.environ["PRETENDED_TRACE"]).read_bytes()))
    if "--check-hazards" in command:
        trace.setdefault("overlapscope", {})["found"] = {"hazards": 2 if races else 0}
    Path(command[command.index("--output") + 1]).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def main(like: list[str]) -> None:
    if CALL not in os.environ:
        sys.exit("the data is broken" if "fails" in like else 0)
    task = json.loads(os.environ[CALL].partition(" ")[2])
    changes = [setting["change"] for setting in task["changes"]]
    with open("runs.txt", "a") as runs:
        print(",".join(changes) or "as it is", sys.stdin.read().strip(), file=runs)
    if task["steps"] is None:
        record(sys.orig_argv, races="races" in like)
        return
    if "fails-when-timed" in like or "fails" in like or (changes and f"fails-with-{changes[-1]}" in like):
        sys.exit("the data is broken")
    if "hangs" in like and changes:
        Path("hanging.txt").write_text(str(os.getpid()))
        time.sleep(1000)
    wanted = task["warmup_steps"] + task["steps"] + 1
    looked_at_badly = "fails-when-looked-at" in like and task["survey"]
    steps = min([wanted - looked_at_badly, *(int(word) for word in like if word.isdecimal())])
    step_ns = 10_000_000
    for change in changes:
        step_ns = int(step_ns * TRUTH[change])
    source = random.Random(task["directory"].rpartition("-")[2])
    digest = "other" if "differs" in like and changes else "same"
    outcome = {
        "rank": 0,
        "ranks": 1,
        "all_steps": steps,
        "complete": steps == wanted,
        "host_ns": [step_ns + source.randrange(200_000) for _ in range(steps - task["warmup_steps"] - 1)],
        "results": {"digest": digest, "sketches": [], "loss": 1.0 if digest == "same" else 2.0},
        "facts": facts(gpu="gpu" in like) if task["survey"] else None,
        "effects": dict.fromkeys(changes, 1),
    }
    half = Path(task["directory"], "half.json")
    half.write_text(json.dumps(outcome))
    half.rename(half.with_name("rank0.json"))
    if looked_at_badly:
        sys.exit("a worker was killed by signal: Aborted")


if __name__ == "__main__":
    main(sys.argv[1:])
