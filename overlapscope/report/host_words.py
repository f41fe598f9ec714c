"""Sentences on the host's part of a step, for programs without GPU activity."""

from __future__ import annotations

from overlapscope.analysis.host_results import HostUse, LineTime, SampledStep
from overlapscope.base.words import clean, duration, listed, share
from overlapscope.catalog.causes import IDLE, IdleCause
from overlapscope.report.losses import WORTH_SAYING

_LOADER = {
    "none": "",
    "own-thread": "The thread of the steps makes the batches itself, so loading never runs beside its ops: use "
    "num_workers.",
    "workers": "Workers make the batches; loading is what the thread of the steps still waits for them.",
}

_WAITS = {
    IdleCause.GIL_WAIT: "waiting for Python's lock, which another thread holds",
    IdleCause.FILE_IO: "reading and writing files",
    IdleCause.PREEMPTED: "waiting for a CPU",
    IdleCause.CPU_THROTTLED: "stopped by the CPU quota",
    IdleCause.GC_PAUSE: "in Python's garbage collector",
}
"""Activity of the thread of the steps, by cause."""
_PARTS = (("loading", "loading data"), ("ops", "in ops"), ("rest", "elsewhere, such as in Python"))
"""Parts of the host's time as recorded."""


def host_sentence(host: HostUse) -> str:
    """Return the host's time in a sentence.

    Example: `A step takes 12.3 ms on the host: 40.0% loading data, 55.0% in ops, 5.0% elsewhere.`
    """
    total = sum(step.span_ns for step in host.steps)
    what = "A step takes" if host.by_steps else "The recording, in which no step is marked, takes"
    average = " on average" if len(host.steps) > 1 else ""
    parts = [(sum(getattr(step, f"{part}_ns") for step in host.steps), description) for part, description in _PARTS]
    description = ", ".join(f"{share(ns, total)} {word}" for ns, word in parts)
    return f"{what} {duration(total // len(host.steps))} on the host{average}: {description}."


def sampled_sentence(step: SampledStep | None) -> str:
    """Return the costliest function and the waits of an average step without the profiler; empty without samples."""
    if step is None:
        return ""
    parts = [f"{duration(ns)} {words}" for ns, words, _ in _spent(step)]
    return f" Without the profiler, a step spends {listed(parts)}." if parts else ""


def lost_part(host: HostUse, sampled: SampledStep | None) -> float:
    """Return the share of the time that loading data or the longest kind of wait takes."""
    part = sum(step.loading_ns for step in host.steps) / max(sum(step.span_ns for step in host.steps), 1)
    if sampled is None:
        return part
    return max(part, max(sampled.by_cause.get(cause, 0) for cause in _WAITS) / max(sampled.step_ns, 1))


def remedy(host: HostUse, sampled: SampledStep | None) -> str:
    """Return the first thing to do, and a sentence on the DataLoader."""
    return " ".join(filter(None, (_first_to_do(host, sampled), _LOADER[host.loader])))


def _first_to_do(host: HostUse, sampled: SampledStep | None) -> str:
    """Return what to do about the largest part of a step, or where it is; empty if that is loading data."""
    count, spent = len(host.steps), [] if sampled is None else _spent(sampled)
    loading, ops, rest = (sum(getattr(step, f"{part}_ns") for step in host.steps) // count for part, _ in _PARTS)
    if spent and ((sampled is not None and sampled.lines) or spent[0][0] >= max(loading, ops, rest)):
        return spent[0][2]
    if host.ops and ops > max(loading, rest):
        longest = host.ops[0]
        return f"Start with the ops: {clean(longest.op, 80)} takes {duration(longest.time_ns // count)}."
    return "" if loading >= rest else "overlapscope run shows which lines take the time elsewhere."


def _spent(step: SampledStep) -> list[tuple[int, str, str]]:
    """Return the costliest function and the waits, the longest first, each with its time and what to do about it."""
    functions: dict[tuple[str, str], list[LineTime]] = {}
    for line in step.lines:
        functions.setdefault((line.line.rpartition(":")[0], line.function), []).append(line)
    spent = [
        (ns, words, IDLE[cause].remedy)
        for cause, words in _WAITS.items()
        if (ns := step.by_cause.get(cause, 0)) and ns >= WORTH_SAYING * step.step_ns
    ]
    if functions:
        lines = max(functions.values(), key=lambda lines: sum(line.time_ns for line in lines))
        ns, first = sum(line.time_ns for line in lines), max(lines, key=lambda line: line.time_ns)
        name = clean(first.function if len(lines) > 1 else first.calls or first.function, 80)
        place = f"in {name} ({'mostly ' if len(lines) > 1 else ''}{clean(first.line, 80)})"
        spent.append((ns, place, f"Start with {name}: a step can become at most {duration(ns)} shorter."))
    return sorted(spent, key=lambda part: -part[0])
