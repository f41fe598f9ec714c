"""Trust in a trace, judged before any number. `docs/how-it-works/trust.md` explains each check.

A warning means that some numbers are less exact. A failure says which numbers are unknown, and the analysis leaves
those out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from overlapscope.analysis.missing_ops import find_unanswered, launched_parts, recorded_launches
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.results import Check, Trust
from overlapscope.base.grouping import rows_by
from overlapscope.base.kept import kept
from overlapscope.base.words import clean, duration, fill, listed, plural
from overlapscope.plugin import recorder_by_id
from overlapscope.trace import op_names
from overlapscope.trace.calls import records_captures
from overlapscope.trace.lost import EVERYTHING, GPU_OPS, PART_OF_KIND, PARTS_IN_WORDS, Part, in_order
from overlapscope.trace.model import I64, HostEvents, Kind, Trace
from overlapscope.trace.servers import front_end, is_capture

CLOCK_TOLERANCE_NS = 50_000
"""CPU and GPU clocks are matched to some 10 us. A GPU op that begins before its launch by more than this is worth a
warning."""
CLOCK_LIMIT_NS = 1_000_000
"""Minimum skew at which host and device times can't be compared."""
_US_NS = 1_000
_MAX_NAMED_CALLS = 4
"""Maximum number of calls to name."""
UNTOUCHED_SHARE = 0.001
"""Maximum share of the host's time that events without a duration may have taken without touching a figure."""
_UNTOUCHED = "They can't have lasted long enough to matter."


class Judgement(NamedTuple):
    """Outcome of a check."""

    status: Literal["ok", "warn", "fail"]
    detail: str
    lost: Iterable[Part] | None = None
    """Parts of the recording that may be lost or wrong."""


ok = partial(Judgement, "ok")
"""Nothing was found."""
warn = partial(Judgement, "warn")
"""Some numbers are less exact."""
fail = partial(Judgement, "fail")
"""Some numbers are unknown."""


def as_checks(judgements: Mapping[str, Judgement | None]) -> tuple[Check, ...]:
    """Return the checks that were made, given their outcomes by id."""
    return tuple(
        Check(id=id, status=each.status, detail=each.detail, lost=None if each.lost is None else in_order(each.lost))
        for id, each in judgements.items()
        if each is not None
    )


@kept()
def judge_file(trace: Trace) -> tuple[Check, ...]:
    """Check the source and the recording as a whole."""
    of_gpu = {
        "copy-sizes": _sizes(trace),
        "gpu-activity": _activity(trace),
        "clock-skew": _clock(trace),
        "dropped-ops": _dropped(trace),
        "copy-directions": _directions(trace),
        "graphs": _graphs(trace),
    }
    return as_checks(_of_host(trace) | of_gpu)


def judge_host(trace: Trace) -> Trust:
    """Judge a recording without a GPU as a whole."""
    return verdict(as_checks(_of_host(trace)))


def _of_host(trace: Trace) -> dict[str, Judgement | None]:
    return {"file-complete": _complete(trace), "events-readable": _readable(trace), "durations": _times(trace)}


def verdict(checks: Iterable[Check]) -> Trust:
    """Combine checks: the worst of each id over the devices, and the verdict."""
    severity = {"ok": 0, "warn": 1, "fail": 2}
    worst: dict[str, Check] = {}
    for check in checks:
        if check.id not in worst or severity[check.status] > severity[worst[check.id].status]:
            worst[check.id] = check
    statuses = {check.status for check in worst.values()}
    if "gpu-activity" in worst and worst["gpu-activity"].status == "fail":
        return Trust(verdict="unusable", checks=tuple(worst.values()))
    return Trust(verdict="trusted" if statuses == {"ok"} else "degraded", checks=tuple(worst.values()))


def clocks_agree(checks: Iterable[Check]) -> bool:
    """Return whether host and device times can be compared, according to the checks of the file."""
    return not any(check.id == "clock-skew" and check.status == "fail" for check in checks)


