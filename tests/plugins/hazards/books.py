"""Made-up programs for the hazard checker's books, and what happens before what in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from overlapscope.plugins.hazards.bookkeeping import Bookkeeping, Touch, interval
from overlapscope.plugins.hazards.sync_events import new_clock
from overlapscope.recorder.program_lines import CodeLine

STREAMS, EVENTS, SLOTS = (0, 7, 8), (100, 101), (0, 4, 8)
DEVICE, HOST = 1000, 5000
HOST_KINDS = ("read-while-copied", "overwritten-while-copied", "freed-while-copied")
COPIES, FREES = ("d2h", "h2d"), ("free", "unpin")


class Step(Struct, frozen=True):
    """One thing that a made-up program does."""

    what: str
    stream: int = 0
    event: int = 0
    start: int = 0
    size: int = 4
    write: bool = False


class HappensBeforeGraph:
    """Happens-before as a graph: reachable nodes are ordered. Slow and plain."""

    def __init__(self, program: list[Step]) -> None:
        self.program = program
        self.before: list[set[int]] = []
        """For each step the steps that are certain to be over when it begins."""
        last: defaultdict[int, set[int]] = defaultdict(set)
        recorded: defaultdict[int, set[int]] = defaultdict(set)
        host: set[int] = set()
        for index, step in enumerate(program):
            self.before.append(set(host))
            if step.what in ("use", *COPIES):
                self.before[-1] = host | last[step.stream]
                last[step.stream] = self.before[-1] | {index}
            elif step.what == "record":
                recorded[step.event] = host | last[step.stream]
            elif step.what == "wait":
                last[step.stream] = last[step.stream] | recorded[step.event]
            elif step.what == "event_sync":
                host = host | recorded[step.event]
            elif step.what == "stream_sync":
                host = host | last[step.stream]
            elif step.what == "sync":
                host = host.union(*last.values())

    def host_races(self) -> set[tuple[int, int]]:
        """Return pairs of a copy and a host access in which nothing orders the second after the first."""
        return {
            (early, late)
            for late, access in enumerate(self.program)
            for early in self._copies_under_way(late)
            if access.what in ("host", "unpin")
            and meet(self.program[early], access)
            and (access.write or access.what == "unpin" or self.program[early].what == "d2h")
        }

    def _copies_under_way(self, now: int) -> Iterator[int]:
        """Return the latest of equal copies, which stands for those before it."""
        seen = set()
        freed: list[Step] = []
        for early in reversed(range(now)):
            step = self.program[early]
            key = (step.what, step.stream, step.start, step.size)
            if step.what in FREES:
                freed.append(step)
            if step.what in COPIES and key not in seen:
                seen.add(key)
                if early not in self.before[now] and not any(meet(step, gone) for gone in freed):
                    yield early

    def first_race_on_device(self) -> int | None:
        """Return the first launch that may overlap an earlier one that uses the same memory."""
        for late, b in enumerate(self.program):
            for early, a in enumerate(self.program[:late]):
                must_wait = a.what == b.what == "use" and meet(a, b) and (a.write or b.write)
                if must_wait and early not in self.before[late]:
                    return late
        return None


def meet(a: Step, b: Step) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size


class Books:
    """The real books, fed with a made-up program; a step's number is its line."""

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock or new_clock()
        self.books = Bookkeeping(self.clock, code=lambda file, line: f"step {line}")

    def run(self, program: list[Step]) -> Books:
        for number, step in enumerate(program):
            self.do(step, number)
        return self

    def do(self, step: Step, number: int) -> None:
        line = CodeLine("program.py", number)
        on_device = Touch(DEVICE, interval(DEVICE + step.start, step.size), "float32[1]")
        on_host = Touch(HOST, interval(HOST + step.start, step.size), "float32[1]")
        if step.what == "use":
            touched = ([], [on_device]) if step.write else ([on_device], [])
            self.books.launched(step.stream, touched[0], touched[1], line)
        elif step.what == "d2h":
            self.books.copy_issued("d2h", self.books.launched(step.stream, (), (), line), on_host)
        elif step.what == "h2d":
            self.books.copy_issued("h2d", self.books.launched(step.stream, (), (), line), on_host)
        elif step.what == "host":
            self.books.host_accessed_now(on_host.region, line, write=step.write)
        elif step.what == "free":
            self.books.host_freed(on_host.region)
        elif step.what == "unpin":
            self.books.host_unpinned(on_host.region, line)
        elif step.what == "record":
            self.clock.record_state(step.event, step.stream)
        elif step.what == "wait":
            self.clock.stream_wait_for_event(step.stream, step.event)
        elif step.what == "event_sync":
            self.clock.all_streams_wait_for_event(step.event)
        elif step.what == "stream_sync":
            self.clock.all_streams_wait_for_stream(step.stream)
        elif step.what == "sync":
            self.clock.sync_all_streams()

    def races(self, *kinds: str) -> set[tuple[int, int]]:
        return {(h.first.line, h.second.line) for h in self.books.hazards if h.kind in kinds}


def fail(error: Exception) -> None:
    raise AssertionError from error
