"""Causes that are planted in a small inference server, recorded by `overlapscope record --url`.

    python -m benchmarks.serving record OUT [--only NAME]... [--seconds 2]
    python -m benchmarks.serving page OUT docs/evaluation/serving.md

`record` starts `tests/programs/server.py` for each cause, keeps it busy, and records it. `OUT/serving.json` has the
steps of each phase by the server's own clock beside those of the report, and the report's first findings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.noise import table, wrapped
from tests.programs.server import PLANTS, USUAL

ROOT = Path(__file__).parents[1]
CLIENTS, TOKENS = USUAL, 192
EXPECTED = {
    "tokenizer": ("python", "_written_out"),
    "sampler": ("host-sync", "_one_by_one"),
    "offload": ("pageable-memory", "_offload"),
    "graph": ("dispatch", "forward"),
    "gc": ("gc-pause", "_deliver"),
}
"""Rule of the first finding of each plant, and the function at its line. All are about decode steps."""


@contextmanager
def asked(url: str) -> Iterator[None]:
    """Keep clients asking, with prompts of different lengths."""
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            content = json.dumps({"prompt": [*range(8 + 6 * number)], "max_tokens": TOKENS + number}).encode()
            with urlopen(Request(f"{url}/v1/completions", data=content, method="POST")) as answer:
                answer.read()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def run(plant: str, seconds: float, out: Path) -> dict[str, Any]:
    """Record a server with a planted cause, and keep the trace."""
    with tempfile.TemporaryDirectory() as name:
        folder, clock = Path(name) / "traces", Path(name) / "clock"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.programs.server", "--traces", str(folder), "--clock", str(clock)]
        command += ["--plant", plant] if plant != "none" else []
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with asked(url):
                content = b'{"prompt": [1], "max_tokens": 40}'
                urlopen(Request(f"{url}/v1/completions", data=content, method="POST")).read()
                recording = ["record", "--url", url, "--traces", str(folder), "--stacks", "--seconds", str(seconds)]
                command = [sys.executable, "-m", "overlapscope", *recording, "--format", "json"]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            server.kill()
        report = json.loads(done.stdout)
        (trace,) = folder.iterdir()
        shutil.copy(trace, out / f"{plant}.pt.trace.json.gz")
        steps = [(end - begin, phase) for (begin, phase), (end, _) in pairwise(json.loads(clock.read_text()))]
        lengths = {phase: [ns for ns, of in steps if of == phase] for phase in ("prefill", "decode")}
        (result,) = report["traces"]
        device = next(iter(result["devices"]), None)
        return {
            "plant": plant,
            "clock": {phase: {"steps": len(each), "time_ns": sum(each)} for phase, each in lengths.items()},
            "phase": device and device["per_step"]["phase"],
            "phases": device["served"]["phases"] if device else [],
            "findings": [
                {key: finding.get(key) for key in ("rule", "title", "where", "detail")}
                for finding in report["findings"][:3]
            ],
        }


def record(out: Path, names: list[str], seconds: float) -> None:
    """Record the server with each cause, beside those that were recorded before."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    out.mkdir(parents=True, exist_ok=True)
    path = out / "serving.json"
    runs = (
        [each for each in json.loads(path.read_text())["runs"] if each["plant"] not in names] if path.exists() else []
    )
    for name in names:
        runs.append(run(name, seconds, out))
        print(name, [finding["title"] for finding in runs[-1]["findings"]], flush=True)
        written = {"machine": f"{gpu}, torch {torch.__version__}", "runs": runs}
        path.write_text(json.dumps(written, indent=1))


def page(measured: dict[str, Any]) -> str:
    """Return the page."""
    rows, off = [], []
    for each in measured["runs"]:
        first = each["findings"][0] if each["findings"] else {}
        where = first.get("where") or {}
        for phase in each["phases"]:
            clock = each["clock"][phase["phase"]]
            if phase["per_step"] is None or not clock["steps"]:
                continue
            clock_ns, step_ns = clock["time_ns"] / clock["steps"], phase["per_step"]["span_ns"]
            off.append(step_ns / clock_ns - 1)
            found = (first.get("rule", "none"), where.get("line") or "unknown")
            rows.append(
                (
                    each["plant"],
                    phase["phase"],
                    str(phase["recorded"]),
                    f"{clock_ns / 1e6:.3f}",
                    f"{step_ns / 1e6:.3f}",
                    f"{100 * off[-1]:+.1f}%",
                    *(found if phase["phase"] == each["phase"] else ("", "")),
                )
            )
    planted = [each for each in measured["runs"] if each["plant"] in EXPECTED]
    right = sum(_is_named(each) for each in planted)
    text = wrapped(f"""# Inference servers

**Question:** Does a report of an inference server name the cause that was planted, its phase and its line, and the time
of each phase? A small server (`tests/programs/server.py`) answered {CLIENTS} clients, and `overlapscope record --url
--stacks` recorded it on {measured["machine"]}. It launches each step before it reads the tokens of the one before, and
decodes from CUDA graphs. Causes are planted in its decode steps. The clock is the server's own: events on the GPU at
the beginning of each step.

The first finding has the planted cause, is about decode steps, and names the function in which the cause was planted in
**{right} of {len(planted)}** recordings. The steps of a phase are off by {100 * max(map(abs, off)):.1f}% at worst.""")
    heads = ("planted", "phase", "steps", "clock, ms", "report, ms", "off by", "first finding", "line")
    written = wrapped("`python -m benchmarks.serving` measures, and writes this page.")
    return f"{text.strip()}\n\n{table(heads, rows, words=2)}\n\n{written.strip()}\n"


def _is_named(run: dict[str, Any]) -> bool:
    """Return whether the first finding has the planted cause and its function, and is about decode steps."""
    first: dict[str, Any] = next(iter(run["findings"]), {})
    line = (first.get("where") or {}).get("line") or ""
    rule, function = EXPECTED[run["plant"]]
    return run["phase"] == "decode" and first.get("rule") == rule and line.endswith(f" in {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", action="append", choices=["none", *PLANTS], default=[])
    recording.add_argument("--seconds", type=float, default=2.0)
    writing = commands.add_parser("page")
    writing.add_argument("out", type=Path)
    writing.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.out, options.only or ["none", *PLANTS], options.seconds)
    else:
        options.page.write_text(page(json.loads((options.out / "serving.json").read_text())))


if __name__ == "__main__":
    main()
