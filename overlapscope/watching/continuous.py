"""A short recording now and then, analysed in a process of its own."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec
from msgspec import field
from msgspec.structs import replace

from overlapscope.base import clock
from overlapscope.base.output import tell
from overlapscope.base.words import duration, parse_size, parse_span
from overlapscope.errors import UsageError
from overlapscope.history.entry import Origin
from overlapscope.recorder import cupti
from overlapscope.recorder.destination import rank_of
from overlapscope.recorder.step_times import StepTimer, median_ns
from overlapscope.watching import kept, turns
from overlapscope.watching.analyser import Analysed, Task
from overlapscope.watching.analysing import GRACE_S, analyse
from overlapscope.watching.protocol import Outcome, Request
from overlapscope.watching.sinks import Outlet, Sink, Told, sink
from overlapscope.watching.watcher import Watcher

_TIMED_STEPS: Final = 10
"""Right before a recording, while nothing is recorded."""
_REMEMBERED: Final = 100


class Settings(msgspec.Struct, frozen=True):
    """What was asked for."""

    every_ns: int
    steps: int
    keep_bytes: int
    history: str
    """Where figures are added: a file, or a directory or URL that is a file drop."""
    directory: Path
    """Where recordings are kept."""
    origin: Origin
    """`at_ns` is of the program's start."""
    sinks: tuple[Sink, ...]


def settings(
    every: str, *, steps: int, keep: str, job: str | None, history: str | os.PathLike[str] | None, log: object
) -> Settings:
    """What the arguments of `overlapscope.watch` say. Raises UsageError where they make no sense."""
    from overlapscope.history.origin import origin
    from overlapscope.history.store import default_path
    from overlapscope.ranks.files import is_url

    try:
        every_ns, keep_bytes = parse_span(every), parse_size(keep)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if not every_ns:
        raise UsageError("every is 0s; it must be more.")
    if steps < 1:
        raise UsageError(f"steps is {steps}; it must be 1 or more.")
    sinks = tuple(map(sink, log if isinstance(log, list | tuple) else [log]))
    told, place = origin(job), os.fspath(history) if history is not None else os.fspath(default_path())
    if not is_url(place):
        place = os.path.abspath(os.path.expanduser(place))
    # A drop is for other machines.
    beside = default_path() if is_url(place) or os.path.isdir(place) else Path(place)
    return Settings(
        every_ns=every_ns,
        steps=steps,
        keep_bytes=keep_bytes,
        history=place,
        directory=kept.place(beside, told.job),
        origin=told,
        sinks=sinks,
    )


class Costs(msgspec.Struct):
    """What the latest recordings of this process took, which `benchmarks/watching.py` reports."""

    stood_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Of the program's time, beyond what the steps take otherwise."""
    analysed: deque[Analysed] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class _Turn(msgspec.Struct, frozen=True):
    """One recording."""

    directory: Path
    steps: int
    """That were finished by then."""
    before: StepTimer
    """Of the steps before it."""
    around: StepTimer
    """From there to its end, as if it were one step."""


