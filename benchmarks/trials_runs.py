"""Trials of the programs of `tests/programs/trials`, and the same edits made by hand and timed without overlapscope."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.plain_runs import MachineVersions
from benchmarks.plain_worker import READY
from benchmarks.processes import RunFailed
from overlapscope.commands import DONE, INTERRUPTED
from overlapscope.plugins.trials.measure import StepChange, Timing, change
from overlapscope.plugins.trials.result import Trial, Tried

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "programs" / "trials"
ROUNDS = 3
"""Number of runs of the original and of the edited program, in turn."""
PATIENCE_S = 180.0
"""Time limit for the turn of one process."""
_SETTING = re.compile(r"(\S+)(?: \((.+)\))?")


class TrialScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script, as the list has it: see there."""

    about: str
    pays: tuple[str, ...]
    minutes: float
    breaks: str = ""
    options: tuple[str, ...] = ()


class ByHand(msgspec.Struct, frozen=True):
    """A program as it is and as a person edited it, in processes that take turns."""

    edits: str
    as_is_ns: tuple[int, ...]
    """Mean step of each process."""
    edited_ns: tuple[int, ...]

    @property
    def change(self) -> StepChange:
        """By how much the edits change the step."""
        return change([(Timing((a,)), Timing((b,))) for a, b in zip(self.as_is_ns, self.edited_ns, strict=True)])


class TrialMeasurements(msgspec.Struct, frozen=True):
    """All that was measured of a program."""

    program: str
    machine: MachineVersions
    trial: Trial | None
    """None where it failed."""
    by_hand: ByHand | None
    """None where no change is recommended, or where it failed."""
    failure: str = ""
    said: tuple[str, ...] = ()
    """Output of the trial."""

    @property
    def best(self) -> Tried | None:
        return None if self.trial is None or self.trial.best is None else self.trial.changes[self.trial.best]


def programs() -> dict[str, TrialScript]:
    """Return the list, in its order."""
    return msgspec.toml.decode((SCRIPTS / "programs.toml").read_bytes(), type=dict[str, TrialScript])


def edits_of(tried: Tried) -> str:
    """Edits in the scripts' own notation: `workers=6,pin`."""
    setting = f"{tried.change} ({tried.value})" if tried.value else tried.change
    settings = (_SETTING.fullmatch(text) for text in (*tried.after, setting))
    return ",".join("=".join(filter(None, match.groups())) for match in settings if match)


def machine(gpu: str | None) -> MachineVersions:
    return MachineVersions(gpu, importlib.metadata.version("torch"), platform.python_version())


def measure(name: str, steps: int) -> TrialMeasurements:
    """Try changes, timing so many steps in each run, then make the best ones by hand."""
    program = programs()[name]
    asked = ["--minutes", str(program.minutes), "--steps", str(steps), "--format", "json", *program.options]
    command = ["-m", "overlapscope", "try", *asked]
    process = subprocess.Popen(
        [sys.executable, *command, str(SCRIPTS / f"{name}.py")],
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, errors = process.communicate(timeout=60 * program.minutes + PATIENCE_S)
    except subprocess.TimeoutExpired:
        # It ends its processes, and reports the results so far.
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    lines = tuple(errors.splitlines())
    if process.returncode not in (DONE, INTERRUPTED):
        return TrialMeasurements(name, machine(None), None, None, f"exit code {process.returncode}", lines)
    trial = msgspec.json.decode(printed, type=Trial)
    measured = TrialMeasurements(name, machine(trial.device_name), trial, None, said=lines)
    if measured.best is None:
        return measured
    try:
        return msgspec.structs.replace(measured, by_hand=made_by_hand(name, trial, edits_of(measured.best)))
    except RunFailed as error:
        return msgspec.structs.replace(measured, failure=str(error))


def made_by_hand(name: str, trial: Trial, edits: str) -> ByHand:
    """Raises RunFailed."""
    timed = ["--time", str(trial.warmup_steps), str(trial.timed_steps)]
    as_is, edited = [str(SCRIPTS / f"{name}.py"), *timed], [str(SCRIPTS / "by_hand" / f"{name}.py"), *timed]
    edited += ["--edited", edits]
    step_times: dict[str, list[int]] = {as_is[0]: [], edited[0]: []}
    for script, step_ns in _in_turn([turn for number in range(ROUNDS) for turn in _round(number, as_is, edited)]):
        step_times[script].append(step_ns)
    return ByHand(edits, tuple(step_times[as_is[0]]), tuple(step_times[edited[0]]))


def _round(number: int, as_is: list[str], edited: list[str]) -> list[list[str]]:
    return [edited, as_is] if number % 2 else [as_is, edited]


def _in_turn(turns: list[list[str]]) -> Iterator[tuple[str, int]]:
    """Each script and its step. All import first, so that no import runs while another process is timed."""
    waiting = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plain_worker", "run", *turn],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for turn in turns
    ]
    try:
        for process in waiting:
            assert process.stdout is not None
            while process.stdout.readline() not in (f"{READY}\n", ""):
                pass
        for turn, process in zip(turns, waiting, strict=True):
            yield turn[0], _step_ns(process)
    finally:
        for process in waiting:
            process.kill()
            process.communicate()


def _step_ns(process: subprocess.Popen[str]) -> int:
    """Let the process run, and return its step time. Raises RunFailed."""
    try:
        output, _ = process.communicate("\n", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"nothing after {PATIENCE_S:.0f} s") from None
    match = re.search(r"^step_ns (\d+)$", output, re.MULTILINE)
    if process.returncode or match is None:
        raise RunFailed("\n".join(output.splitlines()[-12:]))
    return int(match[1])


def _environment() -> dict[str, str]:
    """With this repository's packages, whatever else is installed."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places)}
