"""The host's part of a report: sentences, sampled lines as a table and a flame graph, and how long the GPU waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_lines import HostLine, host_lines, phase_samples
from overlapscope.analysis.results import Device, HostUse, LineTime, ThreadUse
from overlapscope.analysis.results import host_parts as parts_of
from overlapscope.base.marks import MAIN_THREAD
from overlapscope.base.words import clean, duration, listed, plural, share, shares_of, unit_for
from overlapscope.catalog.causes import IDLE, IdleCause
from overlapscope.documents import columns as column
from overlapscope.documents.columns import NAME_LIMIT, ColumnOf
from overlapscope.documents.table import Table, table_of
from overlapscope.plugin import recorder_by_id
from overlapscope.report.page import DeviceReport, Page, SampledHost
from overlapscope.report.sentences import WORTH_SAYING
from overlapscope.report.tables import largest, parts_table, trace_column
from overlapscope.trace.op_names import op_words

TITLE = "Host: where a step goes"
_MIN_SHARE = 0.005
"""Smallest share of a step for which a line has a row of its own."""
_SHORT_FORM_ROWS = 8
"""Rows of the table in the short form of a report that has it."""
_MAX_NAMED_CAUSES = 4
"""Number of causes named in a sentence."""
_MAX_NAMED_CALLS = 2
"""Number of functions named that a line calls."""
_NOT_HOST: Final = (IdleCause.UNKNOWN, IdleCause.PROFILER_OVERHEAD)
"""Causes that depend on the host's speed, but not surely on the program."""
_INSIDE = "sys._current_frames"


_NO_LINES = (
    "There is no table of lines, because no stacks were sampled. `overlapscope run` samples them for a few seconds "
    "after the recorded steps; a program that ends sooner, runs a profiler of its own, or takes over 2 s a step has "
    "none."
)
LEGEND = (
    "Each function is below its caller, as wide as its share of the step. Your own code is colored, by line; libraries "
    "are gray. Functions that only call another one, such as _call_impl, are left out. Parts in which the thread "
    "mostly sleeps are hatched. A click on a part enlarges it."
)


class LineRow(Struct, frozen=True):
    """A line, or the lines that take too little time for a row of their own."""

    words: str
    line: HostLine
    finding: str = ""
    """Rule of the finding that names the line."""


def why_no_lines(section: DeviceReport) -> str:
    """Return why a report on a program that uses no GPU has no table of lines; empty for others."""
    sampled = section.trace.sampled
    return _NO_LINES if section.trace.host is not None and (sampled is None or not sampled.lines) else ""


def sentences(section: DeviceReport, host: SampledHost) -> tuple[str, ...]:
    """Return sentences on the samples, and on the time for which the GPU waits for the host."""
    activity = host.activity
    taken = (
        f"Estimated from {plural(host.samples, 'sample')} ({clean(activity.sampler, 40)}) of the main thread in "
        f"{plural(activity.steps, 'step')} without the profiler. A sample stands for {share(1, host.samples)} of a "
        f"step of {duration(host.step_ns)}."
    )
    if activity.sampler == _INSIDE:
        taken += " A thread of the program took them, which favors lines that release the GIL."
    waits = () if section.device is None or not section.usable else (_gpu_waits(section, section.device),)
    return (taken, *_phases(host), *waits)


def _phases(host: SampledHost) -> Iterator[str]:
    """Yield the phases of a step in a sentence, if the stacks show any."""
    samples = {phase: count for phase, count in phase_samples(host.activity).items() if count}
    if samples.keys() - {"other"}:
        times = listed(f"{phase} {duration(host.time_ns(count))}" for phase, count in samples.items())
        yield f"By phase of the step: {times}."


