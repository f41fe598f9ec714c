"""Steps of a program that does not mark them: events that repeat while it starts up."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from overlapscope.base.words import did_you_mean, duration, listed
from overlapscope.errors import UsageError
from overlapscope.recorder import devices
from overlapscope.recorder.imports import when_torch_is_imported
from overlapscope.recorder.step_choice import (
    MIN_REPEATED_CALLS,
    Log,
    SourceKind,
    StepChoice,
    StepSource,
    choose,
    named,
    single,
)
from overlapscope.recorder.step_sources import OptimizerSteps, StepSources
from overlapscope.recorder.wrapping import Undo

if TYPE_CHECKING:
    from torch.optim import Optimizer


MARKS: Final = "marks"
"""Name of the program's own marks, for `steps_by`."""
_NAMES: Final = {kind.name.lower(): kind for kind in SourceKind if kind is not SourceKind.RANGE}
_AUTOMATIC: Final = tuple(_NAMES.values())
_SILENT_EVENTS: Final = 20
"""Number of other events in a row which shows that the chosen ones have stopped."""
_EVENTS_SEARCHED_ONE_BY_ONE: Final = 64
"""Number of events until which steps are looked for after each event."""
_EVENTS_BETWEEN_SEARCHES: Final = 16
"""Number of events between searches after that."""
_TRAINS_LATER_NS: Final = 30_000_000_000
"""Time for an optimizer that exists to step before anything else is taken for steps."""
_LOADING_NS: Final = 3_000_000_000
"""Time for a model to be called on the batches of a loader before anything else is taken for steps."""
_MAX_SHOWN_CALLS: Final = 5
"""Names of calls in a message."""
_LONG_NS: Final = 5_000_000_000
"""Cycles that take longer are offered, and their parts are the steps."""


