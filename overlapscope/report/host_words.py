"""Sentences on a step of the host, for programs without GPU activity."""

from __future__ import annotations

from typing import Final

from overlapscope.analysis.results import HostUse, LineTime
from overlapscope.base.words import bare_shares, clean, duration, listed
from overlapscope.catalog.causes import IDLE, IdleCause
from overlapscope.catalog.names import op_words, recorder_by_id
from overlapscope.report.losses import WORTH_SAYING
from overlapscope.report.page import DeviceReport

_WORDS: Final = {
    "communication": "in communication",
    IdleCause.DATA_LOADING: "loading data",
    IdleCause.GIL_WAIT: "waiting for Python's lock, which another thread holds",
    IdleCause.FILE_IO: "reading and writing files",
    IdleCause.PREEMPTED: "waiting for a CPU",
    IdleCause.CPU_THROTTLED: "stopped by the CPU quota",
    IdleCause.GC_PAUSE: "in Python's garbage collector",
    IdleCause.UNRECORDED: "in steps that are longer than any recorded one",
    IdleCause.PYTHON: "elsewhere, such as in Python",
}
"""Parts of a step on the host (`results.host_parts`)."""
_LOADER: Final = {
    "none": "",
    "own-thread": "The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": "Workers make the batches; loading is what the thread of the steps still waits for them.",
}
_LOOP = 0.95
"""A function or line with this share of a step is its loop, and no place to start."""


def host_words(section: DeviceReport, part: str) -> str:
    """Return a part of a step in words; a cause of another version by its name."""
    return f"in {_ops(section)}" if part == "ops" else _WORDS.get(part, clean(part, 40))


def _ops(section: DeviceReport) -> str:
    return recorder_by_id(section.trace.environment.recorder).host_ops


def host_sentence(section: DeviceReport, use: HostUse) -> str:
    """Return the parts of a step in a sentence, the longest first, without those that would show as less than 0.1%.

    Example: `A step takes 12.3 ms: 55.0% in ops, 40.0% loading data and 5.0% elsewhere, such as in Python.`
    """
    parts = section.host_parts
    what = "A step takes" if use.by_steps else "The recording, in which no step is marked, takes"
    shares = dict(zip(parts, bare_shares([*parts.values()], section.host_step_ns), strict=True))
    longest = sorted((name for name, share in shares.items() if share != "< 0.1"), key=lambda name: -parts[name])
    words = [f"{shares[name]}% {host_words(section, name)}" for name in longest]
    return f"{what} {duration(section.host_step_ns)}{f': {listed(words)}' if words else ''}."


def lost_parts(section: DeviceReport) -> dict[str, int]:
    """Return the parts of a step that a program can save: loading data, waits and communication."""
    known = ("ops", IdleCause.PYTHON, IdleCause.UNRECORDED)
    return {name: ns for name, ns in section.host_parts.items() if name not in known}


def remedy(section: DeviceReport, use: HostUse, least_ns: float) -> str:
    """Return what to do about the largest loss, if it is that large, then about the costliest code."""
    lost = lost_parts(section)
    loss = max(lost, key=lambda name: lost[name], default="")
    loads = lost.get(IdleCause.DATA_LOADING, 0) >= WORTH_SAYING * section.host_step_ns
    of_loss = _of_loss(loss, use) if loss and lost[loss] >= least_ns else ""
    unrecorded_ns = section.host_parts.get(IdleCause.UNRECORDED, 0)
    if unrecorded_ns >= max(least_ns, *lost.values(), 0):
        of_loss = IDLE[IdleCause.UNRECORDED].words.remedy
    advice = [of_loss, _start(section, use), _LOADER[use.loader] if loads else ""]
    return " ".join(dict.fromkeys(filter(None, advice)))


def _of_loss(name: str, use: HostUse) -> str:
    if name == "communication":
        return "`overlapscope ranks` compares all ranks, and tells waiting for another rank from transfer."
    if name == IdleCause.DATA_LOADING:
        return _LOADER[use.loader]
    return next((IDLE[cause].words.remedy for cause in IDLE if cause == name), "")


def _start(section: DeviceReport, use: HostUse) -> str:
    """Return the code to begin with: the costliest place, or without samples the costliest op."""
    parts, place = section.host_parts, _place(section)
    ops_ns, rest_ns = parts.get("ops", 0), parts.get(IdleCause.PYTHON, 0)
    if place is not None and place[2] < _LOOP * section.host_step_ns:
        return f"Start with {place[0]} ({place[1]}): a step can become at most {duration(place[2])} shorter."
    if max(lost_parts(section).values(), default=0) >= max(ops_ns, rest_ns):
        return ""
    if use.ops and ops_ns > rest_ns:
        longest, took = use.ops[0], duration(section.of_ops(use.ops[0].time_ns))
        return f"Start with the {_ops(section)}: {clean(op_words(longest.op), 80)} takes {took}."
    return "" if place is not None else "overlapscope run shows which lines take the time elsewhere."


def _place(section: DeviceReport) -> tuple[str, str, int] | None:
    """Return the function with the most samples, its costliest line, and its part of a step; None without samples.

    A function with nearly all of a step is its loop, of which the costliest line says more.
    """
    functions: dict[tuple[str, str], list[LineTime]] = {}
    for line in section.trace.sampled.lines if section.trace.sampled is not None else ():
        functions.setdefault((line.line.rpartition(":")[0], line.function), []).append(line)
    if not functions:
        return None
    lines = max(functions.values(), key=lambda lines: sum(line.time_ns for line in lines))
    first, whole_ns = max(lines, key=lambda line: line.time_ns), sum(line.time_ns for line in lines)
    if len(lines) > 1 and whole_ns < _LOOP * section.host_step_ns:
        return clean(first.function, 80), f"mostly {clean(first.line, 80)}", whole_ns
    return clean(first.calls or first.function, 80), clean(first.line, 80), first.time_ns
