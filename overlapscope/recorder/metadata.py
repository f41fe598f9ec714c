"""Facts about a recording that its trace states: where it comes from, what ends its steps, steps timed around it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from overlapscope.base.marks import HOST_ACTIVITY, ORIGIN, PLAIN_STEPS, STEP_SOURCE, THREADS, TORCH, WARM_UP_STEPS
from overlapscope.base.revision import job_name, revision, running_script
from overlapscope.version import __version__

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity
    from overlapscope.trace.model import PlainSteps, TraceOrigin

_MOST_NAMED = 100
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Metadata:
    """Facts about a recording that its trace states under `marks.METADATA`."""

    warm_up_steps: int
    plain_steps: PlainSteps
    origin: TraceOrigin | None = None
    step_source: str | None = None
    """Description of what ended steps."""
    threads: dict[str, str] = field(default_factory=dict)
    """Python's names of threads, by their numbers."""
    host_activity: HostActivity | None = None
    """Activity of the host in steps after the recording, if it was sampled."""

    def json(self) -> str:
        """Return the text that is in the trace, exactly once."""
        import torch
        from msgspec import to_builtins

        from overlapscope.trace.model import PlainSteps

        content = {"version": __version__, TORCH: torch.__version__, WARM_UP_STEPS: self.warm_up_steps}
        if self.origin is not None:
            content[ORIGIN] = {name: value for name, value in to_builtins(self.origin).items() if value is not None}
        if self.step_source is not None:
            content[STEP_SOURCE] = self.step_source
        if self.threads:
            content[THREADS] = self.threads
        if self.plain_steps != PlainSteps():
            content[PLAIN_STEPS] = to_builtins(self.plain_steps)
        if self.host_activity is not None:
            content[HOST_ACTIVITY] = to_builtins(self.host_activity)
        return json.dumps(content)


def thread_names() -> dict[str, str]:
    """Return Python's names of the threads that run now, by their numbers; of many threads, the oldest."""
    return {str(thread.native_id): thread.name[:_LONGEST_NAME] for thread in threading.enumerate()[:_MOST_NAMED]}


def origin() -> TraceOrigin:
    """Return the origin of a recording that starts now. The host is left out, since users pass traces on."""
    from overlapscope.trace.model import TraceOrigin

    script = running_script()
    commit, branch = _revision(script.parent)
    return TraceOrigin(at_ns=time.time_ns(), job=job_name(script), commit=commit, branch=branch)


_revision = cache(revision)
"""Function that returns the revision at the first recording: a running program does not change with its files."""
