"""Runs of public programs: as they are, with hooks that only read the clock, and under overlapscope."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("public_programs.toml")
PATIENCE_S = 60.0
"""Maximum length of one run."""
GRACE_S = 30.0
"""Time to end after Ctrl-C."""
CLOCK = Path(__file__).with_name("public_programs_clock.py")
ORDER: tuple[Way, ...] = ("clock", "recorded", "clock")
"""Runs of each program, in turn."""
FIRST_ROUND = 2
"""Number of these runs that all programs get before any program gets the rest."""
SPARE_CORES = 8
"""One core in this many is left to the analysis of complete recordings."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "HF_DATASETS_CACHE")
"""Caches that start empty in each run, so that no run does work for the next."""
TAIL = 4000
"""Number of characters to keep from the end of the output of a run that failed, or ran under overlapscope."""

_PLAIN_STEPS = (
    "import sys, json, overlapscope; timed = overlapscope.load(sys.argv[1], cache=False).plain_steps; "
    "print(json.dumps([*timed.before.host_ns, *timed.after.host_ns]))"
)
_TAKING = threading.Lock()

Way = Literal["plain", "clock", "recorded", "tried"]


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public repository: the commit, and the paths to fetch."""

    commit: str
    paths: tuple[str, ...]


class PublicProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the list: see there."""

    repository: str
    kind: str
    folder: str
    command: tuple[str, ...]
    step: str
    data: tuple[dict[str, str | int], ...] = ()
    path: str = ""
    each: int = 1
    environment: dict[str, str] = {}
    first_gpu: bool = False
    edits: dict[str, tuple[tuple[str, str], ...]] = {}


class GpuLane(msgspec.Struct, frozen=True):
    """A GPU and the cores for the programs that run on it."""

    gpu: str
    cores: tuple[int, ...]


class ProgramList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The list."""

    tried: tuple[str, ...]
    repositories: dict[str, Repository]
    programs: dict[str, PublicProgram]


class PublicProgramRun(msgspec.Struct, frozen=True):
    """One run of a program."""

    way: Way
    wall_s: float
    exit_code: int | None
    """None where it was ended for taking too long."""
    printed: str
    ends_ns: tuple[int, ...] = ()
    """When its steps ended, by the clock's hooks."""


class PublicProgramMeasurements(msgspec.Struct, frozen=True):
    """All that was measured of a program."""

    program: str
    commit: str
    machine: str
    runs: tuple[PublicProgramRun, ...]
    report: Any = None
    """The parts of the recording's JSON report that the page shows; None without a recording."""
    trace_bytes: int = 0
    plain_ns: tuple[int, ...] = ()
    """Steps that the recorder timed while nothing was recorded."""

    def of(self, way: Way) -> list[PublicProgramRun]:
        """Return the runs of this kind."""
        return [run for run in self.runs if run.way == way]


def table() -> ProgramList:
    """Read the list."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=ProgramList)


def sources(out: Path, repository: str) -> Path:
    """Return the folder of a repository's files."""
    return out / "sources" / repository.replace("/", "+")


def folder_of(out: Path, program: PublicProgram) -> Path:
    """Working folder of a program."""
    return (sources(out, program.repository) / program.folder).resolve()


def fetch(out: Path, clones: str) -> None:
    """Take the files of each repository at its commit, from clones that are there or are made."""
    for name, repository in table().repositories.items():
        target = sources(out, name)
        if target.exists():
            continue
        owner, _, project = name.partition("/")
        clone = Path(clones.format(owner=owner, name=project)) if clones else out / "clones" / name.replace("/", "+")
        if not clones and not clone.exists():
            address = f"https://github.com/{name}"
            subprocess.run(["git", "clone", "--quiet", "--bare", "--filter=blob:none", address, str(clone)], check=True)
        git = clone / ".git" if (clone / ".git").exists() else clone
        wanted = [f":(glob){path}" if "*" in path else path for path in repository.paths]
        archive = subprocess.run(
            ["git", f"--git-dir={git}", "archive", repository.commit, "--", *wanted], check=True, stdout=subprocess.PIPE
        )
        target.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)


