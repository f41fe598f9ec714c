"""Runs of a recorder in made-up programs with random events.

The profiler, the files, the sampler and the clock are made up. Everything that decides is real.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from overlapscope.base import clock
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import all_threads, devices, recorder, session, step_times, trace_file
from overlapscope.recorder.options import Options
from overlapscope.recorder.recorder import WindowRecorder
from overlapscope.recorder.states import Event

_NS_PER_MS = 1_000_000


class World:
    """The program and its surroundings, which change before each event."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.did: list[str] = []
        """Actions of the recorder since the last event."""
        self.sessions = 0
        self.running = 0
        """Number of sessions whose profiler runs."""
        self.now_ns = 777 * clock.NS_PER_S
        self._events = self.frames = 0
        self._troubled = self.random.random() < 0.3
        self._length_ms = self.random.choice([1, 20, 300])
        self._lengths = [self.random.choice([1, 1, 1, 8]) for _ in range(self.random.randint(1, 12))]
        self._becomes_faster = self.random.random() < 0.2
        self.change()

    def chance(self, share: float) -> bool:
        """Return true in this share of all cases, and seldom in a program without troubles."""
        return self.random.random() < (share if self._troubled else share / 20)

    def change(self) -> None:
        """Let time pass, and other things change."""
        self._events += 1
        factor = self._lengths[self._events % len(self._lengths)]
        factor *= max(1, 40 - self._events) if self._becomes_faster else 1
        self.now_ns += self._length_ms * factor * _NS_PER_MS + self.random.randrange(_NS_PER_MS)
        if self.random.random() < 0.01:
            self._length_ms = self.random.choice([1, 20, 300])
        self.others_profiler = self.chance(0.05)
        self.ranges_are_left, self.ranges_are_new = not self.chance(0.1), not self.chance(0.1)
        self.too_much = self.chance(0.03) or self.random.random() < 0.01
        self.left_ops_are_over, self.settled = not self.chance(0.1), not self.chance(0.05)
        self.start_fails, self.stop_fails, self.write_fails = (self.chance(0.05) for _ in range(3))
        self.gpu_times, self.empty = not self.chance(0.4), self.chance(0.4)
        self.workers = [1] if self.chance(0.3) else []
        self.frames += self.chance(0.05)

    def profiler_running(self) -> bool:
        """Return whether a profiler runs."""
        return self.running > 0 or self.others_profiler


class _Anything:
    """An annotation, the marks of a session, and so on."""

    name = "annotation"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def __exit__(self, *_: object) -> None:
        pass