def _complete(trace: Trace) -> Judgement:
    if not trace.damage.truncated:
        return ok("The file is complete.")
    return warn(
        f"The file is cut off: its last {trace.damage.lost_bytes} bytes hold no whole event, and what "
        "followed is missing. All whole events were read.",
        EVERYTHING,
    )


def _counted(counts: Counter[Part]) -> str:
    """Return counts as text, such as `copies between host and device (4), runtime calls (2)`."""
    return ", ".join(f"{PARTS_IN_WORDS[part]} ({counts[part]})" for part in in_order(counts))


def _readable(trace: Trace) -> Judgement:
    damage = trace.damage
    if not damage.lost_events and not damage.repaired_events:
        return ok("All events could be read.")
    example = f" First: {damage.examples[0]}." if damage.examples else ""
    return warn(
        f"Some events are damaged: {damage.repaired_events} could be repaired, {damage.lost_events} are lost.{example}",
        # Lost events may be of any part.
        EVERYTHING if damage.lost_events else (),
    )


def _times(trace: Trace) -> Judgement:
    left_out = Counter({part: count for part, count in trace.damage.impossible_by.items() if part in PARTS_IN_WORDS})
    timeless, touched = _timeless(trace)
    if not trace.damage.impossible_times and not timeless:
        return ok("All times are possible.")
    sentences = []
    if trace.damage.impossible_times:
        sentences.append(
            f"{plural(trace.damage.impossible_times, 'event')} with an impossible time (negative, or longer than the "
            f"recording) {'was' if trace.damage.impossible_times == 1 else 'were'} left out: {_counted(left_out)}."
        )
    if timeless:
        count = timeless.total()
        have = "has no duration, or one" if count == 1 else "have no duration, or one"
        sentences.append(f"{plural(count, 'event')} {have} that is impossibly short: {_counted(timeless)}.")
    return warn(
        f"{' '.join(sentences)} "
        f"{f'The {trace.gpu} may look idle where they ran.' if left_out or touched else _UNTOUCHED}",
        {*left_out, *touched},
    )


def _sizes(trace: Trace) -> Judgement:
    wrong = Counter({part: count for part, count in trace.damage.impossible_sizes.items() if part in PARTS_IN_WORDS})
    if not wrong:
        return ok("All sizes are possible.")
    count = wrong.total()
    return warn(
        f"{plural(count, f'{trace.gpu} op')} {'has' if count == 1 else 'have'} an impossible size (a copy at over 1 "
        f"TB/s, between devices at over 10, or more than 64 bits hold): {_counted(wrong)}. Bytes and bandwidths leave "
        "that out; the times may be wrong too.",
        wrong,
    )


def _timeless(trace: Trace) -> tuple[Counter[Part], set[Part]]:
    """Return the number of events without a duration in each part, and the parts whose figures they touch.

    In a file with whole microseconds, shorter events have no duration, so GPU ops are reported only if all ops of a
    kind have none. An event of the host lasted at most until the next one on its thread began, so that a few of them
    can't hide anything that matters; steps always do.
    """
    ops = trace.gpu_ops
    length = ops.end_ns - ops.start_ns
    coarse = not any(
        ((table.start_ns - trace.base_ns) % _US_NS).any() or ((table.end_ns - table.start_ns) % _US_NS).any()
        for table in (ops, trace.cpu_ops)
    )
    none = length == 0
    timeless: Counter[Part] = Counter()
    for kind, part in PART_OF_KIND.items():
        of_kind = ops.kind == kind
        timeless[part] += int((of_kind & none).sum()) if not coarse or none[of_kind].all() else 0
    hosts: tuple[tuple[Part, HostEvents], ...] = (
        ("calls", trace.runtime_calls),
        ("ops", trace.cpu_ops),
        ("ranges", trace.annotations),
    )
    touched = {*+timeless}
    for part, table in hosts if not coarse else ():
        none = table.end_ns == table.start_ns
        if not none.any():
            continue
        timeless[part] = int(none.sum())
        longest_ns, of_step = _longest(table), part == "ranges" and (is_step(table) & none).any()
        if of_step or longest_ns[none].sum() > UNTOUCHED_SHARE * longest_ns.sum():
            touched.add(part)
    return +timeless, touched


