"""The host's activity in steps without the profiler, from the recorder's metadata."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from overlapscope.base.marks import HOST_ACTIVITY, METADATA
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts

_MOST = 1 << 31
"""Maximum of numbers of steps, threads, lines and samples."""
_LONGEST_NS = 1 << 53
_LONGEST_SAMPLER = 64
_LONGEST_NAME = 4096
_MOST_FRAMES = 100_000
_MOST_STACKS = 10_000
_DEEPEST = 1000
_MOST_FILES = 10_000
_MOST_CPUS = 1 << 20


def host_activity(metadata: dict[str, Any]) -> HostActivity | None:
    """Return the activity that the recorder noted; None if it noted none, or anything impossible."""
    ours = metadata.get(METADATA)
    noted = ours.get(HOST_ACTIVITY) if isinstance(ours, dict) else None
    if noted is None:
        return None
    try:
        activity = msgspec.convert(noted, HostActivity)
    except (msgspec.ValidationError, RecursionError):
        return None
    activity = _without_torn(activity)
    return activity if _possible(activity) else None


def _without_torn(activity: HostActivity) -> HostActivity:
    """Leave out samples with an impossible frame: py-spy reads the program's memory while the program changes it."""
    torn = {number for number, frame in enumerate(activity.frames) if not _possible_frame(frame)}
    if not torn:
        return activity
    stacks = tuple(stack for stack in activity.stacks if torn.isdisjoint(stack.frames))
    nothing = StackFrame("", 0, "")
    frames = tuple(nothing if number in torn else frame for number, frame in enumerate(activity.frames))
    interval_ns = activity.interval_ns if stacks else 0
    return msgspec.structs.replace(activity, frames=frames, stacks=stacks, interval_ns=interval_ns)


def _possible(activity: HostActivity) -> bool:
    states = activity.states
    counts = states.running, states.gil_wait, states.file_io, states.other_wait
    return (
        all(0 < number < _MOST for number in (activity.thread, activity.steps))
        and 0 < activity.span_ns < _LONGEST_NS
        and 0 <= activity.interval_ns <= activity.span_ns
        and bool(activity.interval_ns) == bool(activity.stacks)
        and len(activity.sampler) <= _LONGEST_SAMPLER
        and len(activity.frames) <= _MOST_FRAMES
        and all(map(_possible_frame, activity.frames))
        and len(activity.stacks) <= _MOST_STACKS
        and all(_possible_stack(stack, len(activity.frames)) for stack in activity.stacks)
        and sum(stack.samples for stack in activity.stacks) < _MOST
        and all(0 <= count < _MOST for count in counts)
        and len(activity.files) <= _MOST_FILES
        and all(len(file) <= _LONGEST_NAME and count > 0 for file, count in activity.files.items())
        and sum(activity.files.values()) <= states.file_io
        and _possible_facts(activity.facts)
    )


def _possible_frame(frame: StackFrame) -> bool:
    return len(frame.file) <= _LONGEST_NAME and len(frame.function) <= _LONGEST_NAME and 0 <= frame.line < _MOST


def _possible_stack(stack: SampledStack, frames: int) -> bool:
    return (
        0 < stack.thread < _MOST
        and 0 < stack.samples < _MOST
        and 0 <= stack.running <= stack.samples
        and len(stack.frames) <= _DEEPEST
        and all(0 <= frame < frames for frame in stack.frames)
    )


def _possible_facts(facts: SystemFacts) -> bool:
    span_ns = facts.span_ns
    longest_throttled_ns = span_ns if facts.run_queue_ns is None else facts.run_queue_ns
    limits = (
        (facts.run_queue_ns, span_ns),
        (facts.throttled_ns, longest_throttled_ns),
        (facts.gc_pause_ns, span_ns),
        (facts.kernel_ns, span_ns),
        (facts.other_threads_cpu_ns, _LONGEST_NS),
        (facts.involuntary_switches, _LONGEST_NS),
        (facts.major_faults, _LONGEST_NS),
        (facts.gc_collections, _LONGEST_NS),
    )
    cpus = facts.usable_cpus, facts.quota_cpus, facts.torch_threads
    if not (0 <= facts.steps < _MOST and 0 <= span_ns < _LONGEST_NS and bool(facts.steps) == bool(span_ns)):
        return False
    return all(value is None or 0 <= value <= limit for value, limit in limits) and all(
        number is None or (math.isfinite(number) and 0 < number <= _MOST_CPUS) for number in cpus
    )
