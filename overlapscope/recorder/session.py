"""A run of the profiler from start to stop, with the additions of overlapscope."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from overlapscope.base.marks import METADATA, ORIGIN, PLAIN_STEPS, STEP_SOURCE, THREADS, TORCH, WARM_UP_STEPS
from overlapscope.base.revision import job_name, revision, running_script
from overlapscope.recorder import all_threads, devices
from overlapscope.recorder.cupti import detached
from overlapscope.recorder.main_thread import undisturbed
from overlapscope.recorder.options import Options
from overlapscope.version import __version__

if TYPE_CHECKING:
    from overlapscope.trace.model import PlainSteps, TraceOrigin

_MOST_NAMED = 100
_LONGEST_NAME = 100

_LOG_LEVEL, _ERRORS_ONLY = "KINETO_LOG_LEVEL", "6"


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
        return json.dumps(content)


class Session:
    """The profiler, running from construction to `stop`, which is called on the same thread unless it records all."""

    metadata: Metadata
    origin: TraceOrigin
    unfinished: str | None
    """Name of the annotation that was open when it stopped."""

    def __init__(self, options: Options) -> None:
        """Start the profiler. Raises RuntimeError if it does not start.

        GPUs are recorded even if they are not in use yet. The set of visible GPUs cannot change afterwards.
        """
        import torch
        from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events
        from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

        from overlapscope.recorder.event_notes import EventNotes

        undisturbed()
        self.origin = _origin()
        self.stacks = options.stacks
        self._light = options.light
        # A profiler of all threads records no memory (pytorch issue 192290, torch 2.13).
        self.all_threads = all_threads.possible() and not options.memory
        """True if the ops of all threads are recorded, and any thread may stop it."""
        config: dict[str, Any] = {"profile_all_threads": True} if self.all_threads else {}
        self._profiler = _KinetoProfile(
            activities=devices.activities(cuda=torch.cuda.is_available()),
            with_stack=options.stacks,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            experimental_config=_ExperimentalConfig(
                enable_cuda_sync_events=True, disable_external_correlation=options.light, **config
            ),
        )
        self._event_notes = EventNotes(as_annotations=options.light)
        with warnings.catch_warnings(), _quiet_kineto():
            # torch 2.11 gives this warning for every recording.
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            _starting.append(self)
            try:
                self._profiler.prepare_trace()
            finally:
                _starting.remove(self)
        # An op still under way now would be in the trace without its launch, as a lead-in.
        with suppress(RuntimeError):
            devices.synchronize()
        with _only_annotations() if options.light else nullcontext():
            self._profiler.start_trace()
        _running.add(self)
        self._event_notes.start()

    def stop(self, metadata: Metadata, *, unfinished: str | None) -> None:
        """Stop recording. Raises RuntimeError if the profiler does not stop.

        `unfinished` is the name of an annotation that is open (`trace_file.write`).
        """
        undisturbed()
        self._event_notes.stop()
        self.metadata, self.unfinished = metadata, unfinished
        # Kineto takes metadata only while it runs.
        self._profiler.add_metadata_json(METADATA, metadata.json())
        # The profiler would wait for the device. This initialises CUDA in a program that does not use it. After a
        # device-side assert it fails, and the trace of the ops before the assert would be lost.
        with suppress(RuntimeError):
            devices.synchronize()
        if self._profiler.profiler is not None:
            self._profiler.profiler.use_device = None
        if self.all_threads:
            all_threads.settle()
        # torch warns about ranges that are still open, such as that of an optimizer's step.
        with detached(), all_threads.quiet():
            self._profiler.stop_trace()
        _running.discard(self)

    @property
    def what_others_did(self) -> str | None:
        """Sentence on other threads of the program whose ops are not recorded; None without such threads."""
        import torch

        others = any(not thread.daemon and thread is not threading.current_thread() for thread in threading.enumerate())
        if self.all_threads or self._light or not others:
            return None
        which = "with --memory" if all_threads.possible() else torch.__version__
        return (
            f"The ops of other threads are not in the trace: torch {which} records only one thread and those of "
            "autograd."
        )

    @property
    def empty(self) -> bool:
        """True if no op was recorded. Valid after `stop`; takes a microsecond per event."""
        results = getattr(self._profiler.profiler, "kineto_results", None)
        return results is None or not any("::" in event.name() for event in results.events())

    @property
    def has_gpu_times(self) -> bool:
        """True if the recording has a GPU op with a time. Valid after `stop`; takes a microsecond per event."""
        results = getattr(self._profiler.profiler, "kineto_results", None)
        if results is None or not devices.cuda_is_up():
            return False
        from torch._C._autograd import DeviceType  # `torch.autograd` has it, but does not export it.

        return any(event.device_type() != DeviceType.CPU and event.duration_ns() > 0 for event in results.events())

    def export(self, name: str) -> None:
        """Write the recording to a .json file, after `stop`."""
        self._profiler.export_chrome_trace(name)


def thread_names() -> dict[str, str]:
    """Return Python's names of the threads that run now, by their numbers; of many threads, the oldest."""
    return {str(thread.native_id): thread.name[:_LONGEST_NAME] for thread in threading.enumerate()[:_MOST_NAMED]}


def _origin() -> TraceOrigin:
    """Return the origin of a recording that starts now. The host is left out, since users pass traces on."""
    from overlapscope.trace.model import TraceOrigin

    script = running_script()
    commit, branch = _revision(script.parent)
    return TraceOrigin(at_ns=time.time_ns(), job=job_name(script), commit=commit, branch=branch)


_revision = cache(revision)
"""Function that returns the revision at the first recording: a running program does not change with its files."""

_running: set[Session] = set()


def _in_forked_child() -> None:
    """Switch off the inherited profiler in a forked child, where it would keep every op in memory until the end."""
    if _running:
        import torch

        autograd: Any = torch.autograd
        autograd._enable_record_function(False)
        if any(session.stacks for session in _running):
            sys.setprofile(None)


os.register_at_fork(after_in_child=_in_forked_child)


_starting: list[Session] = []


def starting() -> bool:
    """Return whether a session is starting its profiler."""
    return bool(_starting)


@contextmanager
def _only_annotations() -> Iterator[None]:
    """Have a profiler that starts inside record only `record_function`s and runtime calls of the host.

    The kinds of ops can be chosen only in the function that the profiler calls.
    """
    import torch.autograd.profiler
    from torch._C._profiler import RecordScope

    module: Any = torch.autograd.profiler
    enable = module._enable_profiler

    def enable_annotations(config: Any, activities: Any) -> None:
        enable(config, activities, {RecordScope.USER_SCOPE})

    module._enable_profiler = enable_annotations
    try:
        yield
    finally:
        module._enable_profiler = enable


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep Kineto of torch 2.13 from printing every start and stop. It reads its log level once, at its first start."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _ERRORS_ONLY
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]


def profiler_running() -> bool:
    """Return whether a torch profiler runs on any thread. At most one can run in a process."""
    import torch.autograd.profiler

    # `torch.autograd._profiler_enabled`, which is not public either, only covers this thread.
    return torch.autograd.profiler._is_profiler_enabled
