"""`overlapscope run`."""

from __future__ import annotations

import argparse
import atexit
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from overlapscope.base.output import show, tell
from overlapscope.base.words import clean
from overlapscope.commands import ProgramInterrupted, tell_defect
from overlapscope.commands._options import parse_size
from overlapscope.commands._output import check_output
from overlapscope.commands._program import add_program, check_not_python, launcher_of
from overlapscope.commands._reporter import Reporter
from overlapscope.errors import UsageError
from overlapscope.recorder import children, devices, race_words, script
from overlapscope.recorder.destination import kept_name, rank_by_launcher, window_path
from overlapscope.recorder.program import ProgramRecording, State
from overlapscope.recorder.recording import DEFAULT_MAX_SIZE_BYTES, DEFAULT_PLAIN_STEPS
from overlapscope.recorder.schedule import Schedule
from overlapscope.recorder.torch_import import require_torch
from overlapscope.recorder.wrapping import around

_COMMAND = "import sys; sys.path.append(sys.argv.pop(1)); from overlapscope.commands import main; sys.exit(main())"
_ROOT = Path(__file__).parents[2]
_DEFAULTS = Schedule(wait=3, warmup=2, active=5, plain_steps=DEFAULT_PLAIN_STEPS)
_PAUSE_S = 20
"""Time after the last recording of the program's own profiler until the report is printed, in seconds."""
_ENDED_EARLY = (
    "the program was ended from outside or with os._exit before anything was written, so there is no trace. A "
    "recording with fewer steps is complete earlier: --wait 0 --plain-steps 0."
)
_LEAST_LIMIT_BYTES = 8 << 30
"""What is read at least, twice what `overlapscope analyze` reads unasked: the program's own trace may be large."""


