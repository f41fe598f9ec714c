"""The host's part of a report: sampled lines of a step as a table and a flame graph, and how long the GPU waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_lines import FlamePart, HostLine, flame, host_lines, phase_samples, place
from overlapscope.analysis.results import Device
from overlapscope.base.words import Unit, clean, duration, listed, plural, share, unit_for
from overlapscope.catalog.causes import IDLE, IdleCause
from overlapscope.documents import columns as column
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, escape, figure, legible
from overlapscope.documents.model import Block, Chart, Text
from overlapscope.documents.table import Table, table_of
from overlapscope.report.page import DeviceReport, SampledHost

TITLE = "Host: where a step goes"
_LEAST_SHARE = 0.005
"""Smallest share of a step for which a line has a row of its own."""
_FEW = 8
"""Rows of the table in the short form of a report that has it."""
_CAUSES = 4
"""Number of causes named in a sentence."""
_CALLS = 2
"""Number of functions named that a line calls."""
_LEVELS = 24
"""Maximum number of rows of a flame graph. A click on a part shows those below."""
_ROW_PX = 24
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
    "are gray. Parts in which the thread mostly sleeps are hatched. A click on a part enlarges it."
)


class LineRow(Struct, frozen=True):
    """A line, or the lines that take too little time for a row of their own."""

    words: str
    line: HostLine
    finding: str = ""
    """Rule of the finding that names the line."""


def blocks(section: DeviceReport) -> Iterator[Block]:
    """Yield sentences, the flame graph and the table; without samples of a program that uses no GPU, the reason."""
    host = section.host
    if host is None:
        if missing := why_no_lines(section):
            yield Text(missing, tone="muted")
        return
    yield from map(Text, sentences(section, host))
    yield Chart(f"trace-{section.number}-host", TITLE, lambda dark: flame_graph(host, dark), note=LEGEND, wide=True)
    yield table(rows(section, host), host)


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
        f"{listed(causes, _CAUSES)}. Samples don't show the GPU, so a line costs at most its time."
    )


def rows(section: DeviceReport, host: SampledHost) -> tuple[LineRow, ...]:
    """Return the lines of the user's code, most time first, and all small ones together."""
    lines = host_lines(host.activity)
    least = _LEAST_SHARE * sum(line.samples for line in lines)
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
    unit = unit_for(round(host.step_ns))
    lines = table_of(
        rows,
        column.text("line", lambda row: row.words, id="place", width=180, flexible=True, heads=True),
        column.text("function", lambda row: row.line.function, width=130, flexible=True),
        column.text("calls", lambda row: _calls(row.line), width=170, flexible=True, spare=1),
        column.time("time", unit, lambda row: host.time_ns(row.line.samples)),
        column.share("%", lambda row: row.line.samples, lambda _: host.samples, id="share", width=70),
        column.time("runnable", unit, lambda row: host.time_ns(row.line.running), short="runnable"),
        column.time("asleep", unit, lambda row: host.time_ns(row.line.samples - row.line.running), short="asleep"),
        column.text("finding", lambda row: row.finding, when=any(row.finding for row in rows), width=110),
        column.text("file", lambda row: row.line.file, width=230, extra=True),
        title="Lines of a step",
    )
    return replace(lines, few=_FEW)


def _calls(line: HostLine) -> str:
    return listed([name for name, _ in line.calls], _CALLS) if line.calls else ""


def flame_graph(host: SampledHost, dark: bool) -> Figure:
    """Return the calls of the main thread in an average step, each below its caller."""
    colors = palette(dark)
    parts = flame(host.activity)
    running = sum(part.running for part in parts if part.caller < 0)
    unit = unit_for(round(host.step_ns))
    step = FlamePart(-1, "", 0, "step", False, host.samples, running)
    every = (step, *parts)
    fills = [colors["panel"], *(_fill(part, colors) for part in parts)]
    drawn = {
        "type": "icicle",
        "ids": [str(number) for number in range(len(every))],
        "parents": ["", *(str(part.caller + 1) for part in parts)],
        "labels": ["step", *map(_label, parts)],
        "values": [part.samples for part in every],
        "branchvalues": "total",
        "maxdepth": _LEVELS,
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": False},
        # By default, parts that call nothing are paler, and their text is hard to read.
        "leaf": {"opacity": 1},
        "marker": {
            "colors": fills,
            "line": {"color": colors["panel"], "width": 1},
            "pattern": {
                "shape": ["/" if part is not step and 2 * part.running < part.samples else "" for part in every],
                "fillmode": "overlay",
                "size": 6,
                "fgopacity": 0.25,
            },
        },
        "textinfo": "label",
        "textfont": {"color": [legible(fill) for fill in fills]},
        "customdata": [_hover(part, host, unit) for part in every],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    height = _ROW_PX * (min(_depth(parts), _LEVELS - 1) + 1) + 16
    # Texts that do not fit are left out rather than drawn in small.
    return figure([drawn], dark, height=height, showlegend=False, uniformtext={"minsize": 11, "mode": "hide"})


def _fill(part: FlamePart, colors: dict[str, str]) -> str:
    return colors["accent" if part.is_own else "cpu-op"]


def _depth(parts: tuple[FlamePart, ...]) -> int:
    """Return the number of functions above one another."""
    depths: list[int] = []
    for part in parts:
        depths.append(1 if part.caller < 0 else depths[part.caller] + 1)
    return max(depths, default=0)


def _label(part: FlamePart) -> str:
    if not part.function:
        return "other"
    return escape(f"{part.function} ({place(part.file, part.line)})" if part.is_own else part.function)


def _hover(part: FlamePart, host: SampledHost, unit: Unit) -> str:
    where = f"<br>{escape(place(part.file, part.line), 120)}" if part.file else ""
    return (
        f"{escape(part.function or 'other parts, each below 0.5%', 120)}{where}"
        f"<br>{unit.text(host.time_ns(part.samples))} a step ({share(part.samples, host.samples)}), "
        f"{unit.text(host.time_ns(part.samples - part.running))} of it asleep"
    )
