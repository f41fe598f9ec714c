"""Parts of pages, which lay out results that were computed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component
from msgspec import Struct, field
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.figures import Period, Window
from overlapscope.analysis.periods import host_step
from overlapscope.analysis.results import Device
from overlapscope.analysis.strip import most_informative
from overlapscope.base.words import clean, part_of, share
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import CAUSES, Subject
from overlapscope.dashboard import render
from overlapscope.dashboard.context import PageContext, UrlState
from overlapscope.documents.model import Block, Chart, Items, Section, Span, Text
from overlapscope.documents.table import Table
from overlapscope.report import charts, host_view, lists
from overlapscope.report.document import answer, strip_title, trust
from overlapscope.report.tables import cause_table, causes_of
from overlapscope.timeline import Lanes

SAMPLES = "open-samples"
"""Id of the button that opens the samples."""
_HOST_ROWS = 8
"""Rows of each table, for a trace in which nothing ran on a GPU."""
_MARGIN_SHARE = 0.02
"""Margin on either side of two timelines, as a share of the visible span."""


def page(title: str, *children: Component, lead: str = "") -> Component:
    """Return a page with its title, and a sentence on the question it answers."""
    leads = [dmc.Text(lead, c="dimmed", size="sm")] if lead else []
    return dmc.Stack([html.Div([dmc.Title(title, order=2), *leads]), *children], gap="md", maw=1500)


def which_program(context: PageContext) -> str:
    """Return which program the figures of a page describe; empty if the trace has no plain program."""
    if context.loaded.plain is None:
        return ""
    if context.opened is context.loaded:
        return "These figures describe the recording."
    return "These figures describe the program without the profiler, which the recording is replayed to match."


def frame_note(context: PageContext, note: str = "") -> str:
    """Return a note on a table, after the sentence that its figures are of an average step, if they are."""
    return f"Figures are of an average step. {note}".strip() if context.section.steps else note


def drawn(context: PageContext, title: str, *blocks: Block | Component, **of_panel: Any) -> Component:
    """Return a box with a title and blocks of a document (`render.panel`)."""
    return render.panel(title, dmc.Stack(render.draw(blocks, context.dark), gap="sm", mt="xs"), **of_panel)


def select(label: str, id: str, choices: Iterable[str], value: str | None) -> Component:
    """Return a choice of one of many names."""
    return dmc.Select(
        id=id,
        label=label,
        data=[{"value": choice, "label": clean(choice, 120)} for choice in choices],
        value=value,
        searchable=True,
        placeholder="choose",
        allowDeselect=False,
        nothingFoundMessage="none",
        style={"flex": "1 1 280px", "minWidth": 0},
    )


def table_panel(context: PageContext, table: Table, id: str = "", ends: Sequence[Component | None] = ()) -> Component:
    """Return a table to be read in a box, with its title and note; `ends` are added to the ends of its rows."""
    return render.panel(table.title, render.table(table, context.dark, id, ends), note=table.note)


def empty(*sentences: str | list[Component | str]) -> Component:
    """Return the reason why there is nothing to show."""
    shown = [render.words(part, False) if isinstance(part, str) else part for part in sentences]
    return dmc.Stack([dmc.Text(part, c="dimmed") for part in shown], gap=4, py="xs")


# -- The answer ------------------------------------------------------------------------------------


def verdict(context: PageContext, *, finding_beside: bool = False, id: str = "verdict") -> Component:
    """Return the verdict on the device; `finding_beside` leaves out the sentences that repeat a finding."""
    section = context.section
    blocks = tuple(answer(section, finding_beside=finding_beside))
    (drawn,) = render.draw([Section(blocks, section.title, "verdict", id=id)], context.dark)
    return drawn


def unusable(context: PageContext) -> Component:
    """Return the host's activity in a program without a GPU, or the reason for missing figures."""
    section = context.section
    again = Text("To record again: `overlapscope run train.py` sets all that is needed.", "muted")
    why: list[Block] = [trust(section, passed=False), again] if section.trace.host is None else []
    tables = (*host_view.host_tables(section), host_view.host_steps(section))
    shown = [table_panel(context, _shortened(table)) for table in tables if table.rows]
    return dmc.Stack([verdict(context), *render.draw(why, context.dark), *shown, *host(context)], maw=1500)


def _shortened(table: Table) -> Table:
    hidden = len(table.rows) - _HOST_ROWS
    return replace(table, rows=table.rows[:_HOST_ROWS], note=f"{hidden:,} more rows.") if hidden > 0 else table