class RunCommand:
    """Run a Python script or module as Python would, record a trace with
    torch.profiler, and report whether copies overlap with compute.

    The script needs no change. A step is what it does again and again: updates
    by its optimizers, calls of backward(), of a model or of a loader (--steps-
    by), or what it marks with overlapscope.step(). The first steps are skipped
    (--wait), the next are recorded but not judged, so that the pipeline is
    full (--warmup), and the next are recorded and judged (--active). Then the
    trace is written, the report is printed, and the script goes on without the
    profiler. Since the profiler slows programs down, steps are also timed
    without it right before and right after the recording (--plain-steps). A
    script that makes too few steps for all this is recorded from its start. Of
    one without steps, a few seconds are recorded (--whole: all of it). A
    script that uses torch.profiler itself keeps it, and its traces are
    analysed, side by side if there are several.

    Under torchrun, mpirun and srun each rank writes a file to NAME.traces:
    torchrun --nproc-per-node 8 -m overlapscope run train.py

    overlapscope prints to stderr only. The exit code is that of the script; 2
    if it could not be run, 70 if overlapscope itself failed before.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_program(parser, "run")
        _add_recording(parser)
        _add_output(parser)

    def run(self, args: argparse.Namespace) -> NoReturn:
        """Ends as the program does: by SystemExit or ProgramInterrupted."""
        launcher = launcher_of(args)
        if launcher is not None:
            raise UsageError(
                f"{launcher} starts the processes to record, so it must come first: {launcher} [options] -m "
                "overlapscope run SCRIPT."
            )
        check_not_python(args)
        if args.on_demand:
            _run_watched(args)
        run = _Run(args)
        try:
            ending = _execute(args)
        except UsageError:
            run.put_back()
            raise
        interrupted = ending.interrupted
        others = {thread for thread in threading.enumerate() if not thread.daemon} - {threading.current_thread()}
        if others and not interrupted and not run.in_forked_child:
            # Python waits for these threads, which may be training, before it calls what is registered here.
            atexit.register(_report, run, ending)
        else:
            interrupted |= _report(run, ending)
        _end(ending, interrupted=interrupted, in_forked_child=run.in_forked_child)


def _report(run: _Run, ending: script.Ending) -> bool:
    """Report, and say whether the user interrupted that."""
    try:
        run.report(died=ending.died)
    except KeyboardInterrupt:
        return True
    except Exception as error:
        # The program has ended, and how it did is for it to say.
        tell_defect(error)
    return False


def _run_watched(args: argparse.Namespace) -> NoReturn:
    """Run the program, which nothing records until somebody asks for it."""
    from overlapscope.watching.api import watch

    require_torch()
    process = os.getpid()
    place = rank_by_launcher(os.environ)
    if place is None or not place.number:
        tell(f"overlapscope: `overlapscope record {process}` records this program while it goes on.")
    watch()
    ending = _execute(args)
    _end(ending, interrupted=ending.interrupted, in_forked_child=os.getpid() != process)


def _end(ending: script.Ending, *, interrupted: bool, in_forked_child: bool) -> NoReturn:
    """End as the program did: by SystemExit or ProgramInterrupted."""
    if interrupted:
        raise ProgramInterrupted
    if in_forked_child:
        script.leave_forked_child(ending.exit_code)
    raise SystemExit(ending.exit_code)


_WINDOWS: tuple[tuple[str, type, Any, str], ...] = (
    ("--wait N", int, None, f"steps to skip at the start (default: {_DEFAULTS.wait})"),
    ("--warmup N", int, None, f"steps to record next, but not judge (default: {_DEFAULTS.warmup})"),
    ("--active N", int, None, f"steps to record and judge (default: {_DEFAULTS.active})"),
    (
        "--plain-steps N",
        int,
        None,
        "steps to time without the profiler, right before and right after the recording (default: "
        f"{DEFAULT_PLAIN_STEPS}, for which a program needs {_DEFAULTS.needed_steps} steps in all; 0 for none, for "
        f"which {replace(_DEFAULTS, plain_steps=0).needed_steps} suffice)",
    ),
    (
        "--steps-by NAME",
        str,
        None,
        "what a step is: marks (of the program only), optimizer, backward, forward, loader or graph; or the name of a "
        "call or a range, such as Adam.step, ResNet.forward or 'iteration*' (default: the first of these there is)",
    ),
    ("--delay S", float, None, "record by time instead of by steps: start after S seconds"),
    ("--duration S", float, None, "stop S seconds after the start (default: at the end)"),
    (
        "--capture-range NAME",
        str,
        None,
        "record while the program is in this range (record_function or torch.cuda.nvtx); with cudaProfilerApi, "
        "from cudaProfilerStart to cudaProfilerStop",
    ),
    (
        "--slow-step X",
        float,
        None,
        "record all the time, and keep the first step that takes more than X times the median",
    ),
    ("--repeat N", int, 1, "record N times, to NAME-1, NAME-2, ..."),
)
"""When to record: each option with what stands for its value, its type, its default and its help."""
_CONTENTS = {
    "--whole": "record the whole program, not only some steps or seconds",
    "--stacks": "record Python stacks (slows the host down)",
    "--shapes": "record input shapes",
    "--memory": "record memory allocations",
    "--light": "do not record PyTorch ops, which slows the host down less",
    "--check-hazards": "look for data races between host and GPU, and between streams",
    "--ignore-own-profiler": "ignore the profilers that the program starts",
}
"""What to record, by yes or no."""


def _add_recording(parser: argparse.ArgumentParser) -> None:
    """When to record, and what."""
    for spelled, kind, default, said in _WINDOWS:
        flag, metavar = spelled.split()
        parser.add_argument(flag, dest=_dest(spelled), metavar=metavar, type=kind, default=default, help=said)
    for flag, said in _CONTENTS.items():
        parser.add_argument(flag, action="store_true", help=said)
    parser.add_argument(
        "--max-size",
        dest="max_size_bytes",
        metavar="SIZE",
        type=parse_size,
        default=DEFAULT_MAX_SIZE_BYTES,
        help="end the recording when its events take this much memory; writing the trace briefly takes several "
        "times as much (default: 1GiB; Linux only)",
    )


def _dest(spelled: str) -> str:
    """Return the name of an option of `_WINDOWS`. That of a length in seconds ends in its unit."""
    flag, metavar = spelled.split()
    return flag.strip("-").replace("-", "_") + ("_s" if metavar == "S" else "")


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Where to, and what else to do."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="trace file (default: NAME.trace.json.gz, after the script); {rank}, {pid}, {time} and {host} are "
        "filled in",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the trace if it exists")
    parser.add_argument(
        "--stop-after-recording",
        action="store_true",
        help="end the script, as sys.exit() does, when all steps are recorded and timed",
    )
    parser.add_argument(
        "--subprocesses",
        action="store_true",
        help="also record the Python processes that the script starts, if they mark steps or use a GPU, to NAME.traces",
    )
    parser.add_argument(
        "--on-demand",
        action="store_true",
        help="record nothing until `overlapscope record PID` asks for it; all other recording options are ignored",
    )
    parser.add_argument("--open", action="store_true", help="open the trace in a browser afterwards, until Ctrl-C")


def _execute(args: argparse.Namespace) -> script.Ending:
    if args.module:
        return script.run_module(args.script, args.arguments)
    if args.code:
        return script.run_text(args.script, "-c", args.arguments)
    if args.script == "-":
        return script.run_text(sys.stdin.buffer.read(), "-", args.arguments)
    return script.run_script(args.script, args.arguments)


_OPTIONS = (
    *("wait", "warmup", "active", "plain_steps", "delay_s", "duration_s", "capture_range", "slow_step", "repeat"),
    "steps_by",
    *("stacks", "shapes", "memory", "light", "max_size_bytes", "check_hazards", "ignore_own_profiler"),
)
"""Those of the command line that are `Recording`'s, too."""


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """`Recording`'s options."""
    options = {name: getattr(args, name) for name in _OPTIONS}
    by_steps = all(options[name] is None for name in ("delay_s", "duration_s", "capture_range"))
    if args.whole:
        for spelled, *_ in _WINDOWS[:-1]:
            if getattr(args, _dest(spelled)) is not None:
                raise UsageError(
                    f"--whole and {spelled.split()[0]} both choose what is recorded; use only one of them."
                )
        return options | {"wait": 0, "warmup": 0, "plain_steps": 0}
    defaults = {
        "wait": _DEFAULTS.wait if by_steps else 0,
        "warmup": _DEFAULTS.warmup,
        "active": _DEFAULTS.active if by_steps and args.slow_step is None else None,
        "plain_steps": _DEFAULTS.plain_steps,
    }
    return options | {name: value for name, value in defaults.items() if options[name] is None}