def _longest(table: HostEvents) -> I64:
    """Return the maximum possible length of each event of the host: until the next one on its thread began."""
    longest = np.zeros(len(table), np.int64)
    for _, of_thread in rows_by(table.thread):
        start = table.start_ns[of_thread]
        longest[of_thread] = np.append(start[1:], max(int(table.end_ns[of_thread].max()), int(start[-1]))) - start
    return longest


def _activity(trace: Trace) -> Judgement:
    if records_captures(trace):
        notes = trace.annotations
        marks = sorted({notes.name(row) for row in np.flatnonzero(notes.named(is_capture)).tolist()})
        of = f" ({clean(listed(marks, 3))})" if marks else ""
        return fail(
            f"This recording is of captures of {fill('{graph}s', trace.gpu)}{of}: what is launched in a capture does "
            f"not run, so nothing can be said of the {trace.gpu}. Record later, while the program launches the graphs."
        )
    if (server := front_end(trace)) is not None:
        return fail(
            f"This recording is of the front end of {server}, which does not work on the {trace.gpu}. Pass the "
            "recordings of its workers, whose names have the rank."
        )
    if len(trace.gpu_ops) and (trace.gpu_ops.end_ns > trace.gpu_ops.start_ns).any():
        return ok(f"{plural(len(trace.gpu_ops), f'{trace.gpu} op')} on {plural(len(trace.devices), 'device')}.")
    if trace.damage.truncated:
        return fail(
            f"What is left of the file has no {trace.gpu} activity. Kineto writes it behind the CPU's, so it was "
            "probably cut off: copy or record the trace again.",
            EVERYTHING,
        )
    defect = _activity_lost(trace)
    if defect:
        return fail(
            f"{defect}. That is a defect of the recording, and overlap cannot be measured: record again.",
            {*GPU_OPS, "calls", "syncs", "clocks"},
        )
    recorder = recorder_by_id(trace.recorder)
    warnings = " ".join(f'"{clean(text)}"' for text in trace.warnings)
    gpus = clean(listed(sorted(set(trace.device_names.values())), 3))
    why = (
        f"The file names {gpus}, but has no {trace.gpu} events. If the program uses it, record with "
        f"{recorder.gpu_activity}. "
        if gpus
        else "The trace has no GPU activity that overlapscope reads: it was recorded without a GPU, without "
        f"{recorder.gpu_activity}, or on a device of another kind. "
    )
    return fail(
        f"{why}{f'{recorder.name} itself says: {warnings} ' if warnings else ''}Overlap cannot be measured.",
        # The host's part of the recording is there.
        {*GPU_OPS, "calls", "syncs", "clocks"},
    )


def _activity_lost(trace: Trace) -> str:
    """Return a clause on GPU work that the recording lost, though it shows that there was some; empty if it doesn't."""
    left_out = Counter({part: count for part, count in trace.damage.impossible_by.items() if part in GPU_OPS}).total()
    if timeless := left_out + len(trace.gpu_ops):
        return f"The profiler recorded {plural(timeless, f'{trace.gpu} op')} without a possible time"
    if launches := len(recorded_launches(trace)[0]):
        return f"The profiler recorded {plural(launches, 'launch')} of {trace.gpu} work, but no {trace.gpu} op"
    return ""


