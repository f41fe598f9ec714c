"""Words that the recorder writes into a trace and the reader looks for."""

from __future__ import annotations

import re
from typing import Final

STEP: Final = "ProfilerStep#"
"""Prefix of the names of marked steps; a number follows, and the batch of a server's step (`trace/servers.py`)."""

_STEP_NAME: Final = re.compile(rf"{STEP}(\d{{1,18}})(?: \(.*\))?|repeat (\d{{1,18}}) of \d{{1,18}}")


def repeat_name(number: int, count: int) -> str:
    """Return the name of a step that was found by what repeats. The first number is 1."""
    return f"repeat {number} of {count}"


def step_number(name: str) -> int:
    """Return the number in the name of a step; -1 for another name."""
    match = _STEP_NAME.fullmatch(name)
    return -1 if match is None else int(match[1] or match[2])


def is_step_name(name: str) -> bool:
    """Return whether a step has this name."""
    return step_number(name) >= 0


METADATA = "overlapscope"
"""Key of the recorder's own metadata, a JSON object, at a trace's top level."""

WARM_UP_STEPS = "warm_up_steps"
"""Key in the metadata: number of first `ProfilerStep`s recorded to fill the pipeline, and not to be judged."""

PLAIN_STEPS = "plain_steps"
"""Key in the metadata: `{"before": {"host_ns": [...], "device_ns": [...]}, "after": {...}}`, the lengths of steps timed
without the profiler (`trace.PlainSteps`)."""

HOST_ACTIVITY = "host_activity"
"""Key in the metadata: what the host did in steps without the profiler (`trace.HostActivity`)."""

GC_PAUSE = "overlapscope::gc"
"""`overlapscope::gc` encloses a collection by Python's garbage collector."""

STEP_SOURCE = "step_source"
"""Key in the metadata: what ended the steps, in words, such as `calls of ResNet.forward` (`Trace.step_source`)."""

THREADS = "threads"
"""Key in the metadata: `{"1234": "MainThread", ...}`, Python's names of threads by the numbers that events have."""

FOUND = "found"
"""Key in the metadata: `{"hazards": 2}`, the number of things that each observer of the recording found."""

MAIN_THREAD = "MainThread"
"""Python's name of the main thread."""

ORIGIN = "origin"
"""Key in the metadata: `{"at_ns": ..., "job": ..., "commit": ..., "branch": ...}`, as known (`trace.TraceOrigin`)."""

PREDICTION = "prediction"
"""Key in the metadata: `{"of": file, "interventions": [...]}`, in a prediction of `overlapscope whatif`."""

FRAMEWORK = "framework"
"""Key in the metadata: framework of the program (`Trace.framework`), unless PyTorch."""
RECORDER = "recorder"
"""Key in the metadata: recorder of a trace that was written anew (`Trace.recorder`), unless torch.profiler."""

TORCH = "torch"
"""Key in the metadata: version of PyTorch, which Kineto does not write."""

EVENT_RECORD = "overlapscope::event_record#"
"""`overlapscope::event_record#NUMBER@DEVICE.STREAM` encloses the call that recorded an event on that stream."""

EVENT_WAIT = "overlapscope::event_wait#"
"""`overlapscope::event_wait#NUMBER@DEVICE.STREAM` encloses the call that makes that stream wait for record NUMBER; 0
where the record was not seen."""

COLLECTIVE = "overlapscope::collective#"
"""`overlapscope::collective#NUMBER@DEVICE.STREAM` encloses a call of a process group; the stream is the current one."""

WORK_WAIT = "overlapscope::work_wait#"
"""`overlapscope::work_wait#NUMBER@DEVICE.STREAM` encloses the wait for such a collective; 0 where it was not seen."""

EVENT_NOTES = EVENT_RECORD, EVENT_WAIT, COLLECTIVE, WORK_WAIT
"""Kinds of notes on CUDA events."""
