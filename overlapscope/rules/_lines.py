"""Lines of Python for findings about the host, from samples of the program without the profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.analysis.average import step_ns
from overlapscope.analysis.periods import names_of
from overlapscope.base.grouping import distinct
from overlapscope.base.words import duration, listed, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, name
from overlapscope.trace.host import Where, around
from overlapscope.trace.host_activity import Frames, HostActivity, SampledStack, StackFrame, is_loading

if TYPE_CHECKING:
    from overlapscope.analysis.host_lines import HostLine

_MAX_LINES = 3
_MIN_SHARE = 0.02
"""Minimum share of a step for a line to be named."""
KINDS = {
    "collation": ("_utils/collate.py",),
    "pinning": ("_utils/pin_memory.py",),
    "waiting for workers": ("multiprocessing/", "queue.py", "threading.py", "selectors.py"),
}
"""Files in stacks inside a DataLoader's next, by kind of work; the rest makes samples."""


def at_lines(claims: Claims, chosen: Callable[[Frames], bool], draft: Draft, unsampled: str = "") -> Draft:
    """Return a draft with the lines with the most samples.

    Args:
        claims: Claims of the device.
        chosen: Whether a stack, outermost frame first, is about the finding.
        draft: The draft without lines.
        unsampled: Sentence for a recording without samples.
    """
    activity = claims.trace.host_activity
    if not activity.main_stacks:
        return replace(draft, where=None, afterword=f"{draft.afterword}{unsampled}")
    lines, top = _lines(claims, chosen), next(iter(_host_lines(_of(activity, chosen))), None)
    return replace(
        draft,
        title=f"{draft.title}, most in {lines[0][0]}" if lines else draft.title,
        where=Where(line=f"{top.place} in {top.function}") if top and top.place and top.line else None,
        afterword=f"{draft.afterword}{sampled_lines(claims, chosen)}",
    )


def sleeps(claims: Claims, chosen: Callable[[Frames], bool]) -> bool:
    """Return whether samples mostly found the launching thread asleep at the line with the most samples."""
    line = next(iter(_host_lines(_of(claims.trace.host_activity, chosen))), None)
    return line is not None and 2 * line.running < line.samples


def ranges_or_cost(claims: Claims, pieces: ClaimedPieces) -> str:
    """Return the ranges around pieces as a sentence; if Python's frames were recorded, what that costs."""
    return stacks_cost(claims) if len(claims.trace.python_frames) else _in_ranges(claims, pieces)


def stacks_cost(claims: Claims) -> str:
    """Return what recording Python's frames changes about the host's time, as a sentence; empty without frames."""
    if not len(claims.trace.python_frames):
        return ""
    return (
        " Recording with stacks slows the host, so the recording has more of this idle time than the program without "
        "the profiler."
    )


def sampled_lines(claims: Claims, chosen: Callable[[Frames], bool] = bool) -> str:
    """Return the lines with the most samples as a sentence; empty without samples."""
    named = [f"{duration(ns)} in {place}" for place, ns in _lines(claims, chosen)]
    return f" In a step without the profiler, the launching thread spends {listed(named)}." if named else ""


def host_time(claims: Claims, pieces: ClaimedPieces, cause: IdleCause) -> str:
    """Return the launching thread's time of a cause in a step, and the GPU's part, as a sentence; empty if unknown."""
    if not claims.trace.host_activity:
        return ""
    from overlapscope.analysis.host_sampled import sampled_step

    step = sampled_step(claims.trace)
    if step is None or not step.by_cause.get(cause):
        return ""
    return (
        f" In a step without the profiler, the launching thread loses {duration(step.by_cause[cause])} to it; the "
        f"{claims.gpu} waits for {claims.time(pieces.time_ns)}."
    )


