"""Metadata around the events: devices, ranks, versions."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any, get_args

import msgspec

from overlapscope.base.marks import (
    FOUND,
    FRAMEWORK,
    METADATA,
    ORIGIN,
    PLAIN_STEPS,
    PREDICTION,
    RECORDER,
    STEP_SOURCE,
    THREADS,
    TORCH,
    WARM_UP_STEPS,
)
from overlapscope.trace.model import ClockedSteps, Framework, PlainSteps, TimedSteps, TraceOrigin

_MOST_STEPS = 1 << 31
_MOST_TIMED = 10_000
"""Maximum steps to read from before and from after the recording."""
_LONGEST_STEP_NS = 1 << 53
_LONGEST_VERSION = 64
_LONGEST_NAME = 200
_MOST_THREADS = 10_000
_LATEST_NS = 1 << 62
_INTEGER = re.compile(r"\s*-?\d{1,19}\s*")

_LOOSE = re.compile(
    rb'"(baseTimeNanoseconds|schemaVersion|cuda_runtime_version|cuda_driver_version|cupti_version|rank|world_size)"'
    rb'\s*:\s*"?(\d{1,19})(?![\d.eE])'
)


def loose_metadata(text: bytes) -> dict[str, Any]:
    """Return the numbers that matter from metadata that is not valid JSON."""
    metadata: dict[str, Any] = {}
    for key, number in _LOOSE.findall(text):
        if key in (b"rank", b"world_size"):
            metadata.setdefault("distributedInfo", {}).setdefault(key.decode(), int(number))
        else:
            metadata.setdefault(key.decode(), int(number))
    return metadata


def device_names(properties: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for device in properties if isinstance(properties, list) else []:
        name = device.get("name") if isinstance(device, dict) else None
        if isinstance(name, str) and name.strip():
            ordinal = integer(device.get("id"))
            if ordinal is not None and 0 <= ordinal < 1 << 31:
                names[ordinal] = name.strip()
    return names


def versions(metadata: dict[str, Any], distributed: dict[str, Any]) -> dict[str, str]:
    """Return the value of every key that ends in "version"; `cuda_runtime_version` becomes `cuda_runtime`."""
    versions: dict[str, str] = {}
    torch = _recorder_metadata(metadata).get(TORCH)
    if isinstance(torch, str):
        versions["torch"] = torch
    for key, value in (*metadata.items(), *distributed.items()):
        short = re.sub(r"[_ ]?version$", "", key, flags=re.IGNORECASE)
        if short and short != key and isinstance(value, int | str | float) and not isinstance(value, bool):
            versions[short] = str(value)
    return {name: version for name, version in versions.items() if len(version) <= _LONGEST_VERSION}


def flags(metadata: dict[str, Any]) -> dict[str, bool]:
    """Return the options of torch.profiler, which writes a key for each, with 1 for yes."""
    names = ("profile_memory", "record_shapes", "with_flops", "with_modules", "with_stack")
    return {name: bool(integer(metadata[name])) for name in names if name in metadata}


def _recorder_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that the recorder or `overlapscope whatif` wrote."""
    ours = metadata.get(METADATA)
    return ours if isinstance(ours, dict) else {}


def warm_up_steps(metadata: dict[str, Any]) -> int:
    """Return the number of first steps that the recorder marked as warm-up."""
    number = integer(_recorder_metadata(metadata).get(WARM_UP_STEPS))
    return number if number is not None and 0 < number < _MOST_STEPS else 0


def step_source(metadata: dict[str, Any]) -> str:
    """Return what ended the steps according to the recorder; empty where it wrote nothing."""
    stated = _recorder_metadata(metadata).get(STEP_SOURCE)
    return stated if isinstance(stated, str) and len(stated) <= _LONGEST_NAME else ""