def _gpu_waits(section: DeviceReport, device: Device) -> str:
    by_cause = {
        cause: ns
        for cause, ns in device.idle_by_cause.items()
        if ns and cause in IDLE and IDLE[cause].by_host and cause not in _NOT_HOST
    }
    whole = "a step" if section.steps else "the time"
    if not by_cause:
        return "The recording shows no time for which the GPU waits for the host."
    waits_ns = sum(by_cause.values())
    longest = sorted(by_cause, key=lambda cause: (-by_cause[cause], cause))
    causes = [f"{cause} {duration(by_cause[cause])}" for cause in longest] if len(longest) > 1 else longest
    return (
        f"The GPU waits for the host for {duration(waits_ns)} ({share(waits_ns, device.span_ns)}) of {whole}: "
        f"{listed(causes, _MAX_NAMED_CAUSES)}. Samples don't show the GPU, so a line costs at most its time."
    )


def rows(section: DeviceReport, host: SampledHost) -> tuple[LineRow, ...]:
    """Return the lines of the user's code, most time first, and all small ones together."""
    lines = host_lines(host.activity)
    least = _MIN_SHARE * sum(line.samples for line in lines)
    large = [line for line in lines if line.file and line.samples >= least]
    named = [LineRow(line.place, line, _finding_at(section, line)) for line in large]
    if rest := [line for line in lines if line not in large]:
        together = HostLine("", 0, "", (), sum(line.samples for line in rest), sum(line.running for line in rest))
        named.append(LineRow(plural(len(rest), "other line"), together))
    return tuple(named)


def _finding_at(section: DeviceReport, line: HostLine) -> str:
    """Return the rule of the first finding that names a line; empty if none does."""
    if not line.line:
        return ""
    named = re.compile(rf"(?<![\w.-]){re.escape(line.place)}(?!\d)")
    for finding in section.findings:
        where = finding.where.line if finding.where is not None else None
        if any(named.search(text) for text in (where or "", finding.title, finding.detail)):
            return finding.rule
    return ""


def table(rows: Sequence[LineRow], host: SampledHost) -> Table:
    """Return the rows as a table."""
    unit = unit_for(host.step_ns)
    lines = table_of(
        rows,
        column.text("line", lambda row: row.words, id="place", width=180, flexible=True, heads=True),
        column.text("function", lambda row: row.line.function, width=130, flexible=True),
        column.text(
            "calls",
            lambda row: listed([name for name, _ in row.line.calls], _MAX_NAMED_CALLS),
            width=170,
            flexible=True,
            spare=1,
        ),
        column.time("time", unit, lambda row: host.time_ns(row.line.samples)),
        column.share("%", lambda row: row.line.samples, lambda _: host.samples, id="share", width=70),
        column.time("runnable", unit, lambda row: host.time_ns(row.line.running), short="runnable"),
        column.time("asleep", unit, lambda row: host.time_ns(row.line.samples - row.line.running), short="asleep"),
        column.text("finding", lambda row: row.finding, when=any(row.finding for row in rows), width=110),
        column.text("file", lambda row: row.line.file, width=230, extra=True),
        title="Lines of a step",
    )
    return replace(lines, few=_SHORT_FORM_ROWS)


# -- A step of a program without GPU activity ------------------------------------------------------

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
_LOOP_SHARE = 0.95
"""A function or line with this share of a step is its loop, and no place to start."""


def host_words(section: DeviceReport, part: str) -> str:
    """Return a part of a step in words; a cause of another version by its name."""
    if part == IdleCause.PYTHON and section.trace.host is not None and not section.trace.host.threads:
        return f"in Python or {_ops(section)}, of which none was recorded"
    return f"in {_ops(section)}" if part == "ops" else _WORDS.get(part, clean(part, 40))


def _ops(section: DeviceReport) -> str:
    return recorder_by_id(section.trace.environment.recorder).host_ops


def host_sentence(section: DeviceReport) -> str:
    """Return the parts of a step in a sentence, the longest first, without those that would show as less than 0.1%.

    Example: `A step takes 12.3 ms: 55.0% in ops, 40.0% loading data and 5.0% elsewhere, such as in Python.`
    """
    parts = section.host_parts
    what = "A step takes" if section.steps else "The recording, in which no step is marked, takes"
    shares = shares_of(parts, section.span_ns)
    longest = sorted((name for name, share in shares.items() if share != "< 0.1"), key=lambda name: -parts[name])
    words = [f"{shares[name]}% {host_words(section, name)}" for name in longest]
    return f"{what} {duration(section.span_ns)}{f': {listed(words)}' if words else ''}."