class AutomaticSteps:
    """Calls `stepped` at the end of each step of the program, from `start` to `stop`, on the thread that makes them.

    Until it has `settled`, the steps of the first optimizer may be taken for those of the program, with `at_once`.
    """

    def __init__(
        self,
        stepped: Callable[[], None],
        changed: Callable[[], None],
        *,
        by: str | None,
        at_once: bool,
        without: Collection[SourceKind] = (),
    ) -> None:
        """Prepare to find steps, without watching yet.

        Args:
            stepped: Called at the end of each step.
            changed: Called when other events are chosen.
            by: Events that end steps, as in `--steps-by`; None to choose them.
            at_once: Whether the steps of the first optimizer count until steps are chosen; for whole programs.
            without: Kinds of events that are not watched.

        Raises:
            UsageError: `by` is blank.
        """
        if by is not None and not by.strip():
            raise UsageError("steps_by is empty; name what a step is, such as optimizer or forward.")
        self._stepped, self._changed, self._at_once = stepped, changed, at_once
        self._by = by
        self._kinds = _AUTOMATIC if by is None else (_NAMES[by],) if by in _NAMES else (*_AUTOMATIC, SourceKind.RANGE)
        if by in _NAMES and _NAMES[by] in (SourceKind.OPTIMIZER, SourceKind.BACKWARD):
            # Calls in between show which updates belong together.
            self._kinds = (*self._kinds, SourceKind.FORWARD, SourceKind.LOADER)
        self._kinds = tuple(kind for kind in self._kinds if kind not in without)
        self._sources = StepSources(self._happened)
        self._logs: dict[int, Log] = {}
        self._first_ns: dict[SourceKind, int] = {}
        self._choice: StepChoice | None = None
        self._thread = -1
        """Thread whose events end steps."""
        self._counted = 0
        """Number of chosen events since the last step ended."""
        self._others: Counter[StepSource] = Counter()
        """Events of other sources since the last chosen event."""
        self._trains: bool | None = None
        """True if an optimizer exists; None until that was looked up."""
        self._closed = by == MARKS
        self.settled = self._closed
        """True if the steps are chosen."""
        self._offer: str | None = None
        """Sentence on longer steps that the user may choose."""

    @property
    def choice(self) -> StepChoice | None:
        """The events that end steps; None if there are none so far."""
        return self._choice

    @property
    def label(self) -> str | None:
        """The events that end steps, in words; None if there are none so far."""
        return None if self._choice is None else self._choice.label

    @property
    def awaits_first(self) -> bool:
        """True if the first step may be under way: an optimizer exists or a model was called, but no call repeats yet.

        This looks at all objects of the program, which takes some 50 ms.
        """
        if self._closed or self._choice is not None:
            return False
        calls = Counter(event.source for log in self._logs.values() for kind in log.events.values() for event in kind)
        return max(calls.values()) < MIN_REPEATED_CALLS if calls else _optimizer_exists()

    @property
    def note(self) -> str | None:
        """A sentence on steps that were not found, or that could be chosen instead."""
        if self._choice is not None or self._by in (None, MARKS):
            return self._offer
        events = (event for log in self._logs.values() for kind in log.events.values() for event in kind)
        called = [name for name, _ in Counter(event.source.name for event in events).most_common()]
        seen = f"; the program calls {listed(called[:_MAX_SHOWN_CALLS])}" if called else ""
        hint = "" if self._by in _NAMES else did_you_mean(self._by, [*_NAMES, MARKS, *called])
        return f"--steps-by {self._by} finds no steps{hint}{seen}."

    def start(self) -> None:
        """Begin to watch the program. Imports torch."""
        if not self._closed:
            self._sources.start(self._kinds)

    def stop(self) -> None:
        """Stop watching."""
        self._closed = self.settled = True
        self._sources.stop()

    def keep(self) -> None:
        """Keep to the steps chosen so far, if there are any, whatever else the program does."""
        if self._choice is not None and not self._closed:
            self._closed = self.settled = True
            self._sources.stop(but=self._choice.kind)

    def _happened(self, source: StepSource) -> None:
        thread = threading.get_ident()
        if not self._closed and not devices.capturing():
            self._note(source, thread, time.perf_counter_ns())
        choice = self._choice
        if choice is None or thread != self._thread or not choice.counts(source):
            return
        self._counted += 1
        if self._counted >= choice.each:
            self._counted = 0
            self._stepped()

    def _note(self, source: StepSource, thread: int, now_ns: int) -> None:
        log = self._logs.setdefault(thread, Log())
        log.add(source, now_ns)
        first_ns = self._first_ns.setdefault(source.kind, now_ns)
        choice = self._choice
        if self._by is not None and self._by not in _NAMES:
            if choice is None and fnmatchcase(source.name, self._by):
                self._choose_steps(named(source, self._by), thread)
        elif choice is None or source.kind < choice.kind or (source.kind == choice.kind and not self.settled):
            if self._may_count(source.kind, log, now_ns, now_ns - first_ns):
                if choice is not None and source.kind < choice.kind:
                    self._choice, self.settled = None, False
                self._search_steps(source, log, thread, now_ns)
        elif choice.counts(source):
            self._others.clear()
        elif self._by is None and (source.kind is SourceKind.GRAPH or SourceKind.BACKWARD < choice.kind <= source.kind):
            # One model may be called after another.
            self._others[source] += 1
            if self._others[source] >= _SILENT_EVENTS:
                self._search_steps(source, log, thread, now_ns)

    def _may_count(self, kind: SourceKind, log: Log, now_ns: int, since_ns: int) -> bool:
        """Return true if the program has no better events than these, the first of which came `since_ns` ago."""
        if self._by is not None:
            return kind is _NAMES[self._by]
        better = (
            other for other in log.events if other < kind and (other <= SourceKind.BACKWARD or kind is SourceKind.GRAPH)
        )
        last_ns = max((log.events[other][-1].at_ns for other in better), default=now_ns - _TRAINS_LATER_NS)
        if kind is SourceKind.GRAPH:
            # A graph is replayed once its warm-up is over.
            replays = log.events[kind]
            return len(replays) >= _SILENT_EVENTS and replays[-_SILENT_EVENTS].at_ns > last_ns
        return now_ns - last_ns >= _TRAINS_LATER_NS and (kind is not SourceKind.LOADER or since_ns > _LOADING_NS)

    def _search_steps(self, source: StepSource, log: Log, thread: int, now_ns: int) -> None:
        """Choose steps among events of this kind, if they repeat by now."""
        sure = (
            self._by is not None or source.kind in (SourceKind.OPTIMIZER, SourceKind.GRAPH) or self._choice is not None
        )
        count = log.counts[source.kind]
        # To look takes up to a millisecond.
        due = count >= MIN_REPEATED_CALLS and (
            count <= _EVENTS_SEARCHED_ONE_BY_ONE or count % _EVENTS_BETWEEN_SEARCHES == 0
        )
        choice = choose(log, source.kind, now_ns) if due and (sure or not self._trains_later(source, now_ns)) else None
        if choice is not None:
            self._choose_steps(self._short_enough(choice, source), thread)
        elif self._choice is None and source.kind is SourceKind.OPTIMIZER and self._at_once:
            self._choice, self._thread, self._counted = single(source), thread, 0

    def _choose_steps(self, choice: StepChoice, thread: int) -> None:
        before, thread_before = self._choice, self._thread
        self._choice, self.settled = choice, True
        # The event under way is counted next.
        self._thread, self._counted = thread, (choice.begun - 1) % choice.each
        self._others.clear()
        if before is not None and (before.source, before.each, thread_before) != (choice.source, choice.each, thread):
            self._changed()

    def _short_enough(self, choice: StepChoice, source: StepSource) -> StepChoice:
        if self._by is not None or choice.cycle_ns <= _LONG_NS or choice.each == 1:
            return choice
        option = f"--steps-by {source.kind.name.lower()}"
        self._offer = f"{choice.label} take {duration(choice.cycle_ns)}; {option} makes that one step."
        return single(source)

    def _trains_later(self, source: StepSource, now_ns: int) -> bool:
        """Return true if an optimizer exists and may step soon."""
        # In a part of a program that is recorded on purpose, an older one may be left.
        if not self._at_once or now_ns - self._first_ns[source.kind] > _TRAINS_LATER_NS:
            return False
        if self._trains is None:
            self._trains = _optimizer_exists()
        return self._trains