def thread_names(metadata: dict[str, Any]) -> dict[int, str]:
    """Return the names of threads by their numbers, as far as the recorder stated them."""
    stated = _recorder_metadata(metadata).get(THREADS)
    names = stated.items() if isinstance(stated, dict) and len(stated) <= _MOST_THREADS else ()
    numbered = ((integer(number), name) for number, name in names)
    return {
        number: name
        for number, name in numbered
        if number is not None and isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME
    }


def found(metadata: dict[str, Any]) -> dict[str, int]:
    """Return the number of things that each observer of the recording found, as far as the recorder stated them."""
    stated = _recorder_metadata(metadata).get(FOUND)
    numbered = ((name, integer(count)) for name, count in stated.items()) if isinstance(stated, dict) else ()
    return {name: count for name, count in numbered if count is not None and 0 <= count < _MOST_STEPS}


def plain_steps(metadata: dict[str, Any]) -> PlainSteps:
    """Return the steps timed without the profiler; none from a list with anything except lengths in it."""
    sides = _recorder_metadata(metadata).get(PLAIN_STEPS)
    if not isinstance(sides, dict):
        return PlainSteps()
    return PlainSteps(_timed(sides.get("before")), _timed(sides.get("after")), _clocked(sides.get("clocked")))


def _timed(side: Any) -> TimedSteps:
    if not isinstance(side, dict):
        return TimedSteps()
    return TimedSteps(_lengths(side.get("host_ns")), _lengths(side.get("device_ns")))


def _clocked(value: Any) -> ClockedSteps:
    if not isinstance(value, dict):
        return ClockedSteps()
    try:
        clocked = msgspec.convert(value, ClockedSteps)
    except msgspec.ValidationError:
        return ClockedSteps()
    groups = clocked.lengths
    possible = len(groups) <= _MOST_TIMED and all(0 < steps <= span_ns for steps, span_ns in groups)
    ascending = all(one_ns * others < others_ns * one for (one, one_ns), (others, others_ns) in pairwise(groups))
    short = max(clocked.span_ns, clocked.recorded_ns) < _LONGEST_STEP_NS and clocked.recorded_ns >= 0
    return clocked if possible and ascending and short else ClockedSteps()


def _lengths(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_TIMED:
        return ()
    possible = all(isinstance(ns, int) and not isinstance(ns, bool) and 0 < ns < _LONGEST_STEP_NS for ns in value)
    return tuple(value) if possible else ()


def origin(metadata: dict[str, Any]) -> TraceOrigin | None:
    """Return the recorder's note on the origin of the recording."""
    note = _recorder_metadata(metadata).get(ORIGIN)
    if not isinstance(note, dict):
        return None
    texts = {name: note.get(name) for name in ("job", "commit", "branch")}
    valid = {name: text for name, text in texts.items() if isinstance(text, str) and 0 < len(text) <= _LONGEST_NAME}
    at_ns = note.get("at_ns")
    possible = isinstance(at_ns, int) and not isinstance(at_ns, bool) and 0 < at_ns < _LATEST_NS
    return TraceOrigin(at_ns=at_ns if possible else None, **valid)


def framework(metadata: dict[str, Any]) -> Framework:
    """Return the framework that the file's writer names, or PyTorch."""
    named = _recorder_metadata(metadata).get(FRAMEWORK)
    return next((framework for framework in get_args(Framework) if framework == named), "pytorch")


def recorder(metadata: dict[str, Any]) -> str:
    """Return the recorder that the file's writer names, or kineto."""
    named = _recorder_metadata(metadata).get(RECORDER)
    return named if isinstance(named, str) and len(named) <= _LONGEST_VERSION else "kineto"


def predicted_by(metadata: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the changes that the file predicts; None for a recording."""
    ours = _recorder_metadata(metadata)
    if PREDICTION not in ours:
        return None
    prediction = ours[PREDICTION]
    changes = prediction.get("interventions") if isinstance(prediction, dict) else None
    return tuple(change for change in changes if isinstance(change, str)) if isinstance(changes, list) else ()


def integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) else None
