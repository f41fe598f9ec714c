"""Runs of public programs under overlapscope and without it, with hooks that only read the clock."""

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
from typing import Literal

import msgspec

from benchmarks.public_programs_clock import Clocked

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("public_programs.toml")
PATIENCE_S = 80.0
"""Maximum length of one run."""
GRACE_S = 30.0
"""Time to end after Ctrl-C."""
CLOCK = Path(__file__).with_name("public_programs_clock.py")
SPARE_CORES = 8
"""One core in this many is left to the analysis of complete recordings."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "HF_DATASETS_CACHE")
"""Caches that start empty in each run, so that no run does work for the next."""
TAIL = 4000
"""Number of characters to keep from the end of the output of a run that failed, or was tried."""
_LOCK = threading.Lock()
"""Lock for the list of programs that wait, and for the file of measurements."""

Way = Literal["clock", "recorded", "tried"]


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
    new: bool = False
    edits: dict[str, tuple[tuple[str, str], ...]] = {}


class GpuLane(msgspec.Struct, frozen=True):
    """A GPU and the cores for the programs that run on it."""

    gpu: str
    cores: tuple[int, ...]


class ProgramList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The list."""

    measured: tuple[str, ...]
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
    clocked: Clocked


class Reported(msgspec.Struct, frozen=True):
    """The parts of a JSON report that the page shows."""

    step_source: str | None
    step_ns: int | None
    """Step without the profiler."""
    findings: tuple[str, ...]


class PublicProgramMeasurements(msgspec.Struct, frozen=True):
    """All that was measured of a program."""

    program: str
    commit: str
    machine: str
    run: PublicProgramRun
    report: Reported | None
    """None without a recording."""


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


def read(file: Path) -> dict[str, PublicProgramMeasurements]:
    """Read measurements, by the names of their programs."""
    measured = msgspec.json.decode(file.read_bytes(), type=list[PublicProgramMeasurements]) if file.exists() else []
    return {each.program: each for each in measured}


def measure(out: Path, names: Sequence[str], file: Path, until: float) -> None:
    """Run the programs that the file lacks, one at a time on each GPU, start none after `until`, and add them to it."""
    measured, here = read(file), machine()
    waiting = [name for name in names if name not in measured]
    lanes, spare = lanes_and_spare()
    pending: list[Future[None]] = []

    def finish(name: str, done: PublicProgramRun) -> None:
        commit = table().repositories[table().programs[name].repository].commit
        new = PublicProgramMeasurements(name, commit, here, done, _report(out / "work" / name))
        with _LOCK:
            measured[name] = new
            partial = file.with_suffix(".partial")
            partial.write_bytes(msgspec.json.encode([measured[name] for name in table().programs if name in measured]))
            partial.replace(file)

    with ThreadPoolExecutor(2, initializer=os.sched_setaffinity, initargs=(0, spare)) as analyses:

        def work(lane: GpuLane) -> None:
            os.sched_setaffinity(0, lane.cores)  # for this thread and the processes that it starts
            while name := next_of(waiting, lane is lanes[0]):
                if time.monotonic() > until:
                    print(f"left out for want of time: {name}", flush=True)
                    continue
                done = run(out, name, "recorded", 0, lane)
                steps = len(done.clocked.ends_ns)
                print(f"{name}: {done.wall_s:.1f} s, {steps} steps, exit code {done.exit_code}", flush=True)
                pending.append(analyses.submit(finish, name, done))

        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(work, lanes))
        for analysis in pending:
            analysis.result()


def next_of(waiting: list[str], first: bool) -> str | None:
    """Take the next program that may run on the first GPU, or on another."""
    with _LOCK:
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
    trace.unlink(missing_ok=True)
    caches = {name: str(work / f"{number}.cache" / name) for name in CACHES}
    clock = [str(CLOCK), str(times), program.step]
    leading = {
        "clock": clock,
        "recorded": [*clock, "-m", "overlapscope", "run", "-o", str(trace)],
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
    clocked = msgspec.json.decode(times.read_bytes(), type=Clocked) if times.exists() else Clocked()
    kept = text = printed.read_text(errors="replace")
    if way == "recorded" and exit_code == 0:
        kept = "\n".join(line for line in text.splitlines() if line.startswith("overlapscope:"))
    elif way == "clock" and exit_code == 0:
        kept = ""
    return PublicProgramRun(way, round(wall_s, 3), exit_code, kept[-TAIL:], clocked)


def _report(work: Path) -> Reported | None:
    """Analyze the recording."""
    traces = sorted(work.glob("*.trace*.json.gz"), key=lambda path: path.stat().st_size)
    shown = (
        _output("-m", "overlapscope", "analyze", "--no-cache", "--format", "json", str(traces[-1])) if traces else ""
    )
    if not shown:
        return None
    report = msgspec.json.decode(shown)
    trace = report["traces"][0]
    plain = ((trace["devices"] or [trace["host"]])[0] or {}).get("plain") or {}
    return Reported(
        trace.get("step_source"),
        plain.get("step_ns"),
        tuple(finding["title"] for finding in report["findings"]),
    )


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