def lost_parts(section: DeviceReport) -> dict[str, int]:
    """Return the parts of a step that a program can save: loading data, waits and communication."""
    known = ("ops", IdleCause.PYTHON, IdleCause.UNRECORDED)
    return {name: ns for name, ns in section.host_parts.items() if name not in known}


def remedy(section: DeviceReport, use: HostUse, least_ns: float) -> str:
    """Return what to do about the largest loss, if it is that large, then about the costliest code."""
    lost = lost_parts(section)
    loss = max(lost, key=lambda name: lost[name], default="")
    loads = lost.get(IdleCause.DATA_LOADING, 0) >= WORTH_SAYING * section.span_ns
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
    return IDLE[name].words.remedy if name in IDLE else ""


def _start(section: DeviceReport, use: HostUse) -> str:
    """Return the code to begin with: the costliest place, or without samples the costliest op."""
    parts, place = section.host_parts, _place(section)
    ops_ns, rest_ns = parts.get("ops", 0), parts.get(IdleCause.PYTHON, 0)
    if place is not None and place[2] < _LOOP_SHARE * section.span_ns:
        return f"Start with {place[0]} ({place[1]}): a step can become at most {duration(place[2])} shorter."
    if max(lost_parts(section).values(), default=0) >= max(ops_ns, rest_ns):
        return ""
    if use.ops and ops_ns > rest_ns:
        longest, took = use.ops[0], duration(section.of_ops(use.ops[0].time_ns))
        return f"Start with the {_ops(section)}: {clean(op_words(longest.op), 80)} takes {took}."
    # Who has timed the step has run it with overlapscope, which says by itself why there are no lines.
    measured = section.plain is not None and section.plain.origin == "measured"
    return "" if place is not None or measured else "overlapscope run shows which lines take the time elsewhere."


def _place(section: DeviceReport) -> tuple[str, str, int] | None:
    """Return the function with the most samples, its costliest line, and its part of a step; None without samples.

    A function with nearly all of a step is its loop, of which the costliest line says more. Lines of a script outside
    functions have nothing in common that could be shortened.
    """
    functions: dict[tuple[str, str], list[LineTime]] = {}
    for line in section.trace.sampled.lines if section.trace.sampled is not None else ():
        where = line.line if line.function == "<module>" else line.line.rpartition(":")[0]
        functions.setdefault((where, line.function), []).append(line)
    if not functions:
        return None
    lines = max(functions.values(), key=lambda lines: sum(line.time_ns for line in lines))
    first, whole_ns = max(lines, key=lambda line: line.time_ns), sum(line.time_ns for line in lines)
    if len(lines) > 1 and whole_ns < _LOOP_SHARE * section.span_ns:
        return clean(first.function, 80), f"mostly {clean(first.line, 80)}", whole_ns
    return clean(first.calls or first.function, 80), clean(first.line, 80), first.time_ns


# -- Tables of a program without GPU activity ------------------------------------------------------


_Row = tuple[str, int | None, Mapping[str, int]]
"""A name, a number of steps, and the parts of such a step."""


def summary(page: Page) -> Table:
    """Return one row for each trace of a program that used no GPU: a step of each."""
    rows = [(page.names[each.number], each.steps or None, each.host_parts) for each in page.sections()]
    steps: ColumnOf[_Row] = column.count("steps", lambda row: row[1])
    return _each_parts("Traces", rows, trace_column(lambda row: row[0]), steps)