def _clock(trace: Trace) -> Judgement:
    ops = trace.gpu_ops
    rows = np.flatnonzero(ops.launch >= 0)
    early = trace.runtime_calls.start_ns[ops.launch[rows]] - ops.start_ns[rows]
    worst = int(early.max(initial=0))
    if worst <= CLOCK_TOLERANCE_NS:
        return ok(f"No {trace.gpu} op begins before its launch.")
    count = int((early > CLOCK_TOLERANCE_NS).sum())
    begin = f"{plural(count, f'{trace.gpu} op')} {'begins before its' if count == 1 else 'begin before their'} launch"
    seen = f"{begin}, by up to {worst / 1e3:.1f} us: the clocks disagree."
    if worst <= CLOCK_LIMIT_NS:
        return warn(f"{seen} Causes found on the host may be wrong by as much.")
    return fail(f"{seen} Host and device cannot be compared: causes that need the host are unknown.", ("clocks",))


def _dropped(trace: Trace) -> Judgement:
    launches, unanswered = recorded_launches(trace)[0], find_unanswered(trace)
    dropped, late = unanswered.dropped, unanswered.cut_off
    if len(launches) and not len(trace.gpu_ops):
        return fail(
            f"{plural(len(launches), 'recorded launch')}, and no {trace.gpu} op. "
            f"Usual reasons: the profiler stopped before the {trace.gpu} had finished (synchronize first); it had no "
            f"warm-up step (schedule(warmup=1)); the user may not read the {trace.gpu}'s records (see NVIDIA's "
            f"ERR_NVGPUCTRPERM); or another profiler, such as nsys, ncu or DCGM, used the {trace.gpu}.",
            GPU_OPS,
        )
    if len(dropped):
        counts = Counter(map(trace.runtime_calls.name, dropped.tolist())).most_common(_MAX_NAMED_CALLS)
        named = ", ".join(f"{name} {plural(count, 'time')}" for name, count in counts)
        return warn(
            f"{len(dropped):,} of {plural(len(launches), 'recorded launch')} {'has' if len(dropped) == 1 else 'have'} "
            f"no {trace.gpu} op: the profiler dropped {'it' if len(dropped) == 1 else 'them'} "
            f"({named}). Where nothing else ran, the {trace.gpu}'s work is unknown.",
            launched_parts(trace, dropped),
        )
    complete = f"Every recorded launch has its {trace.gpu} op"
    if len(late):
        tail = duration(int(trace.runtime_calls.end_ns.max() - trace.runtime_calls.start_ns[late[0]]))
        return ok(f"{complete}, except {len(late):,} in the last {tail}: the recording ended before they ran.")
    if len(unanswered.empty):
        memsets = plural(len(unanswered.empty), "memset")
        return ok(f"{complete}, except {memsets} of unknown size: a memset of no bytes has none.")
    return ok(f"{complete}.")


def _directions(trace: Trace) -> Judgement | None:
    """Judge copies whose direction is unknown; traces without any get no check."""
    ops, calls = trace.gpu_ops, trace.runtime_calls
    unclear = (ops.kind == Kind.OTHER) & ops.named(op_names.hides_direction)
    # ROCm copies by kernels; the call that launched one may state the direction.
    stated = calls.named(op_names.states_device_copy)
    launched = unclear & (ops.launch >= 0)
    unclear[launched] = ~stated[ops.launch[launched]]
    count = int(unclear.sum())
    if not count:
        return None
    return warn(
        f"{plural(count, 'copy')} {'does' if count == 1 else 'do'} not state a direction, so they count as work within "
        "the device; they may be copies between host and device.",
        ("copies", "other"),
    )


def _graphs(trace: Trace) -> Judgement | None:
    """Judge graphs recorded as single ops, which only Nsight Systems does; other traces get no check."""
    if not trace.whole_graphs:
        return None
    count = plural(trace.whole_graphs, fill("{graph}", trace.gpu))
    return warn(
        f"{count} {'was' if trace.whole_graphs == 1 else 'were'} recorded as one op each and count as compute: "
        "kernels, copies and gaps inside are unknown.",
        ("compute", "comm", "copies", "other"),
    )