# -- Links to the timeline -------------------------------------------------------------------------


def timeline_link(context: PageContext, window: Window | None, text: str = "show in timeline") -> list[Component]:
    """Return a link to a place in the timeline; nothing if the place is unknown."""
    return [dcc.Link(f"{text} →", href=context.timeline_href(window), className="timeline-link")] if window else []


def grid_panel(
    context: PageContext,
    table: Table,
    id: str,
    *,
    note: str = "",
    nothing: str = "",
    opens: Sequence[str | None] | None = None,
) -> Component:
    """Return a table that can be sorted, searched and saved (`assets/grids.js`), in a box with its title.

    Each row links to its place in the timeline or, with `opens`, to a URL. `nothing` replaces a table without rows.
    """
    if not table.rows:
        return render.panel(table.title, empty(nothing))
    tools = [dmc.Button("CSV", id=f"{id}-csv", variant="default", size="compact-sm")]
    if len(table.rows) > render.TALLEST_GRID:
        search = dmc.TextInput(id=f"{id}-search", placeholder="Search", size="xs", w=180, **{"aria-label": "search"})
        tools.insert(0, search)
    beside = dmc.Group(tools, gap="xs", wrap="nowrap")
    places = [None if row.place is None else Window(start_ns=row.place[0], end_ns=row.place[1]) for row in table.rows]
    hrefs = opens or [None if place is None else context.timeline_href(place) for place in places]
    grid = render.grid(table, context.dark, id, hrefs, "open" if opens else "timeline")
    return render.panel(table.title, grid, beside=beside, note=note)


def causes(context: PageContext, device: Device, subject: Subject) -> Component:
    """Return a box with the causes of a bucket, their meanings and remedies, and the evidence for them."""
    section, lengths = context.section, causes_of(device, subject)
    table = cause_table(device, subject, section.unit)
    if not lengths:
        return render.panel(table.title, empty("None in this recording."))
    ns, bucket, recorder = sum(lengths.values()), bucket_of(subject), section.trace.environment.recorder
    when = "In each step" if section.steps else "In all"
    words = {cause: CAUSES[subject][cause].words for cause in lengths}
    legend = Items(
        tuple(
            (Span(cause, strong=True), f": {each.meaning} {each.helps(recorder)[0]}") for cause, each in words.items()
        )
    )
    return drawn(
        context,
        table.title,
        Section((table, legend), kind="columns"),
        grid_panel(context, lists.evidence(section, device, subject), f"{subject}-evidence"),
        note=f"{when}, {bucket.meaning} for {part_of(ns, device.span_ns)} ({share(ns, device.span_ns)}).",
    )


# -- The host --------------------------------------------------------------------------------------


def host(context: PageContext) -> list[Component]:
    """Return the sampled lines of a step as a flame graph and a table whose rows open findings, if there are any."""
    section, sampled = context.section, context.section.host
    if sampled is None:
        missing = host_view.why_no_lines(section)
        return [empty(missing)] if missing else []
    overview, rows = context.url.href("overview"), host_view.rows(section, sampled)
    sentences = map(Text, host_view.sentences(section, sampled))
    flame = partial(charts.flame_graph, sampled, source=context.source)
    opens = [overview if row.finding else None for row in rows]
    chart = Chart("host-flame", "", flame, note=host_view.LEGEND)
    lines = grid_panel(context, host_view.table(rows, sampled), "host-lines", opens=opens)
    return [drawn(context, host_view.TITLE, *sentences, chart, lines)]


# -- Two timelines ---------------------------------------------------------------------------------


class TimelineSide(Struct, frozen=True):
    """A timeline of two that are above one another and move together."""

    name: str
    trace: str
    origin_ns: int
    windows: tuple[Window, ...]
    """Windows to show, of which the start of the first is aligned with the other side's."""
    of: dict[str, Any]
    """Parameters of its requests, besides the trace."""
    more: dict[str, Any] = field(default_factory=dict)
    """The `device` to scroll to, if there may be several, and the `kinds` of its lanes to show, if not all."""


def side_at(
    name: str, trace: str, lanes: Lanes, figures: Device, step: Period | None, of: dict[str, Any], **more: Any
) -> TimelineSide:
    """Return a side at a step, on the device and on the host; without a step, at everything on the device."""
    windows = [figures.window] if step is None else [step.window, host_step(lanes.analysis.trace, step.name)]
    return TimelineSide(name, trace, lanes.origin_ns, tuple(filter(None, windows)), of, more)