def _optimizer_exists() -> bool:
    from torch.optim import Optimizer

    return any(issubclass(type(candidate), Optimizer) for candidate in gc.get_objects())


# -- Steps of a program that is watched rather than recorded -----------------------------------------

step_listeners: list[Callable[[], None]] = []
"""Functions to call at the end of each step that the program marks, whether it is recorded or not."""


class ProgramSteps:
    """Counts the steps of one thread, and calls `stepped` there at the end of each.

    Steps are those of the program's first optimizer, until the program marks its steps with `overlapscope.step`. If a
    program has several optimizers, as for a GAN, each steps once in a step of the program, so only the first to step
    counts as long as it exists. Steps during the capture of a CUDA graph do not count.
    """

    def __init__(
        self, stepped: Callable[[], None], *, here: bool = False, heeds: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare to count steps.

        Args:
            stepped: Function to call at the end of each step.
            here: Whether to count the steps of this thread, instead of the first thread that makes any.
            heeds: Function that returns whether a mark is the program's.
        """
        self.count = 0
        """Number of finished steps of this process."""
        self.marked = False
        """True if the program marks its steps itself."""
        self._stepped, self._heeds = stepped, heeds
        self._only = self._thread = threading.get_ident() if here else None
        self._optimizers = OptimizerSteps(self._on_optimizer)
        self._unwatch: Undo = lambda: None
        self._first: weakref.ref[Optimizer] | None = None

    def start(self) -> None:
        """Begin to count, now or as soon as torch is imported."""
        os.register_at_fork(after_in_child=self._forked)
        step_listeners.append(self._on_mark)
        when_torch_is_imported(self._watch)

    def _watch(self) -> None:
        if not self.marked:
            self._unwatch = self._optimizers.start()

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        if self._thread not in (None, threading.get_ident()):
            return
        first = None if self._first is None else self._first()
        if first is None:
            first, self._first = optimizer, weakref.ref(optimizer)
        if first is optimizer:
            self._on_step()

    def _forked(self) -> None:
        self.count = 0

    def _on_mark(self) -> None:
        if self._only not in (None, threading.get_ident()) or not self._heeds():
            return
        if not self.marked:
            self.marked = True
            self._unwatch()
            if self.count:
                # The optimizer has ended this step already.
                self._thread = threading.get_ident()
                return
        self._on_step()

    def _on_step(self) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread or "torch" not in sys.modules or devices.capturing():
            return
        self.count += 1
        self._stepped()