def run(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield the events of a run, each with the recorder's actions, and its state after them."""
    world = World(seed)
    random, did = world.random, world.did

    class MadeUpSession(session.Session):
        def _start(self) -> None:
            world.sessions += 1
            self._number = world.sessions
            window = self.window
            starts = "fail" if world.start_fails else "start"
            did.append(f"{starts} {self._number} for {window.first}-{window.judged}-{window.end}")
            if world.start_fails:
                raise RuntimeError
            world.running += 1
            self._profiler: Any = _Anything()

        def _undo_start(self) -> None:
            pass

        def begin_step(self, step: int) -> None:
            self._begun_ns, self._annotation = clock.now_ns(), _Anything()

        def _stop_profiler(self) -> None:
            did.append(f"stop {self._number}")
            world.running -= 1
            self._stopped = True
            if world.stop_fails:
                raise RuntimeError
            self._has_gpu_times = world.gpu_times

        def _note_on_other_threads(self) -> None:
            return None

        def abandon(self) -> None:
            if not self._stopped:
                did.append(f"abandon {self._number}")
                world.running -= 1

        @property
        def empty(self) -> bool:
            return world.empty

        def export(self, name: str) -> None:
            did.append(f"export {self._number}")

    class MadeUpGuard(_Anything):
        def __init__(self, *_: object, **__: object) -> None:
            pass

        @property
        def exceeded_bytes(self) -> int | None:
            return 5_000_000_000 if world.too_much else None

    class MadeUpRanges:
        def look(self) -> None:
            did.append("look")

        def look_whether_new(self) -> bool:
            self.look()
            return world.ranges_are_new

        @property
        def are_left(self) -> bool:
            return world.ranges_are_left

    class MadeUpSampler:
        def __init__(self) -> None:
            self.activity: str | None = None
            self.note = None
            self.over = self.slows = False
            self._left = random.randint(2, 6)

        def step(self) -> None:
            did.append("sample")
            self._left -= 1
            if not self._left:
                self.activity, self.over = "activity", True

        def stop(self) -> None:
            did.append("sample no more")
            self.over = True

        finish = stop

    def write(export: Callable[[str], object], path: Path, **_: object) -> trace_file.Written:
        export("")
        return put(path, "write")

    def amend(written: trace_file.Written, *_: object) -> trace_file.Written:
        return put(written.path, "amend")

    def put(path: Path, action: str) -> trace_file.Written:
        if world.write_fails:
            raise RecordingFailed("The disk is full.")
        did.append(f"{action} {path.name}")
        return trace_file.Written(path, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "Session", MadeUpSession)
        patch.setattr(recorder, "OpenRanges", MadeUpRanges)
        patch.setattr(recorder, "HostSampler", MadeUpSampler)
        patch.setattr(recorder, "compilations", lambda: world.frames)
        for module in (recorder, step_times):
            patch.setattr(module, "profiler_running", world.profiler_running)
        patch.setattr(step_times, "_event", lambda: None)
        patch.setattr(devices, "synchronize", lambda: None)
        patch.setattr(multiprocessing, "active_children", lambda: world.workers)
        patch.setattr(all_threads, "is_supported", lambda: True)
        patch.setattr(all_threads, "left_ops_are_over", lambda: world.left_ops_are_over)
        patch.setattr(session, "MemoryGuard", MadeUpGuard)
        patch.setattr(session, "origin", lambda: None)
        patch.setattr(trace_file.Metadata, "json", lambda _: "")
        patch.setattr(trace_file, "write", write)
        patch.setattr(trace_file, "amend", amend)
        patch.setattr(clock, "now_ns", lambda: world.now_ns)
        options = _options(random)
        bounded = options.at_once and options.active is not None and random.random() < 0.6
        subject = WindowRecorder(
            lambda: Path("x.trace.json"),
            options,
            since_ns=0,
            bounded=bounded,
            on_too_much=lambda: None,
            steps_are_settled=lambda: world.settled,
            records_again=bounded and random.random() < 0.8,
        )
        for event in _events(random, options, bounded=bounded):
            world.change()
            if event == "move":
                did.append(f"moved: {subject.move()}")
            elif event in get_args(Event) and (event != "step" or subject.wants_steps):
                try:
                    subject.handle(event)  # type: ignore[arg-type]  # It is one of the type's.
                except RecordingFailed:
                    did.append("raise")
            yield event, ", ".join(did), subject.state.name
            did.clear()


def _options(random: Random) -> Options:
    options: dict[str, Any] = {"plain_steps": random.choice([0, 2, 3, 10]), "warmup": random.choice([0, 1, 2])}
    match random.choice(["steps", "steps", "steps", "whole", "clock", "range", "slow", "several"]):
        case "steps":
            options |= {"wait": random.choice([0, 0, 1, 2, 5, 20]), "active": random.choice([1, 2, 5])}
        case "whole":
            options |= {"wait": random.choice([0, 3])}
        case "clock":
            options |= {"delay_s": 1, "duration_s": 2}
        case "range":
            options |= {"delay_s": 0}
        case "slow":
            options |= {"slow_step": 2, "warmup": 1}
    return Options(**options)


def _events(random: Random, options: Options, *, bounded: bool) -> Iterator[str]:
    yield random.choice(["start", "start", "put_off"])
    for _ in range(random.choice([0, 0, 4])):
        yield random.choice(["close", "open", "memory"]) if bounded else "cuda"
    steps, odd = random.choice([0, 1, 3, 8, 20, 40, 80, 400]), random.choice([0, 0.02, 0.1])
    for _ in range(steps):
        if options.by_clock and random.random() < 0.3:
            yield random.choice(["open", "close"])
        elif random.random() < odd:
            yield random.choice(["cuda", "memory", "move"])
        else:
            yield "step"
    if random.random() < 0.1:
        yield random.choice(["abandon", "discard"])
    yield "end"