class _FormerTraces:
    """Traces that were there. While the program runs they have another name: nobody is to take one for its own."""

    def __init__(self, paths: list[Path], *, force: bool) -> None:
        """Of `paths`, absolute, those that are there. They keep that name, unless `force` says to replace them."""
        self._force = force
        self._moved = {path: kept_name(path, force=force) for path in paths if path.exists()}
        for path, kept in self._moved.items():
            os.replace(path, kept)

    def put_back(self) -> None:
        """Give them their names again."""
        for path, kept in self._moved.items():
            os.replace(kept, path)

    def left(self) -> list[Path]:
        """Those that are kept, by their new names. The others are removed, if the program has left new ones."""
        replaced = [path for path in self._moved if self._force and path.exists()]
        for path in replaced:
            self._moved.pop(path).unlink(missing_ok=True)
        return list(self._moved.values())


class _Run:
    """The recording around the program, and what is said about it. To the person, not to the program: on stderr."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Finds out what can be found out before the program runs. Raises UsageError and MissingPackage."""
        asked = args.output or Path(f"{_name(args)}.trace.json.gz")
        # A launcher that starts its processes again after a failure means to go on.
        force = args.force or int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0
        options = _options(args)
        self._args = args
        self._recording = ProgramRecording(
            asked,
            self._tell,
            self._changed,
            overwrites=force,
            stops=args.stop_after_recording,
            late=args.subprocesses,
            **options,
        )
        self._children = children.traces(asked) if args.subprocesses else None
        self._started = children.Started()
        self._began_ns = time.time_ns()
        self._process = os.getpid()
        self._reporter = Reporter()
        self._ending = False
        """The program has ended, and the report follows here."""
        self._asked_for: tuple[State, tuple[Path, ...]] | None = None
        self._told: set[str] = set()
        """Sentences that are not repeated."""
        self._schedule = Schedule(**{name: options[name] for name in Schedule.__dataclass_fields__})
        require_torch()
        if args.open:
            from overlapscope.dashboard.launch import require_packages

            require_packages()
        self._recording.prepare()
        self._former = _FormerTraces(self._paths(force=force), force=force)
        if self._children is not None:
            if self._recording.rank is None:
                children.make_room(self._children, force=force)
            children.record_all(asked.absolute(), options)
        self._started.watch()
        around(os, "_exit", self._exit)
        if not self._recording.rank:
            self._reporter.start()
            self._ask(State.NONE)
        self._recording.begin_with_torch()

    def _paths(self, *, force: bool) -> list[Path]:
        """The files that will be written. Raises UsageError where one cannot, or must not without `force`."""
        args, path = self._args, self._recording.path
        paths = [path] if args.repeat == 1 else [window_path(path, number + 1) for number in range(args.repeat)]
        inputs = () if args.module or args.code else (args.script,)
        for path in paths:
            # One that is there is kept, unless it is an input.
            check_output(self._recording.shown(path), force=True, inputs=inputs)
        return paths

    @property
    def in_forked_child(self) -> bool:
        """Whether this is a child of the program that has come to the program's end, too."""
        return os.getpid() != self._process

    def put_back(self) -> None:
        """Nothing was run: former traces stay where they were."""
        self._former.put_back()

    def report(self, *, died: bool) -> None:
        """End the recording, and say what became of it."""
        if self.in_forked_child:
            return
        with suppress(Exception):
            sys.stdout.flush()
        self._ending = True
        recording = self._recording
        written = self._finish(died=died)
        self._tell_children()
        printed = self._reporter.close()
        if written and not recording.rank:
            if printed:
                self._tell(f"`{shlex.join(['overlapscope', *self._analysis(shown=True)])}` shows the report again.")
            else:
                apart(*self._analysis())
            if self._args.open:
                # Ctrl-C ends the dashboard; the program has ended already.
                with suppress(KeyboardInterrupt):
                    apart("dashboard", str(recording.path if recording.rank is None else recording.job), *self._limit)
            if recording.rank is not None:
                job = shlex.quote(str(recording.shown(recording.job)))
                self._tell(f"this is rank 0; `overlapscope analyze {job}` shows all ranks.")

    def _finish(self, *, died: bool = False) -> bool:
        """Whether there is a trace."""
        recording = self._recording
        written = recording.finish(died=died)
        self._tell_former()
        self._tell_hazards()
        if recording.failure is not None:
            self._tell(recording.failure)
        if not recording.rank:
            self._tell_outcome(written=written)
            if not written and "torch" not in sys.modules:
                self._tell("nothing was recorded: the program never imported torch.")
            elif not written and self._children is None:
                self._tell("nothing was recorded.")
        return written

    def _changed(self) -> None:
        """Have the report printed as soon as there is one to print, or when the program is gone."""
        recording = self._recording
        if recording.rank or self.in_forked_child or self._ending:
            return
        schedule = self._schedule
        if self._asked_for is None and schedule.active is not None and schedule.at_once and schedule.repeat == 1:
            self._tell(
                f"a complete recording takes {schedule.needed_steps} steps; a program that makes fewer is recorded "
                "from its start."
            )
        asked_for = recording.state, recording.traces
        if asked_for == self._asked_for:
            return
        self._asked_for = asked_for
        self._ask(recording.state)

    def _ask(self, state: State) -> None:
        if state is State.COMPLETE:
            self._tell_outcome(written=True)
        if state in (State.NONE, State.UNDER_WAY):
            sentences = [*([_ENDED_EARLY] if state is State.UNDER_WAY else []), *self._of_former()]
            self._reporter.ask(message="".join(f"overlapscope: {sentence}\n" for sentence in sentences))
        else:
            self._tell_former()
            wait_s = {State.COMPLETE: 0, State.PROGRAMS: _PAUSE_S}.get(state)
            self._reporter.ask(commands=[command(*self._analysis())], wait_s=wait_s)

    def _exit(self, leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        """Finish the recording before `os._exit`. Where that cannot be, the reporter says what is left."""
        if self._recording.can_end:
            with suppress(Exception):
                if not self._finish():
                    self._reporter.ask()
        leave(status)

    def _tell_former(self) -> None:
        self._tell_once(self._of_former())

    def _of_former(self) -> list[str]:
        return [f"the previous trace is now {kept.name}." for kept in self._former.left()]

    def _tell_outcome(self, *, written: bool) -> None:
        """Say what there is to say of the recording, each sentence once."""
        times = self._recording.step_times
        said = [note for note in self._recording.notes if note != self._recording.failure]
        source = self._recording.step_source
        if written and times is not None:
            steps = None if source is None else f"Steps: {source}."
            said += [" ".join(filter(None, [times.sentence(), steps]))] if times.sentence() else filter(None, [steps])
        if written and len(devices.activities(cuda=devices.cuda_is_up())) == 1:
            said.append(f"no GPU was used, so the report is on the host alone: {devices.why_unused()}.")
        self._tell_once(said)

    def _tell_once(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            if sentence not in self._told:
                self._told.add(sentence)
                self._tell(sentence)

    def _tell_children(self) -> None:
        started, elsewhere = self._started, self._recording.may_be_elsewhere
        if self._children is not None:
            written = children.written(self._children, self._began_ns)
            count = len([path for path in written if path not in self._recording.paths])
            job = shlex.quote(str(self._recording.shown(self._children)))
            if count:
                analyze = f"`overlapscope analyze {job}` shows them"
                self._tell(f"processes that the program started wrote traces ({count}); {analyze}.")
            elif started.count or not started.forked:
                self._tell("none of the processes that the program started marked a step or used a GPU.")
        elif started.count and elsewhere:
            self._tell(
                f"the program started Python processes ({started.count}), which were not recorded; --subprocesses "
                "records those that mark steps or use a GPU."
            )
        if started.forked and (elsewhere or self._children is not None):
            self._tell(
                f"the program forked processes ({started.forked}) after it had imported torch. Those cannot be "
                "recorded; with multiprocessing's start method spawn, --subprocesses records them."
            )

    def _tell_hazards(self) -> None:
        if self._args.check_hazards and self._recording.finished:
            from overlapscope.recorder.hazards import describe

            hazards = self._recording.hazards
            if not devices.cuda_is_up():
                self._tell("data races were not checked, because the program used no GPU.")
            else:
                self._tell(race_words.said(len(hazards)))
            for hazard in hazards:
                self._show(describe(hazard))

    def _analysis(self, *, shown: bool = False) -> list[str]:
        """Return the arguments of overlapscope that print the report, as the user would write them if `shown`."""
        traces = self._recording.traces
        return [
            "analyze",
            *(str(self._recording.shown(path) if shown else path) for path in traces),
            *(() if shown else self._limit),
        ]

    @property
    def _limit(self) -> tuple[str, str]:
        """Options for reading: a trace may be larger than what it took in memory (`memory_guard`)."""
        return "--max-size", str(max(3 * self._args.max_size_bytes, _LEAST_LIMIT_BYTES))

    def _tell(self, sentence: str) -> None:
        rank = self._recording.rank
        who = "overlapscope" if rank is None else f"overlapscope (rank {rank})"
        self._show(f"{who}: {clean(sentence)}")

    def _show(self, text: str) -> None:
        # The program may have put anything in the place of stderr, or closed it.
        with suppress(Exception):
            show(text, sys.__stderr__)


def apart(*arguments: str) -> None:
    """A command of overlapscope in a process of its own, with its output on stderr.

    The program may have left anything in this one: threads, another directory, modules named like ours, little memory.
    """
    with suppress(OSError, ValueError):
        subprocess.run(command(*arguments), stdin=subprocess.DEVNULL, stdout=sys.__stderr__, check=False)


def command(*arguments: str) -> list[str]:
    """Return the command line of a command of overlapscope, with this Python and this overlapscope."""
    return [sys.executable, "-P", "-c", _COMMAND, str(_ROOT), *arguments]


def _name(args: argparse.Namespace) -> str:
    """What the trace is named after."""
    program: str = args.script
    if args.code or program == "-":
        return "command" if args.code else "stdin"
    if args.module:
        return program.removesuffix(".__main__").rpartition(".")[2]
    path = Path(os.path.abspath(program))
    if path.name == "__main__.py":
        path = path.parent
    return path.name if path.is_dir() else path.stem