def make_data(out: Path, names: Sequence[str]) -> None:
    """Make the data of these programs, several repositories at a time."""
    script = "import json, sys; from pathlib import Path; from benchmarks.public_programs_data import make\n"
    script += "[make(wanted, Path(sys.argv[1])) for wanted in json.loads(sys.argv[2])]"

    programs = table().programs

    def of(repository: str) -> None:
        for program in (programs[name] for name in names if programs[name].repository == repository):
            folder = folder_of(out, program)
            command = [sys.executable, "-c", script, str(folder), msgspec.json.encode(program.data).decode()]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=_environment(program, folder)
            )
            if done.returncode:
                print(f"{repository}: {done.stderr[-600:]}", flush=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(of, {programs[name].repository for name in names}))


def measure(out: Path, names: Sequence[str], order: Sequence[Way], until: float) -> None:
    """Run the programs that were not measured before, one at a time on each GPU, and start none after `until`."""
    target = out / "measured"
    target.mkdir(parents=True, exist_ok=True)
    runs: dict[str, tuple[PublicProgramRun, ...]] = {
        name: () for name in names if not (target / f"{name}.json").exists()
    }
    lanes, spare = lanes_and_spare()
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(2, initializer=os.sched_setaffinity, initargs=(0, spare)) as analyses:
        for first, ways in ((0, order[:FIRST_ROUND]), (FIRST_ROUND, order[FIRST_ROUND:])):
            waiting = list(runs if ways else ())

            def work(
                lane: GpuLane, waiting: list[str] = waiting, ways: Sequence[Way] = ways, first: int = first
            ) -> None:
                os.sched_setaffinity(0, lane.cores)  # for this thread and the processes that it starts
                while name := next_of(waiting, lane is lanes[0]):
                    if time.monotonic() > until:
                        print(f"left out for want of time: {name}", flush=True)
                        continue
                    new = tuple(run(out, name, way, first + i, lane) for i, way in enumerate(ways))
                    shown = (f"{row.way} {row.wall_s:.1f} s ({row.exit_code})" for row in new)
                    print(f"{name}: {', '.join(shown)}", flush=True)
                    runs[name] += new
                    pending.append(analyses.submit(finish, out, name, runs[name]))

            with ThreadPoolExecutor(len(lanes)) as pool:
                list(pool.map(work, lanes))
        for analysis in pending:
            analysis.result()


def next_of(waiting: list[str], first: bool) -> str | None:
    """Take the next program that may run on the first GPU, or on another."""
    with _TAKING:
        name = next((name for name in waiting if first or not table().programs[name].first_gpu), None)
        if name:
            waiting.remove(name)
        return name


