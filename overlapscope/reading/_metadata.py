"""Metadata around the events: devices, ranks, versions."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from overlapscope.base.marks import (
    FOUND,
    FRAMEWORK,
    HOST_ACTIVITY,
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
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts
from overlapscope.trace.model import ClockedSteps, Framework, PlainSteps, TimedSteps, TraceOrigin

_MAX_NUMBER = 1 << 31
"""Maximum of numbers of steps, threads, lines and samples."""
_MAX_TIMED = 10_000
"""Maximum steps to read from before and from after the recording."""
_LONGEST_STEP_NS = 1 << 53
_LONGEST_VERSION = 64
_LONGEST_NAME = 200
_MAX_THREADS = 10_000
_LATEST_NS = 1 << 62
_Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
_Lengths = Annotated[tuple[Annotated[int, Meta(gt=0, lt=_LONGEST_STEP_NS)], ...], Meta(max_length=_MAX_TIMED)]
_INTEGER = r"\s*-?\d{1,19}\s*"

_LOOSE = (
    rb'"(baseTimeNanoseconds|schemaVersion|cuda_runtime_version|cuda_driver_version|cupti_version|rank|world_size)"'
    rb'\s*:\s*"?(\d{1,19})(?![\d.eE])'
)


def loose_metadata(text: bytes) -> dict[str, Any]:
    """Return the numbers that matter from metadata that is not valid JSON."""
    metadata: dict[str, Any] = {}
    for key, number in re.findall(_LOOSE, text):
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
    torch = _object(metadata.get(METADATA)).get(TORCH)
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


def recorded_fields(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Trace that the recorder or `overlapscope whatif` noted, as far as they are possible."""
    ours = _object(metadata.get(METADATA))
    sides, prediction = _object(ours.get(PLAIN_STEPS)), _object(ours.get(PREDICTION))
    changes = prediction.get("interventions")
    found = ((name, integer(count)) for name, count in _object(ours.get(FOUND)).items())
    origin = ours.get(ORIGIN)
    return {
        "warm_up_steps": _valid(integer(ours.get(WARM_UP_STEPS)), Annotated[int, Meta(gt=0, lt=_MAX_NUMBER)], 0),
        "step_source": _valid(ours.get(STEP_SOURCE), Annotated[str, Meta(max_length=_LONGEST_NAME)], ""),
        "thread_names": _thread_names(_object(ours.get(THREADS))),
        "found": {name: count for name, count in found if count is not None and 0 <= count < _MAX_NUMBER},
        "plain_steps": PlainSteps(
            _timed(_object(sides.get("before"))), _timed(_object(sides.get("after"))), _clocked(sides.get("clocked"))
        ),
        "host_activity": _host_activity(ours.get(HOST_ACTIVITY)),
        "predicted_by": _valid(changes, tuple[str, ...], ()) if PREDICTION in ours else None,
        "recorder": _valid(ours.get(RECORDER), Annotated[str, Meta(max_length=_LONGEST_VERSION)], "kineto"),
        "framework": _valid(ours.get(FRAMEWORK), Framework, "pytorch"),
        "origin": _origin(origin) if isinstance(origin, dict) else None,
    }


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _valid(value: Any, kind: Any, otherwise: Any) -> Any:
    """Return a value of the metadata if it is of a kind, or else another value."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return otherwise


def _thread_names(stated: dict[str, Any]) -> dict[int, str]:
    if len(stated) > _MAX_THREADS:
        return {}
    numbered = ((integer(number), _valid(name, _Name, None)) for number, name in stated.items())
    return {number: name for number, name in numbered if number is not None and name is not None}


def _timed(side: dict[str, Any]) -> TimedSteps:
    """Return timed steps; none from a list with anything except lengths in it."""
    return TimedSteps(*(_valid(side.get(clock), _Lengths, ()) for clock in ("host_ns", "device_ns")))


def _clocked(value: Any) -> ClockedSteps:
    clocked: ClockedSteps = _valid(value, ClockedSteps, ClockedSteps())
    groups = clocked.lengths
    is_plausible = len(groups) <= _MAX_TIMED and all(0 < steps <= span_ns for steps, span_ns in groups)
    ascending = all(one_ns * others < others_ns * one for (one, one_ns), (others, others_ns) in pairwise(groups))
    short = max(clocked.span_ns, clocked.recorded_ns) < _LONGEST_STEP_NS and clocked.recorded_ns >= 0
    return clocked if is_plausible and ascending and short else ClockedSteps()


def _origin(note: dict[str, Any]) -> TraceOrigin:
    texts = {name: _valid(note.get(name), _Name, None) for name in ("job", "commit", "branch")}
    return TraceOrigin(at_ns=_valid(note.get("at_ns"), Annotated[int, Meta(gt=0, lt=_LATEST_NS)], None), **texts)


def integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str) and re.fullmatch(_INTEGER, value):
        return int(value)
    return value if isinstance(value, int) else None


# -- Activity of the host in steps without the profiler ----------------------------------------------

_LONGEST_SAMPLER = 64
_LONGEST_FILE = 4096
_MAX_FRAMES = 100_000
_MAX_STACKS = 10_000
_MAX_STACK_DEPTH = 1000
_MAX_FILES = 10_000
_MAX_CPUS = 1 << 20


def _host_activity(note: Any) -> HostActivity:
    """Return the activity that the recorder noted; none if it noted none, or anything impossible.

    Samples with an impossible frame are left out: py-spy reads the program's memory while the program changes it.
    """
    activity = _valid(note, HostActivity, HostActivity())
    torn = {number for number, frame in enumerate(activity.frames) if not _is_plausible_frame(frame)}
    if torn:
        stacks = tuple(stack for stack in activity.stacks if torn.isdisjoint(stack.frames))
        nothing = StackFrame("", 0, "")
        frames = tuple(nothing if number in torn else frame for number, frame in enumerate(activity.frames))
        interval_ns = activity.interval_ns if stacks else 0
        activity = msgspec.structs.replace(activity, frames=frames, stacks=stacks, interval_ns=interval_ns)
    return activity if _is_plausible(activity) else HostActivity()


def _is_plausible(activity: HostActivity) -> bool:
    states = activity.states
    counts = states.running, states.gil_wait, states.file_io, states.other_wait
    return (
        all(0 < number < _MAX_NUMBER for number in (activity.thread, activity.steps))
        and 0 < activity.span_ns < _LONGEST_STEP_NS
        and 0 <= activity.interval_ns <= activity.span_ns
        and bool(activity.interval_ns) == bool(activity.stacks)
        and len(activity.sampler) <= _LONGEST_SAMPLER
        and len(activity.frames) <= _MAX_FRAMES
        and len(activity.stacks) <= _MAX_STACKS
        and all(_is_plausible_stack(stack, len(activity.frames)) for stack in activity.stacks)
        and sum(stack.samples for stack in activity.stacks) < _MAX_NUMBER
        and all(0 <= count < _MAX_NUMBER for count in counts)
        and len(activity.files) <= _MAX_FILES
        and all(len(file) <= _LONGEST_FILE and count > 0 for file, count in activity.files.items())
        and sum(activity.files.values()) <= states.file_io
        and _are_plausible_facts(activity.facts)
    )


def _is_plausible_frame(frame: StackFrame) -> bool:
    return len(frame.file) <= _LONGEST_FILE and len(frame.function) <= _LONGEST_FILE and 0 <= frame.line < _MAX_NUMBER


def _is_plausible_stack(stack: SampledStack, frames: int) -> bool:
    return (
        0 < stack.thread < _MAX_NUMBER
        and 0 < stack.samples < _MAX_NUMBER
        and 0 <= stack.running <= stack.samples
        and len(stack.frames) <= _MAX_STACK_DEPTH
        and all(0 <= frame < frames for frame in stack.frames)
    )


def _are_plausible_facts(facts: SystemFacts) -> bool:
    span_ns = facts.span_ns
    longest_throttled_ns = span_ns if facts.run_queue_ns is None else facts.run_queue_ns
    limits = (
        (facts.run_queue_ns, span_ns),
        (facts.throttled_ns, longest_throttled_ns),
        (facts.gc_pause_ns, span_ns),
        (facts.kernel_ns, span_ns),
        (facts.other_threads_cpu_ns, _LONGEST_STEP_NS),
        (facts.involuntary_switches, _LONGEST_STEP_NS),
        (facts.major_faults, _LONGEST_STEP_NS),
        (facts.gc_collections, _LONGEST_STEP_NS),
    )
    cpus = facts.usable_cpus, facts.quota_cpus, facts.torch_threads
    if not (0 <= facts.steps < _MAX_NUMBER and 0 <= span_ns < _LONGEST_STEP_NS and bool(facts.steps) == bool(span_ns)):
        return False
    return all(value is None or 0 <= value <= limit for value, limit in limits) and all(
        number is None or (math.isfinite(number) and 0 < number <= _MAX_CPUS) for number in cpus
    )