def linked_timelines(context: PageContext, page: str, sides: Sequence[TimelineSide]) -> dict[str, Any]:
    """Return the data of timelines for the browser (`assets/linked_timelines.js`)."""
    shown = [(window, side.windows[0].start_ns) for side in sides for window in side.windows]
    start = min(window.start_ns - zero for window, zero in shown)
    end = max(window.end_ns - zero for window, zero in shown)
    margin = round(_MARGIN_SHARE * (end - start))
    return {
        "sides": [
            {
                "element": _mount(page, side.name),
                "trace": side.trace,
                "of": side.of,
                "offset": side.windows[0].start_ns - side.origin_ns,
                **side.more,
            }
            for side in sides
        ],
        "view": {"start": start - margin, "end": end + margin},
        "palette": context.colors,
    }


def timelines_panel(page: str, data: dict[str, Any] | None, captions: dict[str, str], note: str) -> Component:
    """Return the places where the browser mounts them, each below its caption."""
    places = [
        dmc.Stack(
            [dmc.Text(f"{name}: {caption}", size="sm", fw=600), html.Div(id=_mount(page, name))],
            gap=4,
            className="compare-timeline",
        )
        for name, caption in captions.items()
    ]
    return render.panel("Timelines", *_mounted(page, data), dmc.Stack(places, gap="sm"), note=note)


def _mounted(page: str, data: dict[str, Any] | None) -> list[Component]:
    return [dcc.Store(id=f"{page}-timelines", data=data), html.Div(id=f"{page}-mounted", hidden=True)]


def step_timeline(context: PageContext, page: str, analysis: DeviceAnalysis) -> Component:
    """Return the device's median step, at the scale of the terminal's strip, with a link to the page Timeline."""
    opened, extent = context.opened, most_informative(analysis.result)
    more = {"device": analysis.result.device, "kinds": ("overlap", "stream")}
    of = context.of | {"devices": "only"}
    side = TimelineSide("step", opened.id, opened.bounds_ns[0], (extent.window,), of, more)
    link = dcc.Link("open in timeline →", href=context.url.href("timeline"), className="timeline-link")
    title = dmc.Text(strip_title(extent), fw=600, size="sm")
    shown = [
        dmc.Group([title, link], justify="space-between", gap="xs", fz=14, mb=4),
        *_mounted(page, linked_timelines(context, page, [side])),
        html.Div(id=_mount(page, side.name), className="step-timeline"),
    ]
    return dmc.Paper(shown, withBorder=True, px="md", py=8)


def _mount(page: str, name: str) -> str:
    return f"{page}-timeline-{name}"


# -- Notices instead of a page ---------------------------------------------------------------------


def notice(title: str, *lines: str | Component) -> Component:
    """Return a title and instructions, in the middle of the page."""
    shown = [dmc.Title(title, order=3), *(empty(line) if isinstance(line, str) else line for line in lines)]
    return dmc.Center(dmc.Stack(shown, gap="sm", maw=620), mih="50vh")


def nothing_opened(url: UrlState, *, reports: bool) -> Component:
    """Return the notice of a server without traces; `reports` is whether it has a report of ranks."""
    ranks = empty(["The report of ranks is on the page ", dmc.Anchor("Ranks", href=url.href("ranks")), "."])
    return notice(
        "No trace is open",
        *([ranks] if reports else []),
        "Drop a trace onto this page, or choose one with Open. A trace is a file of torch.profiler (.json, .json.gz or "
        ".json.zst), of JAX (.xplane.pb) or of Nsight Systems (.sqlite).",
        "To record one: `overlapscope run --open train.py`",
        samples_button(),
    )


def samples_button() -> Component:
    """Return a button that opens the samples."""
    return dmc.Button("Open the samples", id=SAMPLES, variant="default", size="xs", w="fit-content")


def no_trace(id: str) -> Component:
    """Return the notice for a trace that this server may not show."""
    return notice(
        f"There is no trace {clean(id, 100)!r} here",
        "The dashboard shows the traces that it was started with and those that were dropped onto the page. "
        "Choose one at the top.",
    )


def progress(sentence: str, part: float | None) -> Component:
    """Return a progress bar; `part` is the completed fraction, if known."""
    value, moves = 100 if part is None else round(100 * part), part is None
    bar = dmc.Progress(value=value, animated=moves, striped=moves, **{"aria-label": "loading"})
    return dmc.Stack([dmc.Text(sentence), bar], w=420, maw="100%")