def kinds_of_loading(claims: Claims) -> str:
    """Return how a DataLoader's time divides by kind of work, as a sentence; empty without samples."""
    activity = claims.trace.host_activity
    stacks = activity.main_stacks
    times: Counter[str] = Counter()
    for stack in stacks:
        frames = _frames(activity, stack)
        if is_loading(frames):
            inner = [kind for kind, files in KINDS.items() if any(file in f.file for f in frames for file in files)]
            times[next(iter(inner), "making samples")] += stack.samples
    whole, step = sum(stack.samples for stack in stacks), step_ns(claims.trace)
    parts = [f"{kind} takes {duration(step * samples / whole)}" for kind, samples in times.most_common()]
    return f" Of the loading, {listed(parts)}{claims.a_step}." if parts else ""


def fewer_threads(claims: Claims) -> str:
    """Return the advice to match torch's threads to the CPUs, as the first line; empty if they are no more."""
    activity = claims.trace.host_activity
    cpus = activity.facts.cpus_to_match
    if cpus is None:
        return ""
    threads = plural(activity.facts.torch_threads or 0, "thread")
    return f"Call torch.set_num_threads({cpus}): torch has {threads} for {plural(cpus, 'CPU')}.\n"


def other_threads(claims: Claims) -> str:
    """Return the lines at which other threads run Python most, as a sentence; empty without samples."""
    activity = claims.trace.host_activity
    of_thread: Counter[int] = Counter()
    for stack in activity.stacks:
        if stack.thread != activity.thread:
            of_thread[stack.thread] += stack.running
    busiest = [thread for thread, running in of_thread.most_common(1) if running]
    if not busiest:
        return ""
    lines = _host_lines(replace(activity, thread=busiest[0]))
    thread_name = claims.trace.thread_names.get(busiest[0])
    places = list(dict.fromkeys(line.place for line in lines if line.place and line.running))[:_MAX_LINES]
    return f" Thread {thread_name or busiest[0]} ran most, at {listed(places)}." if places else ""


def _in_ranges(claims: Claims, pieces: ClaimedPieces) -> str:
    """Return the innermost ranges of the program around the pieces, as a sentence; empty if there are none."""
    notes = claims.trace.annotations
    ranges = notes.take(notes.named(set(names_of(notes)[1]).__contains__))
    row = around(ranges, pieces.thread, pieces.at_ns)
    times: Counter[str] = Counter()
    for number in distinct(row[row >= 0]).tolist():
        times[ranges.name(number)] += int(pieces.length_ns[row == number].sum())
    parts = [
        f"{claims.time(ns)} {name(text)}"
        for text, ns in times.most_common(_MAX_LINES)
        if ns >= _MIN_SHARE * pieces.time_ns
    ]
    return f" By range{', per step' if claims.steps else ''}: {'; '.join(parts)}." if parts else ""


def _lines(claims: Claims, chosen: Callable[[Frames], bool]) -> list[tuple[str, float]]:
    """Return the places of the lines with the most samples and their time in a step."""
    activity = claims.trace.host_activity
    samples: Counter[str] = Counter()
    called: dict[str, str] = {}
    for line in _host_lines(_of(activity, chosen)):
        if line.place:
            samples[line.place] += line.samples
            if line.called:
                called.setdefault(line.place, line.called)
    whole, step = activity.main_samples, step_ns(claims.trace)
    return [
        (f"{called[place]} ({place})" if place in called else place, step * count / whole)
        for place, count in samples.most_common(_MAX_LINES)
        if count >= _MIN_SHARE * whole
    ]


def _of(activity: HostActivity, chosen: Callable[[Frames], bool]) -> HostActivity:
    return replace(activity, stacks=tuple(stack for stack in activity.stacks if chosen(_frames(activity, stack))))


def _frames(activity: HostActivity, stack: SampledStack) -> list[StackFrame]:
    return [activity.frames[number] for number in stack.frames]


def _host_lines(activity: HostActivity) -> tuple[HostLine, ...]:
    """Return the lines of the main thread (`host_lines`), which few recordings have."""
    if not activity.main_stacks:
        return ()
    from overlapscope.analysis.host_lines import host_lines

    return host_lines(activity)
