"""Does `overlapscope bisect` find the commit that lost overlap, on an idle and on a busy machine, by order and by time?

20 repositories of 30 commits are made, each from a program with overlap. One commit loses some of it. Others change
comments, rename a function, only make steps longer, or don't run. Each repository is searched, some at a time, once for
each arm: `order-idle`, `order-busy` (beside a busy process for each core), `step-time-idle` and `step-time-busy`.

    python -m benchmarks.bisect_histories --out DIR --jobs 2                         # by order, idle and busy
    python -m benchmarks.bisect_histories --out DIR --gpu --jobs 10 --minutes 7.5    # the same on a GPU
    python -m benchmarks.bisect_histories --out DIR --gpu --jobs 2 --minutes 5 --only 1,7,12,20 step-time-idle
    python -m benchmarks.bisect_histories --page                                     # writes docs/evaluation/bisect.md

`--only 1,5` takes some histories. The minutes are shared by the arms, and a search that isn't done by then is left out.
Each arm prints a table, and writes `DIR/bisect-MACHINE-ARM.json`, which is kept in `benchmarks/measured` for the page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec import Struct, to_builtins

from benchmarks.bisect_programs import Files, Plant, programs

COMMITS = 30
_HERE = Path(__file__).parent
_OUTCOMES = ("right", "wrong", "range", "refused")


class Searched(Struct, frozen=True):
    """A search through a history."""

    number: int
    plant: str
    planted: int
    """Number of the commit that loses overlap, from 1."""
    found: int | None
    outcome: str
    """`right`, `wrong`, `range`, or `refused` where no difference between GOOD and BAD was found."""
    seconds: float
    judged: int
    skipped: int
    load: float
    """Load average of the last minute, for each core."""
    said: str
    """Last line on stderr, where the outcome isn't right."""


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Bench", "-c", "user.email=bench@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_history(folder: Path, files: Files, plant: Plant, number: int) -> list[str]:
    """Make a repository of 30 commits, and return their numbers and where the plant is, as the last entry."""
    chosen, now, commits = random.Random(number), dict(files), []
    planted = chosen.randint(6, 25)
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    broken = ""
    for commit in range(1, COMMITS + 1):
        what = "begin"
        if broken:
            now["train.py"], what, broken = now["train.py"].removeprefix(broken), "mend", ""
        elif commit == planted:
            now[plant.file], what = now[plant.file].replace(plant.old, plant.new), plant.name
            assert now[plant.file] != files[plant.file]
        elif commit > 1:
            what = chosen.choices(("comment", "slower", "rename", "break"), (6, 3, 1, 2))[0]
            if what == "break" and commit + 1 not in (planted, COMMITS + 1):
                broken = f"import no_such_module_{commit}\n"
                now["train.py"] = broken + now["train.py"]
            elif what == "slower":
                now["train.py"] = re.sub(r"(?<=PAUSE_MS = )\d+", lambda m: str(int(m[0]) + 1), now["train.py"])
            elif what == "rename":
                one, other = sorted(("train_step", "one_step"), key=lambda name: name not in now["train.py"])
                now["train.py"] = now["train.py"].replace(one, other)
            else:
                now["train.py"] = f"# Note {commit}.\n" + now["train.py"]
        now["NOTES"] = f"{commit}\n"
        for name, text in now.items():
            (folder / name).write_text(text)
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", what)
        commits.append(_git(folder, "rev-parse", "HEAD"))
    return [*commits, str(planted)]


