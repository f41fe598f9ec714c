"""Causes that are planted in a small inference server, recorded by `overlapscope record --url`.

    python -m benchmarks.serving record OUT [--only NAME]... [--seconds 2]
    python -m benchmarks.serving page OUT docs/evaluation/serving.md

`record` starts `tests/programs/server.py` for each cause, keeps it busy, and records it. `OUT/serving.json` has the
steps of each phase by the server's own clock beside those of the report, and the report's first findings.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
from tests.programs.server import PLANTS

ROOT = Path(__file__).parents[1]
CLIENTS, TOKENS = 5, 24
EXPECTED = {
    "none": "",
    "tokenizer": "python",
    "sampler": "host-sync",
    "offload": "pageable-memory",
    "graph": "dispatch",
    "gc": "gc-pause",
}
"""Rule of the first finding of each plant."""


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


def run(plant: str, seconds: float) -> dict[str, Any]:
    """Record a server with a planted cause."""
    with tempfile.TemporaryDirectory() as name:
        folder, clock = Path(name) / "traces", Path(name) / "clock"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.programs.server", "--traces", str(folder), "--clock", str(clock)]
        command += ["--plant", plant] if plant != "none" else []
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with asked(url):
                urlopen(
                    Request(f"{url}/v1/completions", data=b'{"prompt": [1], "max_tokens": 200}', method="POST")
                ).read()
                recording = [
                    "record",
                    "--url",
                    url,
                    "--traces",
                    str(folder),
                    "--seconds",
                    str(seconds),
                    "--format",
                    "json",
                ]
                command = [sys.executable, "-m", "overlapscope", *recording]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            server.kill()
        report = json.loads(done.stdout)
        steps = [(end - begin, phase) for (begin, phase), (end, _) in pairwise(json.loads(clock.read_text()))]
        (result,) = report["traces"]
        phases = [device["served"]["phases"] for device in result["devices"]]
        return {
            "plant": plant,
            "clock": {phase: [ns for ns, of in steps if of == phase] for phase in ("prefill", "decode")},
            "phases": phases[0] if phases else [],
            "findings": [
                {key: finding.get(key) for key in ("rule", "title", "where", "detail")}
                for finding in report["findings"][:3]
            ],
        }


def record(out: Path, names: list[str], seconds: float) -> None:
    """Record the server with each cause."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in names:
        runs.append(run(name, seconds))
        print(name, [finding["title"] for finding in runs[-1]["findings"]], flush=True)
        written = {"machine": f"{gpu}, torch {torch.__version__}", "runs": runs}
        (out / "serving.json").write_text(json.dumps(written, indent=1))


def page(measured: dict[str, Any]) -> str:
    """Return the page."""
    rows = []
    for each in measured["runs"]:
        for phase in each["phases"]:
            if phase["per_step"] is None:
                continue
            clocked, step_ns = statistics.fmean(each["clock"][phase["phase"]] or [0]), phase["per_step"]["span_ns"]
            first = each["findings"][0] if each["findings"] else {}
            where = first.get("where") or {}
            rows.append(
                (
                    each["plant"],
                    phase["phase"],
                    str(phase["recorded"]),
                    f"{clocked / 1e6:.3f}",
                    f"{step_ns / 1e6:.3f}",
                    f"{100 * (step_ns / clocked - 1):+.1f}%" if clocked else "",
                    first.get("rule", "none"),
                    str(where.get("line") or where.get("op") or where.get("call") or "unknown"),
                )
            )
    text = wrapped(f"""# Inference servers

**Question:** Does a report of an inference server name the cause that was planted, and the time of each phase? A small
server (`tests/programs/server.py`) answered {CLIENTS} clients, and `overlapscope record --url` recorded it on
{measured["machine"]}. The clock is the server's own, over the same steps. First findings are about the phase that takes
most time. This server prefills requests one by one, without graphs, so that phase is often prefill, whatever is
planted. It records no stacks, so no line is named.""")
    usual = {each["findings"][0]["rule"] for each in measured["runs"] if each["plant"] == "none" and each["findings"]}
    right = sum(
        bool(each["findings"]) and each["findings"][0]["rule"] == EXPECTED[each["plant"]] not in usual
        for each in measured["runs"]
        if each["plant"] != "none"
    )
    planted = sum(each["plant"] != "none" for each in measured["runs"])
    worst = max(abs(float(row[5].rstrip("%"))) for row in rows)
    text += wrapped(f"""

The first finding has the planted cause, and another one without it, in **{right} of {planted}** recordings. The steps
of a phase are off by
{worst:.1f}% at worst.""")
    heads = ("planted", "phase", "steps", "clock, ms", "report, ms", "off by", "first finding", "place")
    written = wrapped("`python -m benchmarks.serving` measures, and writes this page.")
    return f"{text.strip()}\n\n{table(heads, rows, words=2)}\n\n{written.strip()}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", action="append", choices=EXPECTED, default=[])
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
