"""Sampling of this process between two marks of steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from overlapscope.base import clock
from overlapscope.base.extras import install_line
from overlapscope.recorder.sampling.facts import FactTaker
from overlapscope.recorder.sampling.outside import OutsideSampler
from overlapscope.recorder.sampling.stacks import host_stacks

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity, SystemFacts

LONGEST_STEP_NS = 2 * clock.NS_PER_S
"""Longest step of a program that is sampled. Longer ones would take longer than users wait for."""
_LEAST_STEPS = 2
_LEAST_FACTS_NS = clock.NS_PER_S
"""Minimum time to take facts. Quotas of CPU time are allotted for periods of 100 ms."""
_LEAST_NS = 2 * clock.NS_PER_S
"""Minimum time to sample."""
_START_LIMIT_NS = 5 * clock.NS_PER_S
"""Maximum time from the start of the process that samples until it is ready."""
_END_LIMIT_NS = 5 * clock.NS_PER_S
"""Maximum time from the last sample to the result."""
_TAIL = 10
"""Minimum ratio of the sampled steps to what follows them until the program ends, since that is sampled as well."""
_PATIENCE_S = 1.0
"""Maximum time for which a program's end waits for the result."""
_NO_STACKS = "No Python stacks were sampled: {}."
_MISSING = "py-spy is not installed (`{}`)"
_FORBIDDEN = "py-spy may not read the program. In a container, the capability SYS_PTRACE allows it"
_FAILED = "py-spy failed ({})"


class HostSampler:
    """Takes facts of some steps of this process, and then samples some more.

    All calls come from the thread that marks the steps. The program waits for nothing, except at its end in `finish`.
    """

    def __init__(self) -> None:
        self.activity: HostActivity | None = None
        """The result; None until it is complete, and if there is none."""
        self.note: str | None = None
        """Sentence for the user on what could not be sampled."""
        self.over = False
        """True if nothing more is to come."""
        self._outside: OutsideSampler | None = None
        self._thread = threading.get_native_id()
        self._fact_taker = FactTaker(self._thread)
        self._facts: SystemFacts | None = None
        self._began_ns = self._marked_ns = self._steps = 0
        """Beginning and end of the steps under way, and their number."""
        self._at_mark: Callable[[int], None] = self._start_facts
        """Function to call at the next mark with its time in nanoseconds."""

    @property
    def slows(self) -> bool:
        """True while more is under way than to take facts, which costs nothing between two marks."""
        return self._at_mark not in (self._start_facts, self._take_facts)

    def step(self) -> None:
        """Mark the end of a step."""
        if not self.over:
            self._at_mark(clock.now_ns())

    def finish(self) -> None:
        """End the sampling with the program. Steps since the start count if they are enough, and nothing came after."""
        sampled_ns, since_ns = self._marked_ns - self._began_ns, clock.now_ns() - self._marked_ns
        if self._at_mark == self._sample and self._steps >= _LEAST_STEPS and since_ns * _TAIL < sampled_ns:
            self._end()
        if self._at_mark == self._collect:
            self._take_result(_PATIENCE_S)
        self.stop()

    def stop(self) -> None:
        """End the sampling, and drop samples that were not returned."""
        self.over = True
        self._fact_taker.abandon()
        if self._outside is not None:
            self._outside.stop()
        self._outside = None

    def _start_facts(self, _: int) -> None:
        self._fact_taker.start()
        self._begin(self._take_facts)

    def _take_facts(self, now_ns: int) -> None:
        if self._count(now_ns, _LEAST_FACTS_NS):
            self._facts = self._fact_taker.stop(self._steps, now_ns - self._began_ns)
            with suppress(OSError, ValueError, AttributeError):
                self._outside = OutsideSampler(self._thread)
            self._at_mark = self._await_sampler

    def _await_sampler(self, now_ns: int) -> None:
        outside = self._outside
        if outside is not None and not outside.ready:
            if not outside.ended and now_ns - self._marked_ns < _START_LIMIT_NS:
                return
            outside.stop()
            outside = self._outside = None
        self._begin(self._sample)
        if outside is not None:
            outside.begin()

    def _sample(self, now_ns: int) -> None:
        if self._count(now_ns, _LEAST_NS):
            self._end()

    def _collect(self, now_ns: int) -> None:
        self._take_result(0)
        if now_ns - self._marked_ns > _END_LIMIT_NS:
            self.stop()

    def _begin(self, at_mark: Callable[[int], None]) -> None:
        self._steps, self._began_ns, self._at_mark = 0, clock.now_ns(), at_mark

    def _count(self, now_ns: int, least_ns: int) -> bool:
        """Count a step, and return whether there are enough."""
        self._steps, self._marked_ns = self._steps + 1, now_ns
        return self._steps >= _LEAST_STEPS and now_ns - self._began_ns >= least_ns

    def _end(self) -> None:
        """Sample no more."""
        self._at_mark = self._collect
        if self._outside is None:
            self._build({})
        else:
            self._outside.end()

    def _take_result(self, within_s: float) -> None:
        """Take the result of a process that has ended."""
        if self._outside is None:
            return
        content = self._outside.result(within_s)
        if content is not None:
            with suppress(KeyError, TypeError, ValueError):
                self._build(content)
        elif self._outside.ended:
            self.stop()

    def _build(self, content: dict[str, Any]) -> None:
        """Build the result from the process's samples."""
        from overlapscope.trace.host_activity import HostActivity, ThreadStates

        assert self._facts is not None
        frames, stacks = host_stacks(content.get("all", ()), content.get("running", ()))
        if self._outside is not None and not self._outside.has_stacks:
            self.note = _NO_STACKS.format(_why(content["problem"]))
        self.activity = HostActivity(
            thread=self._thread,
            steps=self._steps,
            span_ns=self._marked_ns - self._began_ns,
            interval_ns=clock.NS_PER_S // content["stacks_per_s"] if stacks else 0,
            sampler=f"py-spy {content['version']}" if stacks else "",
            frames=frames,
            stacks=stacks,
            states=ThreadStates(*content.get("states", ())),
            files=content.get("files", {}),
            facts=self._facts,
        )
        self.stop()


def _why(problem: str) -> str:
    """Return a clause on why py-spy did not sample, with what to do."""
    if not problem:
        return _MISSING.format(install_line("record"))
    forbidden = any(word in problem for word in ("ermission", "not permitted", "elevated"))
    return _FORBIDDEN if forbidden else _FAILED.format(problem.splitlines()[-1])
