"""Trials of public programs by `overlapscope try`, and the same edits made by hand, timed by the clock's hooks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.processes import RunFailed
from benchmarks.public_programs_runs import (
    GpuLane,
    PublicProgram,
    PublicProgramRun,
    folder_of,
    lanes_and_spare,
    machine,
    next_of,
    run,
    table,
)
from benchmarks.trials_runs import ROUNDS, ByHand, edits_of
from overlapscope.plugins.trials.protocol import Setting
from overlapscope.plugins.trials.result import Trial, Tried

PATIENCE_S = 45.0
"""Time for a trial to end after the end of its runs."""
BY_HAND_S = 150.0
"""Time limit of a process without overlapscope, which may compile."""
SHORTEST = 0.6
"""Least part of its time with which a trial is begun."""
FEWEST_STEPS = 10
AS_IS, EDITED = 20, 21
"""Numbers of the runs; the edited ones share their caches, so only the first one compiles."""


class TriedProgram(msgspec.Struct, frozen=True):
    """Result of a trial of a public program."""

    program: str
    commit: str
    machine: str
    exit_code: int | None
    """None where it had to be killed."""
    wall_s: float
    said: tuple[str, ...]
    """Last lines of its output."""
    trial: Trial | None = None
    """None where it failed."""
    by_hand: ByHand | None = None
    failure: str = ""
    """Reason for no edit by hand, though the list has edits."""

    @property
    def best(self) -> Tried | None:
        """The recommended set."""
        return None if self.trial is None or self.trial.best is None else self.trial.changes[self.trial.best]

    @property
    def compared(self) -> Tried | None:
        """The set that was made by hand."""
        if self.trial is None or self.by_hand is None:
            return None
        return next(change for change in self.trial.changes if edits_of(change) == self.by_hand.edits)


def measure(out: Path, names: Sequence[str], minutes: float, until: float) -> None:
    """Try these programs, one at a time on each GPU, and end by `until`; existing results are kept."""
    (out / "tried").mkdir(parents=True, exist_ok=True)
    lanes, _ = lanes_and_spare()
    waiting, here = list(names), machine()

    def work(lane: GpuLane) -> None:
        os.sched_setaffinity(0, lane.cores)  # for this thread and the processes that it starts
        while name := next_of(waiting, lane is lanes[0]):
            file = out / "tried" / f"{name}.json"
            for tried in _measured(out, name, lane, minutes, until, file, here):
                partial = file.with_suffix(".partial")
                partial.write_bytes(msgspec.json.encode(tried) + b"\n")
                partial.replace(file)
                print(f"{name}: {_summary(tried)}", flush=True)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(work, lanes))


def _measured(
    out: Path, name: str, lane: GpuLane, minutes: float, until: float, file: Path, here: str
) -> Iterator[TriedProgram]:
    """Yield new results of a program: its trial, then the same with the edit by hand."""
    if file.exists():
        tried = msgspec.json.decode(file.read_bytes(), type=TriedProgram)
    elif (minutes_left := (until - time.monotonic() - PATIENCE_S) / 60) < SHORTEST * minutes:
        print(f"left out for want of time: {name}", flush=True)
        return
    else:
        yield (tried := _tried(out, name, lane, min(minutes, minutes_left), here))
    trial, edits = tried.trial, table().programs[name].edits
    if trial is None or not edits or tried.by_hand or tried.failure:
        return
    chosen = choice(trial, edits)
    if chosen is None:
        yield msgspec.structs.replace(tried, failure="No set that was tried has edits in the list.")
        return
    try:
        yield msgspec.structs.replace(tried, by_hand=_made_by_hand(out, name, lane, trial, chosen, until))
    except RunFailed as error:
        yield msgspec.structs.replace(tried, failure=str(error))
    except TimeoutError:
        print(f"by hand, left out for want of time: {name}", flush=True)


def _tried(out: Path, name: str, lane: GpuLane, minutes: float, here: str) -> TriedProgram:
    result = out / "work" / name / "try.json"
    result.unlink(missing_ok=True)
    options = ("--minutes", f"{minutes:.2f}", "--format", "json", "--force", "-o", str(result))
    done = run(out, name, "tried", 0, lane, trying=options, patience_s=60 * minutes + PATIENCE_S)
    trial = msgspec.json.decode(result.read_bytes(), type=Trial) if result.exists() else None
    commit = table().repositories[table().programs[name].repository].commit
    said = tuple(done.printed.splitlines())
    return TriedProgram(name, commit, here, done.exit_code, done.wall_s, said, trial)


# -- by hand --------------------------------------------------------------------------------------


def choice(trial: Trial, edits: dict[str, tuple[tuple[str, str], ...]]) -> Tried | None:
    """Return the recommended set, or else that with the shortest step, if all of its changes have edits."""
    able = [
        change
        for change in trial.changes
        if change.measured_pct is not None and all(map(edits.get, _keys(change, edits)))
    ]
    best = None if trial.best is None else trial.changes[trial.best]
    if best in able:
        return best
    return min(able, key=lambda change: (change.runs < 2, change.measured_pct), default=None)


def settings_of(tried: Tried) -> list[Setting]:
    """Return all changes of a set, with their values."""
    texts = [text.removesuffix(")").partition(" (") for text in tried.after]
    return [*(Setting(change, value) for change, _, value in texts), Setting(tried.change, tried.value)]


def _keys(tried: Tried, edits: dict[str, tuple[tuple[str, str], ...]]) -> list[str]:
    """Return the name in the list of each change: with its value, if that has edits of its own."""
    return [change.text if change.text in edits else change.change for change in settings_of(tried)]


def edited(text: str, tried: Tried, edits: dict[str, tuple[tuple[str, str], ...]]) -> str:
    """Return the script with these changes. Raises RunFailed."""
    for setting, key in zip(settings_of(tried), _keys(tried, edits), strict=True):
        for before, after in edits[key]:
            if before not in text:
                raise RunFailed(f"The script does not have {before!r}.")
            text = text.replace(before, after.replace("{value}", setting.value))
    return text


def _made_by_hand(out: Path, name: str, lane: GpuLane, trial: Trial, chosen: Tried, until: float) -> ByHand:
    """Time the original and the edited script in processes that take turns. Raises RunFailed and TimeoutError."""
    program = table().programs[name]
    script = folder_of(out, program) / program.command[0]
    copy = script.with_name(f"{script.stem}_edited.py")
    copy.write_text(edited(script.read_text(encoding="utf-8"), chosen, program.edits), encoding="utf-8")
    new = str(Path(program.command[0]).with_name(copy.name))
    programs = {AS_IS: program, EDITED: msgspec.structs.replace(program, command=(new, *program.command[1:]))}
    steps_ns: dict[int, list[int]] = {AS_IS: [], EDITED: []}
    for turn in range(ROUNDS):
        for number in (EDITED, AS_IS) if turn % 2 else (AS_IS, EDITED):
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            patience_s = min(BY_HAND_S, left_s)
            done = run(out, name, "clock", number, lane, edited=programs[number], patience_s=patience_s)
            if done.exit_code is None and patience_s < BY_HAND_S:
                raise TimeoutError
            steps_ns[number].append(_step_ns(done, programs[number], trial))
    return ByHand(edits_of(chosen), tuple(steps_ns[AS_IS]), tuple(steps_ns[EDITED]))


def _step_ns(done: PublicProgramRun, program: PublicProgram, trial: Trial) -> int:
    """Return the mean of the steps that the trial timed. Raises RunFailed."""
    ends = done.clocked.ends_ns[:: program.each][trial.warmup_steps :][: trial.timed_steps + 1]
    if len(ends) <= FEWEST_STEPS:
        raise RunFailed(f"Exit code {done.exit_code}, {len(done.clocked.ends_ns)} steps. {done.printed[-1000:]}")
    return (ends[-1] - ends[0]) // (len(ends) - 1)


def _summary(tried: TriedProgram) -> str:
    """Return a line for the person who waits."""
    if tried.trial is None:
        return "\n".join([f"exit code {tried.exit_code} after {tried.wall_s:.0f} s", *tried.said[-12:]])
    best, compared = tried.best, tried.compared
    parts = [f"{tried.wall_s:.0f} s", "nothing" if best is None else f"{edits_of(best)} {best.measured_pct:+.1f}%"]
    if compared and tried.by_hand:
        parts.append(f"{tried.by_hand.edits} {compared.measured_pct:+.1f}%, by hand {tried.by_hand.change.pct:+.1f}%")
    return ", ".join([*parts, tried.failure])