def _each_parts(title: str, rows: Sequence[_Row], *head: ColumnOf[_Row] | None) -> Table:
    """Return a table of steps on the host and of their parts, which add up to them, all in one unit."""
    unit = unit_for(max(sum(parts.values()) for _, _, parts in rows))
    named = {"loading": IdleCause.DATA_LOADING, "ops": "ops", "elsewhere": IdleCause.PYTHON}
    others = sorted({name for _, _, parts in rows for name, ns in parts.items() if ns} - {*named.values()})
    named |= {clean(name, 40): name for name in others}

    def time(title: str, name: str) -> ColumnOf[_Row]:
        return column.time(title, unit, lambda row: row[2].get(name, 0), short=title)

    times = [time(title, name) for title, name in named.items()]
    return table_of(rows, *head, column.time("step", unit, lambda row: sum(row[2].values())), *times, title=title)


def _thread_words(thread: ThreadUse) -> str:
    """Return the name of a thread, or else its number, such as `thread 10435`."""
    if thread.name == MAIN_THREAD:
        return "the main thread"
    return clean(thread.name, NAME_LIMIT) or f"thread {thread.thread}"


def host_parts(section: DeviceReport) -> Table:
    """Return the partition of a step on the host, or of the recording if no step is marked."""
    use, parts, unit = section.trace.host, section.host_parts, section.unit
    if use is None:
        return Table("Host", ())
    thread = next((_thread_words(thread) for thread in use.threads if thread.steps), "")
    on = f", on {thread}" if thread else ""
    title, whole = (f"Where a step goes{on}", "step") if section.steps else (f"Where the time goes{on}", "all")
    shares = shares_of(parts, section.span_ns)
    lines = [
        (host_words(section, name), ns, shares[name]) for ns, name in largest((ns, name) for name, ns in parts.items())
    ]
    return parts_table(title, unit, lines, (whole, section.span_ns))


def host_tables(section: DeviceReport, *, most: int | None = None) -> list[Table]:
    """Return the parts, ops and threads of a trace without GPU activity, at most `most` rows of each."""
    use, sampled = section.trace.host, section.trace.sampled
    if use is None:
        return []
    unit, whole_ns, count = section.unit, section.span_ns, use.per_step.steps
    a_step = "a step" if section.steps else "all"

    def brief(table: Table) -> Table:
        hidden = len(table.rows[most:]) if most is not None else 0
        return replace(
            table, rows=table.rows[:most], note=f"Add -v for {plural(hidden, 'more row')}." if hidden else ""
        )

    ops = table_of(
        use.ops,
        column.text("outermost op", lambda op: op_words(op.op), flexible=True, heads=True),
        column.count("count", lambda op: op.count, among=count),
        column.time("time", unit, lambda op: section.of_ops(op.time_ns), short=f"{unit.name} {a_step}"),
        column.share("%", lambda op: section.of_ops(op.time_ns), lambda _: whole_ns),
        title="Ops on the host",
    )
    lines = table_of(
        # Where the samples themselves are at hand, `table` has more columns.
        sampled.lines if section.host is None and sampled is not None else (),
        column.text("line", lambda line: line.line, flexible=True, heads=True),
        column.text("calls", lambda line: line.calls, flexible=True),
        column.time("time", unit, lambda line: line.time_ns, short=f"{unit.name} {a_step}"),
        title="Lines on the host, sampled without the profiler",
    )
    recorded_ns = sum(step.span_ns for step in use.judged)
    threads = table_of(
        [thread for thread in use.threads if not thread.steps],
        column.text("other thread", _thread_words, heads=True),
        column.share("% of a step in ops", lambda thread: thread.busy_ns, lambda _: recorded_ns),
        title="Other threads",
    )
    return [host_parts(section), *map(brief, (lines, ops, threads))]


def host_steps(section: DeviceReport) -> Table:
    """Return each step on the host as recorded."""
    use = section.trace.host
    if use is None or not use.by_steps:
        return Table("Steps", ())
    rows = [(step.name, None, parts_of(step)) for step in use.steps]
    name: ColumnOf[_Row] | None = column.text("recorded step", lambda row: row[0], flexible=True, heads=True)
    return _each_parts("Steps on the host, as recorded", rows, name)