def lanes_and_spare() -> tuple[list[GpuLane], tuple[int, ...]]:
    """Share the cores among the GPUs, and return those left to the analysis; without a GPU there is a single lane."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    count = int(_output("-c", "import torch; print(torch.cuda.device_count())"))
    gpus = [str(gpu) for gpu in range(count)] or [""]
    each = (len(cores) - len(cores) // SPARE_CORES) // len(gpus)
    lanes = [GpuLane(gpu, cores[i * each : (i + 1) * each]) for i, gpu in enumerate(gpus)]
    return lanes, cores[each * len(gpus) :] or cores


def run(
    out: Path,
    name: str,
    way: Way,
    number: int,
    lane: GpuLane,
    *,
    edited: PublicProgram | None = None,
    trying: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> PublicProgramRun:
    """Run a program once, or the edited one in its place; `trying` are options of `overlapscope try`."""
    program = edited or table().programs[name]
    folder = folder_of(out, program)
    work = out / "work" / name
    work.mkdir(parents=True, exist_ok=True)
    times, trace, printed = work / f"{number}.json", work / "recorded.trace.json.gz", work / f"{number}.txt"
    times.unlink(missing_ok=True)
    caches = {name: str(work / f"{number}.cache" / name) for name in CACHES}
    leading = {
        "plain": [],
        "clock": [str(CLOCK), str(times), program.step],
        "recorded": ["-m", "overlapscope", "run", "--force", "-o", str(trace)],
        "tried": ["-m", "overlapscope", "try", *trying],
    }[way]
    for wanted in program.data:
        if wanted["make"] == "empty_folder":  # files of an earlier run, such as a checkpoint, change the next run
            shutil.rmtree(folder / str(wanted["at"]), ignore_errors=True)
            (folder / str(wanted["at"])).mkdir(parents=True)
    command = [sys.executable, *leading, *_arguments(program, folder)]
    with printed.open("wb") as file:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(program, folder) | caches | {"CUDA_VISIBLE_DEVICES": lane.gpu},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code: int | None = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            exit_code = None
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        wall_s = time.monotonic() - began
    ends = msgspec.json.decode(times.read_bytes(), type=tuple[int, ...]) if times.exists() else ()
    kept = printed.read_text(errors="replace")[-TAIL:] if exit_code != 0 or way in ("recorded", "tried") else ""
    return PublicProgramRun(way, round(wall_s, 3), exit_code, kept, ends)


def finish(out: Path, name: str, runs: tuple[PublicProgramRun, ...]) -> None:
    """Analyze the recording, and write the measurements."""
    traces = sorted((out / "work" / name).glob("*.trace*.json.gz"), key=lambda path: path.stat().st_size)
    commit = table().repositories[table().programs[name].repository].commit
    measured = PublicProgramMeasurements(name, commit, machine(), runs)
    if traces:
        shown = _output("-m", "overlapscope", "analyze", "--no-cache", "--format", "json", str(traces[-1]))
        timed = _output("-c", _PLAIN_STEPS, str(traces[-1]))
        measured = msgspec.structs.replace(
            measured,
            report=_shown(msgspec.json.decode(shown)) if shown else None,
            trace_bytes=traces[-1].stat().st_size,
            plain_ns=msgspec.json.decode(timed, type=tuple[int, ...]) if timed else (),
        )
    (out / "measured" / f"{name}.json").write_bytes(msgspec.json.encode(measured))


def _shown(report: Any) -> Any:
    """Return the parts of a JSON report that the page shows."""
    traces = [
        {
            "step_source": trace.get("step_source"),
            "devices": [
                {"steps": len(device["steps"]), "plain_step_ns": _plain_step_ns(device)} for device in trace["devices"]
            ],
        }
        for trace in report["traces"]
    ]
    return {"traces": traces, "findings": [{"title": finding["title"]} for finding in report["findings"]]}


def _plain_step_ns(device: Any) -> int | None:
    return device["plain"]["step_ns"] if device.get("plain") else None


def _output(*command: str) -> str:
    """Return what Python prints, with this repository's packages."""
    command = (sys.executable, *command)
    return subprocess.run(command, check=False, env=_environment(None, ROOT), capture_output=True, text=True).stdout


def _arguments(program: PublicProgram, folder: Path) -> list[str]:
    """With patterns of file names filled in."""
    parts = [sorted(map(str, folder.glob(part))) if "*" in part else [part] for part in program.command]
    return [argument for part in parts for argument in part]


def _environment(program: PublicProgram | None, folder: Path) -> dict[str, str]:
    """Return environment variables: this repository's packages, offline, and the program's additions."""
    places = [str((folder / program.path).resolve())] if program and program.path else []
    places += [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "disabled", "MPLBACKEND": "Agg"}
    program_environment = program.environment if program else {}
    return os.environ | offline | program_environment | {"PYTHONPATH": os.pathsep.join(places)}


def machine() -> str:
    """Return the GPU and the versions."""
    asked = "import platform, torch; gpu = torch.cuda.is_available() and torch.cuda.get_device_name(); "
    asked += "print(gpu or 'a CPU', 'torch ' + torch.__version__, 'Python ' + platform.python_version(), sep=', ')"
    return _output("-c", asked).strip()
