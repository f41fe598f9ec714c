"""`overlapscope run`."""

from __future__ import annotations

import argparse
import atexit
import gc
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from overlapscope.base.child import overlapscope_command, run_overlapscope
from overlapscope.base.output import Descriptor, leave
from overlapscope.base.registry import load
from overlapscope.base.words import clean
from overlapscope.commands import ProgramInterrupted, tell_defect
from overlapscope.commands._options import capture_options, less_common
from overlapscope.commands._output import check_output
from overlapscope.commands._reporter import Reporter
from overlapscope.commands._run_options import (
    add_output,
    add_program,
    add_recording,
    check_not_python,
    launcher_of,
    recording_options,
)
from overlapscope.errors import UsageError
from overlapscope.plugin import built_in
from overlapscope.recorder import devices, program, script
from overlapscope.recorder.destination import kept_name
from overlapscope.recorder.imports import require_torch
from overlapscope.recorder.program import ProgramRecording
from overlapscope.recorder.wrapping import around

_PATIENCE_S = 10
"""Time for a GPU, or for another thread that writes the trace, after a call of os._exit, in seconds."""
_ENDED_EARLY = (
    "the program was ended by a signal, os._exit or os.execv before anything was written, so there is no "
    "trace. A recording with fewer steps is complete earlier: --wait 0 --plain-steps 0."
)
_STDERR = 2
_MIN_LIMIT_BYTES = 8 << 30
"""Minimum of the size up to which traces are read, twice the default: the program's own trace may be large."""


