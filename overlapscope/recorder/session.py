"""One run of the profiler, from start to stop, with what overlapscope adds to it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from overlapscope import __version__
from overlapscope.marks import METADATA, TORCH, WARM_UP_STEPS
from overlapscope.recorder import devices, trace_file

_LOG_LEVEL, _ERRORS_ONLY = "KINETO_LOG_LEVEL", "6"


@dataclass(frozen=True, slots=True)
class Options:
    """What the profiler notes of each op, besides its time."""

    stacks: bool
    shapes: bool
    memory: bool


class Session:
    """The profiler, running from the constructor to `stop`. Must be stopped on the thread that started it."""

    def __init__(self, options: Options) -> None:
        """Raises RuntimeError where the profiler does not start.

        GPUs are recorded though they may not be in use yet. Which of them there are is settled from now on.
        """
        import torch
        from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events
        from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

        from overlapscope.recorder.event_notes import EventNotes

        self._profiler = _KinetoProfile(
            activities=devices.activities(cuda=torch.cuda.is_available()),
            with_stack=options.stacks,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True),
        )
        self._event_notes = EventNotes()
        with warnings.catch_warnings(), _quiet_kineto():
            # It says what every one of its recordings does (torch 2.11).
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            self._profiler.prepare_trace()
        # What is still under way now would be in the trace without its launch: a lead-in.
        with suppress(RuntimeError):
            devices.synchronize()
        self._profiler.start_trace()
        self._event_notes.start()

    def stop(self, *, warm_up_steps: int = 0) -> None:
        """Stop recording. Raises RuntimeError where the profiler cannot even be stopped."""
        self._event_notes.stop()
        import torch

        # Kineto takes metadata only while it runs.
        metadata = {"version": __version__, TORCH: torch.__version__, WARM_UP_STEPS: warm_up_steps}
        self._profiler.add_metadata_json(METADATA, json.dumps(metadata))
        # It would wait for the device: that initialises CUDA in a program that does not use it, and fails for good
        # after a device-side assert, though there is a trace of what led there.
        with suppress(RuntimeError):
            devices.synchronize()
        if self._profiler.profiler is not None:
            self._profiler.profiler.use_device = None
        self._profiler.stop_trace()

    def write(self, path: Path, *, unfinished: str | None = None) -> None:
        """Write the trace, once stopped; see `trace_file.write`. Raises RecordingFailed."""
        trace_file.write(self._profiler.export_chrome_trace, path, unfinished=unfinished)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto of torch 2.13 tells stderr of every start and stop. It reads how much to tell once, at its first start."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _ERRORS_ONLY
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]


def profiler_running() -> bool:
    """Whether a torch profiler runs on any thread. There can be one: Kineto is the process's."""
    import torch.autograd.profiler

    # `torch.autograd._profiler_enabled`, as little public, tells of this thread only.
    return torch.autograd.profiler._is_profiler_enabled