class Continuous:
    """Records at ends of steps, on the thread that makes them; all that follows is done on another.

    Of several ranks the first alone does. A recording holds its rank up, and with it all that wait for it; the others
    would cost as much again and say nearly the same. Nothing that goes wrong here reaches the program: each kind of
    failure is told once.
    """

    def __init__(self, watcher: Watcher, settings: Settings) -> None:
        self._watcher, self._settings = watcher, settings
        self._outlets = [Outlet(sink) for sink in settings.sinks]
        self._process = os.getpid()
        self._told: set[str] = set()
        self._busy = False
        self._attached = False
        """Whether a recording has left CUPTI in the program."""
        self._following: threading.Thread | None = None
        self._turns = turns.Turns(settings.every_ns, clock.now_ns())
        self.costs = Costs()
        # A recording that is under way when the program ends is written, and counts.
        atexit.register(kept.make_room, settings.directory, settings.keep_bytes)
        self.start()

    def start(self) -> None:
        """Go on where `stop` ended it: the time between does not count."""
        self._turns.start(clock.now_ns())
        self._timer = StepTimer(_TIMED_STEPS)
        self._watcher.after_step.append(self._after_step)

    def stop(self) -> None:
        """Begin no recording any more."""
        if self._after_step in self._watcher.after_step:
            self._watcher.after_step.remove(self._after_step)
            self._turns.stop(clock.now_ns())

    def finish(self) -> None:
        """`stop`, and wait a while for what becomes of the last recording."""
        self.stop()
        if self._following is not None:
            self._following.join(GRACE_S)

    def _after_step(self) -> None:
        if self._busy or not self._turns.due(clock.now_ns(), self._watcher.steps) or os.getpid() != self._process:
            return
        rank = rank_of(os.environ)
        if rank is not None and rank.number:
            self.stop()
            return
        self._timer.step(self._watcher.steps)
        if self._timer.full:
            self._ask()

    def _ask(self) -> None:
        self._turns.begin(clock.now_ns())
        before, self._timer = self._timer, StepTimer(_TIMED_STEPS)
        try:
            directory = kept.begin(self._settings.directory)
        except OSError as error:
            self._complain("directory", f"no recording is made: {error}.")
            return
        turn = _Turn(directory, self._watcher.steps, before, StepTimer(1))
        turn.around.step(turn.steps)
        self._busy = True
        # The steps before it are timed already, so nothing need be recorded but the steps themselves.
        request = Request(steps=self._settings.steps, light=True, plain_steps=0, path=str(directory / kept.TRACE))
        self._watcher.ask(request, lambda outcome: self._recorded(outcome, turn))

    def _recorded(self, outcome: Outcome, turn: _Turn) -> None:
        """On the thread that makes the steps, as a rule."""
        if outcome.path is None:
            # Nobody asked for this recording, so nobody misses it when the program ends first.
            if not outcome.ended:
                self._complain("recording", f"no recording was made: {outcome.failure}")
            kept.remove(turn.directory)
            self._busy = False
            return
        steps = self._watcher.steps
        turn.around.step(steps)
        usual_ns = _median_ns(turn.before)
        # Behind a recording that leaves CUPTI attached no step is plain.
        plain_ns = None if self._attached else usual_ns or None
        self._attached = cupti.stays_attached()
        for outlet in self._outlets:
            self._complain(outlet.name, outlet.bind())
        told = Told(self._settings.origin.job, steps, time.time_ns(), {}, turn.directory / kept.REPORT)
        # Not a daemon: a program that ends waits for it, for as long as `analyse` and `Outlet` allow.
        self._following = threading.Thread(
            target=self._follow, args=(turn, Path(outcome.path), told, usual_ns, plain_ns), name="overlapscope"
        )
        try:
            self._following.start()
        except RuntimeError as error:
            self._complain("watching", f"a recording was not analysed: {error}.")
            self._busy = False

    def _follow(self, turn: _Turn, trace: Path, told: Told, usual_ns: int, plain_ns: int | None) -> None:
        try:
            settings = self._settings
            origin = msgspec.structs.replace(settings.origin, at_ns=told.at_ns)
            done = analyse(
                Task(
                    trace=str(trace),
                    plain_step_ns=plain_ns,
                    report=str(told.report),
                    history=settings.history,
                    origin=origin,
                )
            )
            self.costs.analysed.append(done)
            kept.tidy(turn.directory)
            for failure in done.failures:
                self._complain("analysis", failure)
            if done.scalars:
                told = replace(told, scalars=done.scalars, report=told.report if done.report else None)
                for outlet in self._outlets:
                    self._complain(outlet.name, outlet.send(told))
            kept.make_room(settings.directory, settings.keep_bytes)
            self._reckon(_median_ns(turn.around) - (told.step - turn.steps) * usual_ns)
        except Exception as error:
            self._complain("watching", f"a recording was lost ({type(error).__name__}: {error}).")
        finally:
            self._busy = False

    def _reckon(self, cost_ns: int) -> None:
        """Put the next recording off by what this one took of the program's time."""
        cost_ns = max(0, cost_ns)
        self.costs.stood_ns.append(cost_ns)
        apart_ns = self._turns.pay(cost_ns)
        if apart_ns > self._settings.every_ns:
            self._complain(
                "later",
                f"a recording takes {duration(cost_ns)} of the program's time; the next one comes after "
                f"{duration(apart_ns)}, so that they take less than {turns.MOST_OF_TIME:.0%} of it.",
            )

    def _complain(self, kind: str, sentence: str | None) -> None:
        if sentence and kind not in self._told:
            self._told.add(kind)
            tell(f"overlapscope: {sentence}")


def _median_ns(timer: StepTimer) -> int:
    """By the device's clock where there is one: the host may run far ahead of it. 0 where nothing was timed."""
    timed = timer.read()
    lengths_ns = timed.device_ns or timed.host_ns
    return median_ns(lengths_ns) if lengths_ns else 0