class RunCommand:
    """Run a Python script or module as Python would, record some of its steps
    with torch.profiler, and report what keeps the GPU from computing.

    The script needs no change. A step ends with a call that the script
    repeats, such as an optimizer's step (--steps-by). The first steps are
    skipped (--wait); later ones are recorded (--active), and timed without the
    profiler before and after that. Then the report is printed, and the script
    goes on. A script without steps is recorded for a few seconds.

    Under torchrun, mpirun and srun each rank writes a file to NAME.traces:
    torchrun --nproc-per-node 8 -m overlapscope run train.py

    overlapscope prints to stderr only. The exit code is that of the script; 2
    if it could not be run, 70 if overlapscope itself failed before.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_program(parser, "run")
        rare = less_common(parser)
        add_recording(parser, rare)
        add_output(parser, rare)

    def run(self, args: argparse.Namespace) -> NoReturn:
        """Run the program, report, and raise SystemExit or ProgramInterrupted, as the program ended."""
        launcher = launcher_of(args)
        if launcher is not None:
            raise UsageError(
                f"{launcher} starts the processes to record, so it must come first: {launcher} [options] -m "
                "overlapscope run SCRIPT."
            )
        check_not_python(args)
        if args.instead:
            _run_unrecorded(args)
        run = _RecordedProgram(args)
        try:
            error = _execute(args)
        except UsageError:
            run.put_back()
            raise
        # The exception of a program that dies is the last thing on the screen, and doesn't wait for a report.
        died = error is not None and not isinstance(error, SystemExit)
        brief = died and not isinstance(error, KeyboardInterrupt)
        interrupted = isinstance(error, KeyboardInterrupt)
        others = {thread for thread in threading.enumerate() if not thread.daemon} - {threading.current_thread()}
        if others and not interrupted and not run.in_forked_child:
            # Python waits for these threads, which may be training, before it calls exit handlers.
            atexit.register(_report, run, died=died, brief=brief)
            interrupted = False
        else:
            interrupted = _report(run, died=died, brief=brief)
        exit_code = script.last_words(error)
        _end(None if interrupted else exit_code, in_forked_child=run.in_forked_child)


def _report(run: _RecordedProgram, *, died: bool, brief: bool) -> bool:
    """Report, and return whether the user interrupted it."""
    try:
        run.report(died=died, brief=brief)
    except KeyboardInterrupt:
        return True
    except Exception as error:
        # The exit code stays that of the program.
        tell_defect(error)
    return False


def _run_unrecorded(args: argparse.Namespace) -> NoReturn:
    """Run the program with what a plugin does instead of recording it."""
    require_torch()
    process = os.getpid()
    load(args.instead)()
    _end(script.last_words(_execute(args)), in_forked_child=os.getpid() != process)


def _end(exit_code: int | None, *, in_forked_child: bool) -> NoReturn:
    """Raise SystemExit or ProgramInterrupted, as the program ended."""
    if exit_code is None:
        raise ProgramInterrupted
    if in_forked_child:
        # Kineto's destructor waits for a thread that only the parent has, if a profiler has run there (torch 2.13).
        leave(exit_code)
    raise SystemExit(exit_code)


def _execute(args: argparse.Namespace) -> BaseException | None:
    if args.module:
        return script.run_module(args.script, args.arguments)
    if args.code:
        return script.run_text(args.script, "-c", args.arguments)
    if args.script == "-":
        return script.run_text(sys.stdin.buffer.read(), "-", args.arguments)
    return script.run_script(args.script, args.arguments)


class _RecordedProgram(ProgramRecording):
    """The recording of the program, with the messages about it on stderr."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Check what can be checked before the program runs. Raises UsageError and MissingPackage."""
        output = args.output or Path(f"{_name(args)}.trace.json.gz")
        # A launcher that restarts its processes after a failure continues the same run.
        force = args.force or int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0
        options = recording_options(args)
        wanted = {"overwrites": force, "stops": args.stop_after_recording, "late": args.subprocesses}
        super().__init__(output, options, **wanted)
        self._args = args
        self._children = program.child_traces(output) if args.subprocesses else None
        self._started = program.StartedProcesses()
        self._began_ns = time.time_ns()
        self._reporter = Reporter()
        self._stderr: Descriptor | None = None
        """Place of our messages, even if the program closes or replaces its stderr; None if that was closed before."""
        with suppress(OSError):
            self._stderr = Descriptor(os.dup(_STDERR))
        self._ending = False
        """True if the program has ended, so that the report follows."""
        self._asked_for: tuple[object, ...] | None = None
        """What the reporter was last asked for."""
        self._told_of: tuple[int, ...] | None = None
        """Recorded steps whose lengths were printed."""
        self._printed: set[str] = set()
        """Sentences that are not repeated."""
        self._collects = False
        """True if Python collected garbage until the program ended, and has to do so again at the very end."""
        # The program's exit handlers, which it registers later, run before this one.
        atexit.register(self._collect_last)
        require_torch()
        if args.open:
            from overlapscope.dashboard.launch import require_packages

            require_packages()
        self.prepare()
        path = self.path
        # A file that exists is kept, so only inputs matter.
        inputs = (args.script,) if os.path.isfile(args.script) else ()
        check_output(self.shown(path), force=True, inputs=inputs)
        self._place, self._force = path, force
        self._former = kept_name(path, force=force) if path.exists() else None
        """New name of an earlier run's trace, which isn't taken for this run's."""
        if self._former is not None:
            os.replace(path, self._former)
        self._captures = _capture_folders()
        if self._children is not None:
            if self.rank is None:
                program.make_room(self._children, force=force)
            program.record_all(output.absolute(), options)
        self._started.watch()
        around(os, "_exit", self._exit)
        for name in ("execv", "execve"):
            around(os, name, self._exec)
        if not self.rank:
            self._reporter.start(self._errors)
            self._ask()
        self.begin_with_torch()

    def put_back(self) -> None:
        """Restore the name of an earlier trace, since nothing was run."""
        if self._former is not None:
            os.replace(self._former, self._place)

    def report(self, *, died: bool, brief: bool) -> None:
        """End the recording, and print messages and the report.

        Args:
            died: Whether an exception ended the program.
            brief: Whether to leave out the report.
        """
        if self.in_forked_child:
            return
        with suppress(Exception):
            sys.stdout.flush()
        self._ending = True
        # The order in which Python destroys the program's objects depends on collections of garbage.
        self._collects = gc.isenabled()
        gc.disable()
        written = self._finish(died=died)
        self._tell_children()
        printed = self._reporter.close()
        if written and not self.rank:
            if printed:
                self._tell(f"`{shlex.join(['overlapscope', *self._analysis(shown=True)])}` shows the report again.")
            elif not brief:
                run_overlapscope(*self._analysis(), errors=self._errors)
            if self._args.open and not brief:
                # Ctrl-C ends the dashboard; the program has ended already.
                with suppress(KeyboardInterrupt):
                    run_overlapscope(
                        "dashboard",
                        str(self.path if self.rank is None else self.job),
                        *self._limit,
                        errors=self._errors,
                    )
            if self.rank is not None:
                job = shlex.quote(str(self.shown(self.job)))
                self._tell(f"this is rank 0; `overlapscope analyze {job}` shows all ranks.")

    def _collect_last(self) -> None:
        # If collections were allowed again, Python would make one of the youngest objects before its last of all.
        if self._collects:
            gc.collect()

    def _finish(self, *, died: bool = False) -> bool:
        """End the recording, print messages, and return whether there is a trace."""
        written = self.finish(died=died)
        self._tell_former()
        self._tell_observed()
        if self.failure is not None:
            self._tell(self.failure)
        if not self.rank:
            self._tell_outcome(written=written)
            if self.all_steps is not None:
                self._tell(self.all_steps)
            if not written and "torch" not in sys.modules:
                self._tell("nothing was recorded: the program never imported torch.")
            elif not written and self._children is None:
                self._tell("nothing was recorded.")
        return written

    def _changed(self) -> None:
        """Ask the reporter for a report as soon as there is a trace, or when the program is gone."""
        if self.rank or self.in_forked_child or self._ending:
            return
        if self._asked_for is None and self.options.active is not None and self.options.at_once:
            self._tell(
                f"a complete recording takes {self.options.needed_steps} steps; a program that makes fewer is recorded "
                "from its start."
            )
        asked_for = self.report_after_s, self.unwritten, self.traces
        if asked_for != self._asked_for:
            self._asked_for = asked_for
            self._ask()

    def _ask(self) -> None:
        after_s = self.report_after_s
        if after_s is None:
            sentences = [*([_ENDED_EARLY] if self.unwritten else []), *self._about_former()]
            self._reporter.ask(message="".join(f"overlapscope: {sentence}\n" for sentence in sentences))
            return
        if not after_s:
            self._tell_outcome(written=True)
        self._tell_former()
        self._reporter.ask(
            commands=[overlapscope_command(*self._analysis())], wait_s=None if after_s == math.inf else after_s
        )

    def _exit(self, leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        self._finish_early()
        leave(status)

    def _exec(self, replace: Callable[..., NoReturn], program: str | bytes | int, *rest: Any) -> NoReturn:
        with suppress(Exception):
            is_program = isinstance(program, int) or (os.path.isfile(program) and os.access(program, os.X_OK))
            # A program is often looked for in several folders, and a forked child is not recorded.
            if is_program and not self.in_forked_child:
                self._finish_early()
                after = "which is not recorded" if self._children is None else "which --subprocesses records"
                self._tell(f"os.execv replaces the program by another, {after}.")
        replace(program, *rest)

    def _finish_early(self) -> None:
        """Finish the recording of a program that is about to end at once.

        If that is impossible, the reporter prints its last message.
        """
        with suppress(Exception):
            if not self._driver.can_end(within_s=_PATIENCE_S):
                return
            if not devices.finish_within(_PATIENCE_S):
                self._tell(f"the GPU did not finish its work within {_PATIENCE_S} s, so the recording was not ended.")
            elif not self._finish():
                self._reporter.ask()

    def _tell_former(self) -> None:
        self._tell_once(self._about_former())

    def _about_former(self) -> list[str]:
        if self._former is not None and self._force and self._place.exists():
            # A new one replaces it.
            self._former.unlink(missing_ok=True)
            self._former = None
        return [] if self._former is None else [f"the previous trace is now {self._former.name}."]

    def _tell_outcome(self, *, written: bool) -> None:
        """Print the sentences about the recording, each once."""
        times = self.step_times
        sentences = [note for note in self.notes if note != self.failure]
        source = self.step_source
        if written and times is not None and times.recorded_ns != self._told_of:
            # Later steps, which change the figure a little, are in the sentence on all steps.
            self._told_of = times.recorded_ns
            about_steps = filter(None, [times.sentence(), None if source is None else f"Steps: {source}."])
            sentences += filter(None, [" ".join(about_steps)])
        if written and len(devices.activities(cuda=devices.cuda_is_up())) == 1:
            sentences.append(f"no GPU was used, so the report is on the host alone: {devices.why_unused()}.")
        self._tell_once(sentences)

    def _tell_once(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            if sentence not in self._printed:
                self._printed.add(sentence)
                self._tell(sentence)

    def _tell_children(self) -> None:
        started, elsewhere = self._started, self.may_be_elsewhere
        if self._children is not None:
            traces = program.written(self._children, self._began_ns)
            count = len([path for path in traces if path not in self.paths])
            job = shlex.quote(str(self.shown(self._children)))
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

    def _tell_observed(self) -> None:
        for observer in self.observers.values() if self.finished else ():
            sentence, findings = observer.report()
            self._tell(sentence)
            self._printed.update(note for note in observer.notes if note in sentence)
            for finding in findings:
                self._show(finding)

    def _analysis(self, *, shown: bool = False) -> list[str]:
        """Return the arguments of `overlapscope` that print the report, as the user would write them if `shown`."""
        traces = self.traces
        captures = [folder for folder in self._captures if next(folder.glob("*.json*"), None)]

        def named(paths: Iterable[Path]) -> Iterable[Path]:
            return map(self.shown, paths) if shown else paths

        limit = () if shown else self._limit
        return ["analyze", *map(str, named(traces)), *capture_options(named(captures)), *limit]

    @property
    def _limit(self) -> tuple[str, str]:
        """Options for reading: a trace may be larger than its events were in memory (`memory_guard`)."""
        return "--max-size", str(max(3 * self._args.max_size_bytes, _MIN_LIMIT_BYTES))

    def _tell(self, sentence: str) -> None:
        rank = self.rank
        sender = "overlapscope" if rank is None else f"overlapscope (rank {rank})"
        self._show(f"{sender}: {clean(sentence)}")

    @property
    def _errors(self) -> int | None:
        """File descriptor of the stderr that the user gave us; None if the program has closed every one."""
        if self._stderr is None:
            return None
        number = self._stderr.number
        return _STDERR if number is None and self._stderr.is_same_as(_STDERR) else number

    def _show(self, text: str) -> None:
        errors, encoding = self._errors, getattr(sys.__stderr__, "encoding", None) or "utf-8"
        with suppress(Exception):
            sys.stderr.flush()
        if errors is not None:
            with suppress(OSError):
                os.write(errors, f"{text}\n".encode(encoding, "backslashreplace"))


def _capture_folders() -> list[Path]:
    """Return the directories for recordings of the captures of CUDA graphs that variables name."""
    named = (os.environ.get(plugin.captures or "", "0") for plugin in built_in())
    return [Path(folder).absolute() for folder in named if folder not in ("", "0")]


def _name(args: argparse.Namespace) -> str:
    """Return the name of the program, after which the trace is named."""
    program: str = args.script
    if args.code or program == "-":
        return "command" if args.code else "stdin"
    if args.module:
        return program.removesuffix(".__main__").rpartition(".")[2]
    path = Path(os.path.abspath(program))
    if path.name == "__main__.py":
        path = path.parent
    return path.name if path.is_dir() else path.stem