def search(folder: Path, files: Files, plant: Plant, number: int, by: str, until: float) -> Searched | None:
    """Make a history and search it; None if that takes too long."""
    repository, result = folder / "repository", folder / "result.json"
    *commits, planted = write_history(repository, files, plant, number)
    command = [sys.executable, "-m", "overlapscope", "bisect", "--by", by, "--format", "json", "-o", str(result)]
    command += [commits[0], commits[-1], "--", "python", "train.py"]
    paths = [str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = os.environ | {"OVERLAPSCOPE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(paths)}
    variables.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, cwd=repository, env=variables, stdin=subprocess.DEVNULL, stderr=errors)
        try:
            process.wait(max(0.0, until - began))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return None
    seconds = time.monotonic() - began
    found = json.loads(result.read_bytes()) if process.returncode in (0, 1) and result.exists() else None
    first = commits.index(found["first"]["id"]) + 1 if found and found["first"] else None
    outcome = "refused" if found is None else "range" if first is None else "wrong"
    if first == int(planted):
        outcome = "right"
    judged = found["judged"] if found else []
    skipped = sum(each["verdict"] == "skipped" for each in judged)
    said = "" if outcome == "right" else ((folder / "stderr").read_text().splitlines() or [""])[-1]
    load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    return Searched(
        number, plant.name, int(planted), first, outcome, round(seconds, 1), len(judged), skipped, load, said
    )


def page(folder: Path) -> str:
    """Return the page about the results in a folder."""
    results = {
        path.stem.removeprefix("bisect-"): msgspec.json.decode(path.read_bytes(), type=list[Searched])
        for path in sorted(folder.glob("bisect-*.json"))
    }
    summary = [
        f"| machine, by, other processes | histories | {' | '.join(_OUTCOMES)} | s | load |",
        "|---|" + "---:|" * 7,
    ]
    for kind, rows in results.items():
        counts = [sum(row.outcome == outcome for row in rows) for outcome in _OUTCOMES]
        means = f"{fmean(row.seconds for row in rows):.0f} | {fmean(row.load for row in rows):.1f}"
        machine, arm = kind.split("-", 1)
        summary.append(
            f"| {machine}, {', '.join(arm.rsplit('-', 1))} | {len(rows)} | {' | '.join(map(str, counts))} | {means} |"
        )
    plants = {(kind.partition("-")[0], row.plant): None for kind, rows in results.items() for row in rows}
    table = [f"| lost | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for machine, plant in plants:
        found = [
            next((row.outcome for row in rows if row.plant == plant and kind.startswith(machine)), "")
            for kind, rows in results.items()
        ]
        table.append(f"| {machine}: {plant} | {' | '.join(found)} |")
    ordered = [row.outcome for kind, rows in results.items() if "-order-" in kind for row in rows]
    filled = {"right": ordered.count("right"), "ordered": len(ordered)}
    text = (_HERE / "bisect_page.md").read_text()
    return text.format(summary="\n".join(summary), rows="\n".join(table), **filled)


def run(arm: str, args: argparse.Namespace, until: float) -> None:
    """Search histories by order or by time, on an idle or a busy machine, and write and print the results."""
    by, _, others = arm.rpartition("-")
    files, plants = programs(args.gpu)
    only = [int(number) for number in args.only.split(",") if number] or range(1, len(plants) + 1)
    kind = f"{'gpu' if args.gpu else 'cpu'}-{arm}"
    rows: list[Searched] = []
    args.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bisect-")))
        for _ in range(os.cpu_count() or 1 if others == "busy" else 0):
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(burner.wait)
            stack.callback(burner.kill)

        def one(number: int) -> None:
            if time.monotonic() > until:
                return
            done = search(work / str(number), files, plants[number - 1], number, by, until)
            if done is not None:
                rows.append(done)
                (args.out / f"bisect-{kind}.json").write_text(json.dumps(to_builtins(rows), indent=1) + "\n")
                print(json.dumps(to_builtins(done)), flush=True)

        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(one, only))
    print(f"\n| history of | {kind} | found | planted | judged | skipped | s | load |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        figures = row.found, row.planted, row.judged, row.skipped, round(row.seconds), row.load
        print(f"| {row.plant} | {row.outcome} | {' | '.join(map(str, figures))} |")
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in _OUTCOMES}
    print(f"\n{kind}: {counts} of {len(rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arms", nargs="*", default=["order-idle", "order-busy"])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.page:
        (_HERE.parent / "docs" / "evaluation" / "bisect.md").write_text(page(_HERE / "measured"))
        return
    began = time.monotonic()
    for number, arm in enumerate(args.arms, 1):
        run(arm, args, began + 60 * args.minutes * number / len(args.arms))


if __name__ == "__main__":
    main()
